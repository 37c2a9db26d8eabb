"""A seeded rotation of any length that needs no padding: signs and a Hadamard transform of every power-of-two block."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs.core.rng import ROTATION, bits, key
from pfed1bs.core.transform import hadamard
from pfed1bs.core.votes import unpack


@dataclass(frozen=True)
class Rotation:
    """Orthogonal map of length m for one seed and round; blocks are the binary digits of m, largest first."""

    m: int
    seed: int
    round: int

    @cached_property
    def signs(self) -> Tensor:
        """(m,) of +-1."""
        return unpack(torch.from_numpy(bits(key(self.seed, ROTATION, self.round), self.m)), self.m)

    def forward(self, q: Tensor) -> Tensor:
        """The rotated rows of q (..., m)."""
        return self._blocks(q * self.signs.to(q))

    def backward(self, r: Tensor) -> Tensor:
        """The inverse, which is the transpose."""
        return self._blocks(r) * self.signs.to(r)

    def _blocks(self, x: Tensor) -> Tensor:
        sizes = [1 << i for i in reversed(range(self.m.bit_length())) if self.m >> i & 1]
        return torch.cat([hadamard(part.contiguous()) for part in torch.split(x, sizes, -1)], -1)
