"""OBCSAA: one-bit compressed sensing of the largest entries of updates (Fan et al., IEEE TWC 2022)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.onebit import sketch_size
from pfed1bs.compressors.onebitcs import OneBitCS, biht
from pfed1bs.core.options import FRACTION, at_least, option
from pfed1bs.core.votes import sign, unpack
from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class OBCSAA(Averaging):
    """z_k = sign(Phi s_k), s_k = Top_kappa(w_k - w); w <- w + server_lr sum_k p_k |s_k| BIHT(z_k).

    The authors' radio channel adds up the signs on their way, so that the server solves once, for the sum (decode =
    sum): that asks m signs for the kappa entries of all clients together, and takes a mean of lengths for the length of
    a mean (docs/log.md has what it costs). Without the channel there is no reason to. The projection is ours, and the
    norm of what clients kept is sent too, 32 bits that the paper does not have: without (norm = false) every update has
    length 1, the sum too. Nothing remembers what is cut.
    """

    ratio: float = option(0.1, "m / n: measurements per weight", FRACTION)
    sparsity: float = option(
        0.005, "kappa / n: coordinates that a client keeps; above m / 20 reconstruction fails", FRACTION
    )
    decode: Literal["each", "sum"] = option("each", "what is reconstructed: each update, or as in the paper their sum")
    votes: Literal["hard", "soft"] = option(
        "hard", "what `sum` is solved for: the majority of the signs, or their mean"
    )
    support: Literal["union", "client"] = option(
        "union", "how many coordinates `sum` may have: kappa times clients, or kappa"
    )
    iterations: int = option(10, "of the reconstruction (BIHT), at most", at_least(1))
    norm: bool = option(True, "whether clients send the norm of what they kept")

    paper: ClassVar[str] = "Fan et al., IEEE TWC 2022"

    @cached_property
    def compressor(self) -> OneBitCS:
        """One bit per measurement."""
        kappa = max(1, int(self.sparsity * self.task.n))
        m = sketch_size(self.task.n, self.ratio)
        return OneBitCS(self.task.n, m, kappa, self.seed, self.norm, self.iterations)

    def mean(self, received: Iterable[Message], cohort: Cohort) -> Tensor:
        """Sum_k p_k |s_k| x_k for x_k = BIHT(z_k), or x sum_k p_k |s_k| for x = BIHT(y), y = sum_k p_k z_k."""
        if self.decode == "each":
            return super().mean(received, cohort)
        phi, kappa = self.compressor.sketch, self.compressor.kappa
        y, length = torch.zeros(phi.m, dtype=torch.float64), 0.0 if self.norm else 1.0
        for p, message in zip(self.shares(cohort).tolist(), received, strict=True):
            if self.norm and not message["norm"]:
                continue  # a client that did not move has nothing to say
            y += p * unpack(message["signs"], phi.m)
            length += p * float(message["norm"]) if self.norm else 0
        votes = y.float() if self.votes == "soft" else sign(y.float()) * (y != 0)
        support = min(len(cohort.ids) * kappa, phi.n) if self.support == "union" else kappa  # kappa'
        return length * biht(phi, votes, support, self.iterations)

    @property
    def remark(self) -> str:
        """Where the sum has too many entries for its signs."""
        if self.decode == "each" or self.support == "client":
            return ""
        m, kappa = self.compressor.m, self.compressor.kappa
        return (
            f"{m:,} signs stand for {kappa:,} entries of every client; to reconstruct a sum takes 20 signs for each of "
            f"its entries, so it fails with more than {m // (20 * kappa)} clients in a round (decode = each does not)"
        )
