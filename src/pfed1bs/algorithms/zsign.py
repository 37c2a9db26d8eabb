"""z-SignFedAvg: the mean of noisy signs of accumulated gradients (Tang et al., AAAI 2024)."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.compressors import Compressor, ZSign
from pfed1bs.core.options import POSITIVE, Range, option
from pfed1bs.engine.contract import Cohort


@dataclass(frozen=True)
class ZSignFedAvg(Averaging):
    """A mean of signs, not a vote; weighted by samples unless `weights` says equal, as in the original.

    sigma is a constant of the run, where the original may raise it when progress stalls.
    """

    sigma: float = option(0.1, "width of the noise, in units of the gradients summed over a round", POSITIVE)
    z: float = option(
        inf, "shape of the noise: 1 is normal, inf is uniform", Range("1 or inf", lambda x: x in (1, inf))
    )
    weights: Literal["samples", "equal"] = option("samples", "of the clients in the mean")

    paper: ClassVar[str] = "Tang et al., AAAI 2024"

    @cached_property
    def compressor(self) -> Compressor:
        """Signs of noisy gradients."""
        return ZSign(self.task.n, self.lr, self.sigma, self.z)

    def shares(self, cohort: Cohort) -> Tensor:
        """As configured."""
        return cohort.shares(self.weights)
