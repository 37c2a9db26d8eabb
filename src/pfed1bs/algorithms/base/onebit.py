"""One bit for every sketched coordinate, with a fresh projection and rotation every round: what pfed1bs-delta sends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from math import pi, sqrt

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import LAYERS, key
from pfed1bs.core.sketch import Rotation, Sketch, srht
from pfed1bs.core.votes import sign, unpack, weigh
from pfed1bs.engine.trust import clamped
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message

NOISE = 5.0  # how much longer than a client's update a step may be
LOUD = 1.75  # the same where fewer bits are asked for than advised; found with 20 of 20 clients (docs/delta.md)
ENOUGH = 0.4  # of the bits that are advised, for steps of 1
SHORTEST = 0.5  # step for that; less was not tried
SMALL = 1 << 19  # weights of a model whose codes are kept for many rounds
SAFE = 1.0  # the same where clients may undo a step whole in one round: longer ones grow from round to round


@dataclass(frozen=True)
class Code:
    """Projection, rotation and scales of one round; every piece of the weights is sketched by itself."""

    sizes: tuple[int, ...]  # weights in each piece
    ratio: float
    seed: int
    round: int
    rotate: bool = True

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """Coordinates of the sketch of each piece."""
        return bits(self.sizes, self.ratio)

    @property
    def seeds(self) -> list[int]:
        """Of every piece; one piece has the seed itself."""
        several = len(self.sizes) > 1
        return [key(self.seed, LAYERS, i) if several else self.seed for i in range(len(self.sizes))]

    @cached_property
    def sketches(self) -> list[Sketch]:
        """Phi of every piece."""
        return [srht(n, m, seed, self.round) for n, m, seed in zip(self.sizes, self.bits, self.seeds, strict=True)]

    @cached_property
    def rotations(self) -> list[Rotation]:
        """R of every piece."""
        return [Rotation(m, seed, self.round) for m, seed in zip(self.bits, self.seeds, strict=True)]

    def sketch(self, x: Tensor) -> Tensor:
        """Phi x, (..., n) -> (..., m)."""
        return _each([phi.forward for phi in self.sketches], x, self.sizes)

    def lift(self, a: Tensor) -> Tensor:
        """Phi^T a, (..., m) -> (..., n)."""
        return _each([phi.adjoint for phi in self.sketches], a, self.bits)

    def turn(self, q: Tensor) -> Tensor:
        """R q."""
        return _each([rotation.forward for rotation in self.rotations], q, self.bits)

    def turn_back(self, r: Tensor) -> Tensor:
        """R^T r."""
        return _each([rotation.backward for rotation in self.rotations], r, self.bits)

    def signed(self, x: Tensor, shrink: bool = False) -> Message:
        """What is sent of updates x (..., n): z = sign(a) and s = |a|_2^2 / |a|_1 of a = Phi x."""
        a = self.sketch(x)
        return {"signs": sign(a), "scale": self.scale(a, shrink)}

    def mean(self, messages: Sequence[Message], weights: Tensor) -> tuple[Tensor, Tensor]:
        """The mean q = sum_k p_k s_k z_k of packed messages, in float64 in their order, and how many were clamped."""
        m = sum(self.bits)
        scales, cut = clamped(torch.stack(_field(messages, "scale")))
        shares, signs = weights.view(-1, *(1 for _ in scales.shape[1:])) * scales.double(), _field(messages, "signs")
        if len(self.sizes) == 1:
            return weigh(signs, shares.tolist(), m).float(), cut
        total = torch.zeros(m, dtype=torch.float64)
        for share, bits in zip(shares, signs, strict=True):
            total.add_(self.scaled(unpack(bits, m).double(), share))
        return total.float(), cut

    def answered(self, q: Tensor, shrink: bool = False) -> tuple[Tensor, Tensor]:
        """What the server answers to a mean q (m,): v = sign(R q), and s."""
        r = self.turn(q) if self.rotate else q
        return sign(r), self.scale(r, shrink)

    def step(self, v: Tensor, s: Tensor) -> Tensor:
        """How an answer moves the weights: s Phi^T R^T v."""
        r = self.scaled(v, s)
        return self.lift(self.turn_back(r) if self.rotate else r)

    def scale(self, a: Tensor, shrink: bool = False) -> Tensor:
        """What the signs of each piece of a (..., m) stand for: (...) for one piece, (..., pieces) for several.

        By default the unbiased scale; with `shrink` the one whose estimate is nearest, |a|_1 / n, which error feedback
        needs because only then the error cannot grow.
        """
        parts = torch.split(a, list(self.bits), -1) if len(self.sizes) > 1 else [a]
        found = [p.abs().sum(-1) / n if shrink else unbiased(p) for p, n in zip(parts, self.sizes, strict=True)]
        return found[0] if len(found) == 1 else torch.stack(found, -1)

    def scaled(self, signs: Tensor, scale: Tensor) -> Tensor:
        """The signs (..., m), each piece times its scale."""
        if len(self.sizes) == 1:
            return signs * scale[..., None]
        return signs * scale.repeat_interleave(torch.tensor(self.bits, device=scale.device), -1)


def sketch_size(n: int, ratio: float) -> int:
    """M = floor(ratio n), at least 1."""
    if not 0 < ratio <= 1:
        raise UserError(f"algorithm.ratio = m/n must be in (0, 1], got {ratio}", "the paper uses 0.1")
    return max(1, int(ratio * n + 1e-9))


def bits(sizes: tuple[int, ...], ratio: float) -> tuple[int, ...]:
    """Coordinates of the sketch of each piece, the same in every round."""
    return tuple(sketch_size(size, ratio) for size in sizes)


@lru_cache(maxsize=8)
def fields(sizes: tuple[int, ...], ratio: float) -> Layout:
    """The fields of a message, the same both ways: signs, and the scale of every piece."""
    shape = () if len(sizes) == 1 else (len(sizes),)
    return {"signs": Signs(sum(bits(sizes, ratio))), "scale": Floats(shape, least=0)}


def bounded(weights: Tensor, ratio: float, heard: float = 1.0, most: float = NOISE) -> float:
    """eta_g for clients of these shares: 1, unless the noise of a step would be more than `most` updates of a client.

    `heard` is the part of an update that its signs tell, where some of them are random.
    """
    noise: float = (pi / 2) * float(weights.square().sum() / ratio) ** 0.5  # of a step of 1, in updates
    return min(1.0, most / (noise / heard))


def shortened(weights: Tensor, ratio: float, advised: float) -> float:
    """eta_g where bits are few: 1 with ENOUGH of those advised or without LOUD noise, then less, down to SHORTEST."""
    return max(SHORTEST, min(1.0, sqrt(ratio / (ENOUGH * advised))), bounded(weights, ratio, most=LOUD))


def unbiased(a: Tensor) -> Tensor:
    """|a|_2^2 / |a|_1 of every row (..., m), 0 for a row of zeros: the scale of signs that keeps the mean right."""
    size = a.abs().sum(-1)
    return torch.where(size == 0, size, a.square().sum(-1) / size)  # NaN stays NaN


def layers(task: Task) -> tuple[int, ...]:
    """How many weights each layer of a model has: neighbours with the same name before the last dot."""
    groups = groupby(task.parts, key=lambda part: part.name.rpartition(".")[0])
    return tuple(sum(part.slice.stop - part.slice.start for part in group) for _, group in groups)


def code(sizes: tuple[int, ...], ratio: float, seed: int, round: int, rotate: bool = True) -> Code:
    """The code of a round, kept while it is needed: of small models for all who come back after some rounds."""
    return (_lasting if sum(sizes) <= SMALL else _passing)(sizes, ratio, seed, round, rotate)


_passing = lru_cache(maxsize=2)(Code)
_lasting = lru_cache(maxsize=64)(Code)  # at most 9 bytes a weight each, at m/n = 0.1 about one


def _field(messages: Sequence[Message], name: str) -> list[Tensor]:
    return [message[name] for message in messages]


def _each(maps: list[Callable[[Tensor], Tensor]], x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Every piece of x through its own map."""
    if len(maps) == 1:
        return maps[0](x)
    pieces = torch.split(x, list(sizes), -1)
    return torch.cat([apply(piece.contiguous()) for apply, piece in zip(maps, pieces, strict=True)], -1)
