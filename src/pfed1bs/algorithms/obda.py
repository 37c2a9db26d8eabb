"""OBDA: one-bit votes on the direction of every weight, both ways (Zhu et al., IEEE TWC 2021), no channel."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfed1bs.algorithms.base.voting import Voting
from pfed1bs.core.options import option
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class OBDA(Voting):
    """The wireless channel of the paper is left out; nothing is remembered of what the signs lost.

    `update` votes on the way that R local steps went, for comparisons with equal work; `gradient` is the original: the
    gradient at the shared model, here the mean over the R batches of a round instead of a pass over all local data. In
    that mode no model is trained at the client, so the fine-tuned one counts as personal. Ties keep the previous bit,
    where the original, with a third symbol on the air, does not move.
    """

    mode: Literal["update", "gradient"] = option("update", "what clients vote with")

    paper: ClassVar[str] = "Zhu et al., IEEE TWC 2021"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """The locally trained model, where there is one."""
        return "local" if self.mode == "update" else "tuned"

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The signs of the gradient, or of minus the update."""
        if self.mode == "gradient":
            state, gradient = self.gradient(clients, batches)
            return state, {"signs": sign(gradient)}
        state, update = self.trained(clients, batches)
        return state, {"signs": sign(-update)}
