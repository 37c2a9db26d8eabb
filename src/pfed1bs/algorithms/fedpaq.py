"""FedPAQ: the mean of randomly rounded updates (Reisizadeh et al., AISTATS 2020)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.compressors import QSGD, Compressor
from pfed1bs.core.options import Range, at_least, option
from pfed1bs.engine.contract import Cohort


@dataclass(frozen=True)
class FedPAQ(Averaging):
    """QSGD on the update of a round, in codes of fixed length.

    The norm is per bucket, as QSGD does in practice; bucket = 0 is the whole vector of the paper. Clients weigh by
    their samples unless `weights` says equal, as in the original.
    """

    levels: int = option(
        1,
        "s: levels of a magnitude besides 0; an update takes 1 + ceil(log2(s + 1)) bits per weight",
        Range("in 1 .. 32767", lambda x: 1 <= x <= 32767),
    )
    bucket: int = option(512, "coordinates that share a norm of 32 bits; 0: all of them", at_least(0))
    weights: Literal["samples", "equal"] = option("samples", "of the clients in the mean")

    paper: ClassVar[str] = "Reisizadeh et al., AISTATS 2020"

    @cached_property
    def compressor(self) -> Compressor:
        """Random rounding."""
        return QSGD(self.task.n, self.levels, self.bucket)

    def shares(self, cohort: Cohort) -> Tensor:
        """As configured."""
        return cohort.shares(self.weights)
