"""FedAvg: the mean of locally trained models (McMahan et al., AISTATS 2017), also with fine-tuning."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfed1bs.algorithms.base.averaging import Averaging


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Full precision both ways. The personal model is the client's own after its last local training."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"


@dataclass(frozen=True)
class FedAvgFT(Averaging):
    """FedAvg whose personal model is the last average, fine-tuned at the client."""

    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, with fine-tuning"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """The fine-tuned model is the personal one."""
        return "tuned"
