"""FedBN: everything is averaged but normalisation, which stays at the client (Li et al., ICLR 2021)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.split import norms
from pfed1bs.core.errors import UserError


@dataclass(frozen=True)
class FedBN(Averaging):
    """FedAvg on all weights but scale and shift of normalisation layers, which are trained along and never leave.

    Judged is the averaged rest under the own normalisation, without further training. LayerNorm and GroupNorm, which
    the paper has not, count as normalisation. A model without any is trained, and judged, as by FedAvg, bit for bit.
    """

    paper: ClassVar[str] = "Li et al., ICLR 2021"
    personalises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse to average what stays at the client."""
        if self.task.bn == "avg" and self.body is not None:
            raise UserError("fedbn averages no statistics, and model.bn is avg", "leave it at local, or choose fedavg")

    @cached_property
    def body(self) -> Tensor | None:
        """All weights but those of normalisation; None: there are no others."""
        mask = ~norms(self.task)
        return None if mask.all() else mask

    @property
    def statistics(self) -> list[str]:
        """None is averaged."""
        return []

    @property
    def remark(self) -> str:
        """That there is nothing to keep, where it is so."""
        nothing = "the model has no scales and shifts of normalisation to keep, so fedbn is fedavg, bit for bit"
        return nothing if self.body is None else ""
