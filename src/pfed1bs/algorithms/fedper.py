"""FedPer: a shared body under personal heads, trained together (Arivazhagan et al., 2019)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.split import body


@dataclass(frozen=True)
class FedPer(Averaging):
    """FedAvg on the body; the head, always the last linear layer here, is trained along and stays at the client.

    Judged is the averaged body under the own head, without further training.
    """

    paper: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818"
    personalises: ClassVar[bool] = True

    @cached_property
    def body(self) -> Tensor:
        """All weights but the head's."""
        return body(self.task)
