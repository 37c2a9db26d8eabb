"""Bytes of a round of every method on the paper's networks, read off the layouts of their messages."""

from dataclasses import dataclass
from functools import cache

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.facts.capabilities import way
from pfed1bs.facts.costs import mib
from pfed1bs.facts.printed import CLIENTS, NETS
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import Options

SHAPES = {"mlp": (1, 28, 28), "vgg8": (3, 32, 32), "vgg16": (3, 32, 32)}  # of the samples
COLUMNS = ("method", *(f"{net}\n{what}" for net in SHAPES for what in ("up", "down", "MiB")))


@dataclass(frozen=True)
class Sent:
    """A method on a network: bytes of one client's messages in a round, without headers."""

    method: str
    net: str
    up: int
    down: int
    varies: bool  # from message to message; the bytes are then those to expect

    @property
    def mib(self) -> float:
        """Of a round with 20 clients, which all take part."""
        return mib(8 * CLIENTS * (self.up + self.down))

    @property
    def facts(self) -> Options:
        """Everything, for JSON."""
        return {**vars(self), "mib": self.mib}


@cache
def task(net: str) -> Task:
    """A network of the paper with its loss."""
    return Task(build(net, SHAPES[net], NETS[net].detail.classes))


def traffic(method: str, net: str, **options: float | str) -> Sent:
    """With its defaults but for these options."""
    detail, algorithm = NETS[net].detail, make(method, task(net), 0, **options)
    up, down = way(algorithm.up, detail.own), way(algorithm.down, detail.own)
    return Sent(method, net, -(-up.bits // 8), -(-down.bits // 8), up.varies or down.varies)


def table() -> list[Sent]:
    """Every registered method on every network."""
    return [traffic(method, net) for method in REGISTRY for net in SHAPES]


def lines(rows: list[Sent]) -> list[tuple[str, ...]]:
    """A line for every method."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        about = "~" if row.varies else ""
        cells.setdefault(row.method, [row.method]).extend(
            (f"{about}{row.up:,}", f"{about}{row.down:,}", f"{row.mib:.3f}")
        )
    return [tuple(line) for line in cells.values()]
