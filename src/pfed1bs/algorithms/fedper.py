"""FedPer: a shared body under personal heads, trained together (Arivazhagan et al., 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from pfed1bs.algorithms.base.split import Split


@dataclass(frozen=True)
class FedPer(Split):
    """FedAvg on the body; the head, always the last linear layer here, is trained along and stays at the client.

    Judged is the averaged body under the own head, without further training.
    """

    paper: ClassVar[str] = "Arivazhagan et al., arXiv 1912.00818"
