"""FedBN: everything is averaged but normalisation, which stays at the client (Li et al., ICLR 2021)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging


@dataclass(frozen=True)
class FedBN(Averaging):
    """FedAvg on all weights but scale and shift of normalisation layers, which are trained along and never leave.

    Judged is the averaged rest under the own normalisation, without further training. LayerNorm and GroupNorm, which
    the paper has not, count as normalisation. A model without any is trained, and judged, as by FedAvg, bit for bit.
    """

    paper: ClassVar[str] = "Li et al., ICLR 2021"
    personalises: ClassVar[bool] = True

    @cached_property
    def body(self) -> Tensor | None:
        """All weights but those of normalisation; None: there are no others."""
        mask = torch.ones(self.task.n, dtype=torch.bool)
        for part in self.task.parts:
            mask[part.slice] = part.kind != "norm"
        return None if mask.all() else mask

    @property
    def statistics(self) -> list[str]:
        """None is averaged, whatever model.bn says to other methods."""
        return []

    @property
    def remark(self) -> str:
        """That there is nothing to keep, or that statistics are kept, where that may surprise."""
        if self.body is None:
            return "the model has no scales and shifts of normalisation to keep, so fedbn is fedavg, bit for bit"
        return "fedbn keeps statistics at the clients, model.bn = avg or not" if self.task.bn == "avg" else ""
