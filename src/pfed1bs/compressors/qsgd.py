"""QSGD: magnitudes rounded at random to a few levels of a norm, without bias (Alistarh et al., NeurIPS 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.codecs import Floats, Levels
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class QSGD:
    """|x_i| = norm (l + fraction) / s becomes norm l / s, or with probability `fraction` norm (l + 1) / s.

    Each bucket of neighbouring coordinates has its own norm: with one for all of them and s = 1 the error would be
    sqrt(n) times the update.
    """

    n: int
    levels: int = 1  # s
    bucket: int = 512  # coordinates that share a norm; 0: all

    def __post_init__(self) -> None:
        if not 1 <= self.levels < 1 << 15:
            raise UserError(f"algorithm.levels must be in 1 .. 32767, got {self.levels}", "fedavg sends all bits")
        if self.bucket < 0:
            raise UserError(f"algorithm.bucket must not be negative, got {self.bucket}", "0 is one norm for all")

    @property
    def buckets(self) -> int:
        """Number of norms."""
        return -(-self.n // (self.bucket or self.n))

    @property
    def layout(self) -> Layout:
        """Levels with their signs, -s .. s as 0 .. 2s, and the norms."""
        return {"levels": Levels((self.n,), 2 * self.levels + 1), "norms": Floats((self.buckets,), least=0)}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Random rounding, each client with its own draws."""
        size = self.bucket or self.n
        parts = torch.nn.functional.pad(update, (0, self.buckets * size - self.n)).view(-1, self.buckets, size)
        norms = parts.norm(dim=2)
        exact = self.levels * update.abs() / self._spread(norms).clamp(min=torch.finfo(update.dtype).tiny)
        drawn = cohort.uniform("fedpaq", self.n, device=update.device)
        level = (exact + drawn).floor().clamp(max=self.levels)  # rounding up could otherwise pass s by one
        return {"levels": (level.copysign(update) + self.levels).int(), "norms": norms}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """Norm times level / s."""
        return self._spread(message["norms"]) * (message["levels"] - self.levels) / self.levels

    def _spread(self, norms: Tensor) -> Tensor:
        """The norm of every coordinate (..., n) from those of the buckets."""
        return norms.repeat_interleave(self.bucket or self.n, -1)[..., : self.n]
