"""Closed-form bits of every method: what measured bytes must be."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, expm1, log, log1p, log2, sqrt
from typing import Literal

from pfed1bs.core.transform import padded


@dataclass(frozen=True)
class Detail:
    """What some formulas need beside n and m; the defaults are those of the published table, the counts the MLP's."""

    head: int = 2_570  # weights of the last linear layer (fedrep, fedper)
    features: int = 256  # d: inputs of the last linear layer (fedproto)
    classes: int = 10  # C: classes in all (fedproto)
    own: int = 2  # c_k: classes of a client (fedproto)
    tensors: int = 2  # weight tensors, each with a scale (fedbat)
    plain: int = 266  # biases and normalisation, sent as they are (fedbat, powersgd)
    statistics: int = 0  # b: BatchNorm statistics averaged with the model (model.bn = avg)
    width: float = 1  # bits per coordinate (eden)
    levels: int = 1  # s (fedpaq)
    sparsity: float = 1 / 400  # p: share of coordinates that are sent (stc)
    density: float = 0.5  # rho: share of weights that exist (dispfl)
    moves: int = 10  # R: steps of a round (decomfl)
    directions: int = 10  # P: directions of a step (decomfl)
    share: float = 1 / 320  # K / n: coordinates per weight (ferret)
    rank: int = 2  # r, at most that of every weight tensor (powersgd)
    factors: int = 2  # of P and Q in a message; 1: in turns, the mean of two rounds (powersgd)
    edges: int = 1_306  # rows and columns of all weight tensors (powersgd)
    both: float = 0.1  # bits per coordinate each way (eden-two)
    neighbours: int = 2  # links that a client hears (dispfl)
    norm: int = 0  # scales and shifts of normalisation, which stay at the client (fedbn)


Formula = Callable[[int, int, Detail], float]  # n, m, detail -> bits of one message


def dense(n: int, m: int, d: Detail) -> float:
    """All weights in float32."""
    return 32 * n


def body(n: int, m: int, d: Detail) -> float:
    """All weights but the head's."""
    return 32 * (n - d.head)


def twice(n: int, m: int, d: Detail) -> float:
    """A model and a gradient."""
    return 64 * n


def signs(n: int, m: int, d: Detail) -> float:
    """One bit per weight."""
    return n


def sketch(n: int, m: int, d: Detail) -> float:
    """One bit per measurement."""
    return m


def scaled(formula: Formula) -> Formula:
    """The same and one float32 number."""
    return lambda n, m, d: formula(n, m, d) + 32


def ternary(n: int, m: int, d: Detail) -> float:
    """Rice-coded places and signs of ceil(pn) coordinates, and their common magnitude (expected length)."""
    p = d.sparsity
    exponent = 1 + int(log2(log((sqrt(5) - 1) / 2) / log1p(-p)))
    position = exponent - 1 / expm1((1 << exponent) * log1p(-p))
    return ceil(p * n) * (position + 1) + 32


def masked(n: int, m: int, d: Detail) -> float:
    """The weights that exist, and a mask."""
    return 32 * d.density * n + n


def ways(formula: Formula) -> tuple[Formula, Formula]:
    """The same up and down."""
    return formula, formula


FORMULAS: dict[str, tuple[Formula, Formula]] = {  # up and down, per client that takes part
    "local": ways(lambda n, m, d: 0),
    "fedavg": (dense, dense),
    "fedavg-ft": (dense, dense),
    "fedprox": (dense, dense),
    "ditto": (dense, dense),
    "pfedme": (dense, dense),
    "perfedavg": (dense, dense),
    "apfl": (dense, dense),
    "fedrep": (body, body),
    "fedper": (body, body),
    "obda": (signs, signs),
    "signsgd": (signs, signs),
    "ef-sign": (scaled(signs), scaled(signs)),
    "stc": (ternary, ternary),
    "obcsaa": (sketch, dense),
    "zsign": (signs, dense),
    "eden": (lambda n, m, d: d.width * padded(n) + 32, dense),
    "fedbat": (lambda n, m, d: n - d.plain + 32 * (d.tensors + d.plain), dense),
    "fedpaq": (lambda n, m, d: n * (1 + ceil(log2(d.levels + 1))) + 32, dense),
    "fedproto": (lambda n, m, d: d.own * 32 * (d.features + 1), lambda n, m, d: 32 * d.features * d.classes),
    "dispfl": (masked, lambda n, m, d: d.neighbours * masked(n, m, d)),
    "fedbn": (lambda n, m, d: 32 * (n - d.norm), lambda n, m, d: 32 * (n - d.norm)),
    "knnper": (dense, dense),
    "scaffold": (twice, twice),
    "pfed1bs": (sketch, sketch),
    "pfed1bs-delta": (scaled(sketch), scaled(sketch)),
    "delta-float32": ways(lambda n, m, d: 32 * n),  # statistics stay at the client
    "decomfl": ways(lambda n, m, d: 32 * d.moves * d.directions),
    "ferret": ways(lambda n, m, d: 32 * max(1, int(d.share * n + 0.5))),
    "powersgd": ways(lambda n, m, d: 16 * d.factors * d.rank * d.edges + 32 * d.plain),
    "eden-two": ways(lambda n, m, d: round(d.both * padded(n)) + 32),
}


@dataclass(frozen=True)
class Cost:
    """Bits of one message each way in a round, and how many there are."""

    up: int
    down: int
    senders: int
    receivers: int

    @property
    def total(self) -> int:
        """Bits of a round, the downlink once for every receiver, as the paper counts."""
        return self.senders * self.up + self.receivers * self.down

    @property
    def broadcast(self) -> int:
        """Bits of a round if one downlink reaches all."""
        return self.senders * self.up + self.down

    @property
    def payload(self) -> tuple[int, int]:
        """Bytes up and down in a round, headers left out: whole bytes in every message."""
        return self.senders * ceil(self.up / 8), self.receivers * ceil(self.down / 8)


def bits(
    method: str,
    n: int,
    m: int,
    clients: int,
    sampled: int,
    trains: Literal["sampled", "all"] = "sampled",
    detail: Detail | None = None,
) -> Cost:
    """Bits per client and round once the method is under way.

    Not in it: headers, the seed, the empty broadcast of a first round, and what returning clients have missed of
    methods whose broadcasts build on each other. With trains = "all" every client hears the server, `sampled` answer.
    """
    if method not in FORMULAS:
        raise ValueError(f"no cost formula for {method!r}; there are {', '.join(FORMULAS)}")
    detail = detail or Detail()
    up, down = FORMULAS[method]
    extra = 32 * detail.statistics if down in (dense, body, twice) else 0
    return Cost(
        up=ceil(up(n, m, detail)) + extra,
        down=ceil(down(n, m, detail)) + extra,
        senders=sampled,
        receivers=clients if trains == "all" else sampled,
    )


def mib(bits: float) -> float:
    """2^20 bytes, which the paper calls MB."""
    return bits / 8 / 2**20
