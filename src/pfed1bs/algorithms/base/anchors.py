"""Anchors: rounds at which everybody rounds the shared model to four bits a weight, so that a snapshot is short."""

from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Literal

import torch
from torch import Tensor

from pfed1bs.compressors.eden import CODEBOOKS
from pfed1bs.core.rng import ANCHORS, key
from pfed1bs.core.sketch import Rotation
from pfed1bs.engine.contract import State
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Floats, Levels
from pfed1bs.wire.messages import Layout, Message, fixed_size

WIDTH = 4  # bits of a weight
FULL = 0.1  # m / n where all clients take part in every round
PART = 4  # broadcasts between two anchors take at most one part in PART of a coded snapshot
UNITS = 1 << 16  # of the largest coordinate: sums of whole numbers do not depend on their order
HALF = [round(1e5 * c) for c in CODEBOOKS[WIDTH]]
BOOK = [-c for c in reversed(HALF)] + HALF  # centroids of a normal variable, in units of 1e-5
BOUNDS = [(a + b) / 2 for a, b in zip(BOOK[1:], BOOK[:-1], strict=True)]


def advised(share: float) -> float:
    """0.1 sqrt(S / K) bits a weight: a client misses K / S broadcasts, which then grows bytes and noise alike."""
    return FULL * sqrt(share)


def anchored(
    task: Task, seed: int, down: Layout, share: float, snapshots: Literal["auto", "coded", "float32"]
) -> "Anchors | None":
    """The anchors of a run; by themselves only where clients are away longer than from one anchor to the next."""
    every = period(task.n, fixed_size(down) or 1)
    wanted = snapshots == "coded" or (snapshots == "auto" and away(share, every))
    return Anchors(task, seed, every) if wanted else None


def away(share: float, every: int) -> bool:
    """Whether clients are away longer than from one anchor to the next, in the mean."""
    return share * every < 1


def period(n: int, message: int) -> int:
    """Rounds from one anchor to the next, for broadcasts of so many bytes."""
    return max(1, (fixed_size(layout(n)) or 0) // (PART * message))


def layout(n: int) -> Layout:
    """The number of a centroid for every coordinate, and a scale for every block of the rotation."""
    return {"levels": Levels((n,), 1 << WIDTH), "scales": Floats((n.bit_count(),), least=0)}


@dataclass(frozen=True)
class Anchors:
    """theta <- theta_0 + R^T s c(R (theta - theta_0)): EDEN's code, with the same rotation R of a round at everybody.

    Who holds theta computes that alone and is sent nothing; who does not is sent the code. The scale of each block,
    s = |y|^2 / <c, y>, makes the code right in the mean. Everything is exact or rounded in one order: the same bits
    at all clients, on any device.
    """

    task: Task
    seed: int
    every: int

    def last(self, round: int) -> int:
        """The anchor at or before a round."""
        return round - round % self.every

    def first(self) -> State:
        """The code of the first weights."""
        n = self.task.n
        return {"levels": torch.zeros(n, dtype=torch.uint8), "scales": torch.zeros(n.bit_count())}

    def kept(self, server: State, theta: Tensor, round: int) -> State:
        """The server's model (n,) as its broadcast of a round leads to it, and the code of the last anchor."""
        if round % self.every:
            return {"theta": theta, "levels": server["levels"], "scales": server["scales"]}
        code = self.code(theta - self.task.init(self.seed).to(theta), round)
        return {"theta": self.value(code, round), **code}

    def settled(self, theta: Tensor, round: int) -> Tensor:
        """Clients' models (S, n) after the broadcast of a round."""
        if round % self.every:
            return theta
        start = self.task.init(self.seed).to(theta)
        found = [self.value(self.code(theta[0] - start, round), round)]
        for row in theta[1:]:
            found.append(found[0] if torch.equal(row, theta[0]) else self.value(self.code(row - start, round), round))
        return torch.stack(found)

    def code(self, x: Tensor, round: int) -> Message:
        """The code of a difference (n,) to the first weights."""
        y = self._rotation(round).forward(x)
        found = [_coded(block) for block in torch.split(y, self._sizes)]
        scales = torch.tensor([scale for _, scale in found], device=x.device)
        return {"levels": torch.cat([level for level, _ in found]), "scales": scales}

    def value(self, code: Message, round: int) -> Tensor:
        """The weights (n,) that a code stands for."""
        sizes = torch.tensor(self._sizes, device=code["scales"].device)
        book = torch.tensor(BOOK, dtype=torch.float32, device=code["scales"].device)
        y = code["scales"].repeat_interleave(sizes) * book[code["levels"].long()]
        return self.task.init(self.seed).to(y) + self._rotation(round).backward(y)

    def _rotation(self, round: int) -> Rotation:
        return Rotation(self.task.n, key(self.seed, ANCHORS), round)

    @property
    def _sizes(self) -> list[int]:
        return self._rotation(0).sizes


def _coded(y: Tensor) -> tuple[Tensor, float]:
    """Centroid numbers of a block, and what a unit of their book stands for; NaN if the block is not finite."""
    top = float(y.abs().max())
    if top == 0 or not isfinite(top):
        return torch.zeros(len(y), dtype=torch.uint8, device=y.device), 0.0 if top == 0 else nan
    u = (y.double() * (UNITS / top)).round()
    energy = int(u.long().square().sum())
    size = sqrt(energy / len(y)) / 1e5
    bounds = torch.tensor([size * bound for bound in BOUNDS], dtype=torch.float64, device=y.device)
    level = torch.bucketize(u, bounds)
    inner = int((torch.tensor(BOOK, device=y.device)[level] * u.long()).sum())
    return level.to(torch.uint8), energy / inner * top / UNITS
