"""The cost column of the paper's Table 1, cell by cell beside ours."""

from collections.abc import Callable
from dataclasses import dataclass

from pfed1bs.facts.costs import Detail, bits, mib


@dataclass(frozen=True)
class Net:
    """A network of the paper as its cost column counts it."""

    n: int  # P: trainable
    statistics: int  # running means and variances; with n the state_dict, Sd
    detail: Detail

    @property
    def m(self) -> int:
        """Sketch bits at m/n = 0.1."""
        return self.n // 10

    @property
    def state(self) -> int:
        """Sd."""
        return self.n + self.statistics


NETS = {
    "mlp": Net(203_530, 0, Detail()),
    "vgg8": Net(280_074, 736, Detail(head=1_290, features=128, tensors=8, plain=1_370, edges=3_205, norm=736)),
    "vgg16": Net(
        15_299_748,
        8_448,
        Detail(head=51_300, features=512, classes=100, own=20, tensors=16, plain=13_796, edges=40_319, norm=8_448),
    ),
}
DATASETS = {"MNIST": "mlp", "FMNIST": "mlp", "CIFAR-10": "vgg8", "CIFAR-100": "vgg16", "SVHN": "vgg8"}
SPELT = {name.lower().replace("-", ""): name for name in DATASETS}  # our names of data sets, and the paper's
CLIENTS = 20

# Which count of n reproduces a row of Table 1, bits up and down; no count fits all cells of the last two rows, so ours
# stands there.
PAPER: dict[str, Callable[[Net], int]] = {
    "FedAvg": lambda net: 2 * 32 * net.state,
    "OBDA": lambda net: 2 * net.n,
    "OBCSAA": lambda net: net.m + 32 * net.state,
    "zSignFed": lambda net: net.state + 32 * net.n,
    "pFed1BS": lambda net: 2 * net.m,
    "EDEN": lambda net: bits("eden", net.n, net.m, 1, 1, detail=net.detail).total,
    "FedBAT": lambda net: bits("fedbat", net.n, net.m, 1, 1, detail=net.detail).total,
}
PRINTED = {  # Table 1, MB per round
    "FedAvg": {"mlp": "31.06", "vgg8": "42.85", "vgg16": "2335.85"},
    "OBDA": {"mlp": "0.97", "vgg8": "1.34", "vgg16": "72.95"},
    "OBCSAA": {"mlp": "15.58", "vgg8": "21.49", "vgg16": "1171.57"},
    "zSignFed": {"mlp": "16.01", "vgg8": "22.04", "vgg16": "1203.78"},
    "pFed1BS": {"mlp": "0.10", "vgg8": "0.13", "vgg16": "7.30"},
    "EDEN": {"mlp": "12.15", "vgg8": "22.76", "vgg16": "1205.33"},
    "FedBAT": {"mlp": "11.88", "vgg8": "22.04", "vgg16": "1198.71"},
}
COUNTS = {  # the same in words: P trainable numbers, Sd with running statistics, m sketch bits
    "FedAvg": "32 Sd up, 32 Sd down",
    "OBDA": "P up, P down",
    "OBCSAA": "m up, 32 Sd down",
    "zSignFed": "Sd up, 32 P down",
    "pFed1BS": "m up, m down",
}


def _left(method: str, name: str, down: int) -> str:
    """Bits a number of Sd that a printed cell leaves for the way up beside so many down."""
    printed = float(PRINTED[method][name]) * 2**20 * 8 / CLIENTS
    return f"{(printed - down) / NETS[name].state:.2f}"


EDEN_UP = _left("EDEN", "vgg16", 32 * NETS["vgg16"].state)
FEDBAT_UP = _left("FedBAT", "vgg16", 32 * NETS["vgg16"].n)
BELOW, NONE, OTHER = "cannot be right", "fits no count", "fits another count"  # verdicts on printed cells
WRONG = {  # the verdict on a printed cell that is not ours, and why
    ("EDEN", "mlp"): (BELOW, "less than its float32 downlink alone, 15.53"),
    ("EDEN", "vgg8"): (
        OTHER,
        f"2 bits per weight up and 32 Sd down, where other cells leave {EDEN_UP} or fewer than none",
    ),
    ("EDEN", "vgg16"): (
        NONE,
        f"leaves {EDEN_UP} bits per weight up: 1 without, 1.10 with padding, 2 in the CIFAR-10 cell",
    ),
    ("FedBAT", "mlp"): (BELOW, "less than its float32 downlink alone, 15.53"),
    ("FedBAT", "vgg8"): (OTHER, "the cell of zSignFed, Sd up and 32 P down: no scales, no float32 biases"),
    ("FedBAT", "vgg16"): (NONE, f"leaves {FEDBAT_UP} bits per weight up, fewer than one sign each"),
}


@dataclass(frozen=True)
class Printed:
    """One cost of Table 1 beside ours, MiB per round with 20 clients."""

    method: str
    dataset: str
    printed: str
    ours: float
    verdict: str  # as printed, or one of three words
    wrong: str  # why the printed value is not ours; empty if ours rounds to it
    count: str  # of the whole row; empty where none fits it


def paper_table() -> tuple[Printed, ...]:
    """Every cost of Table 1, with the counts of n that its authors must have mixed."""
    return tuple(
        Printed(
            *(method, data, PRINTED[method][name], mib(CLIENTS * formula(NETS[name]))),
            *WRONG.get((method, name), ("as printed", "")),
            COUNTS.get(method, ""),
        )
        for method, formula in PAPER.items()
        for data, name in DATASETS.items()
    )
