"""OBDA: one-bit votes on the direction of every weight, both ways (Zhu et al., IEEE TWC 2021), no channel."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.replica import Replica
from pfed1bs.algorithms.base.voting import Vote
from pfed1bs.core.options import NOT_NEGATIVE, POSITIVE, option
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.codecs import Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class OBDA(Replica):
    """The wireless channel of the paper is left out; nothing is remembered of what the signs lost.

    `update` votes on the way that R local steps went, for comparisons with equal work; `gradient` is the original: the
    gradient at the shared model, here the mean over the R batches of a round instead of a pass over all local data. In
    that mode no model is trained at the client, so the fine-tuned one counts as personal. Ties keep the previous bit,
    where the original, with a third symbol on the air, does not move.
    """

    step: float = option(0.005, "eta_s: how far every weight goes in round 0", POSITIVE)
    decay: float = option(
        0.5, "step_t = step / (1 + t)^decay: the length of a step never shrinks by itself", NOT_NEGATIVE
    )
    tie: Literal["previous", "zero"] = option(
        "previous", "zero: no move, as in the original, for two bits per weight down"
    )
    weights: Literal["equal", "samples"] = option("equal", "of the clients in the vote")
    mode: Literal["update", "gradient"] = option("update", "what clients vote with")

    paper: ClassVar[str] = "Zhu et al., IEEE TWC 2021"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """The locally trained model, where there is one."""
        return "local" if self.mode == "update" else "tuned"

    @property
    def vote(self) -> Vote:
        """The rule w <- w - step_t v for the majority v of the clients' signs."""
        return Vote(self.task.n, self.step, self.decay, self.tie, self.weights)

    @property
    def down(self) -> Layout:
        """The vote."""
        return {"vote": self.vote.codec}

    @property
    def up(self) -> Layout:
        """The signs of a client."""
        return {"signs": Signs(self.task.n)}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and seeded bits for the ties of round 0."""
        server, states = super().init(clients)
        return {**server, "vote": self.vote.first(self.seed)}, states

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The signs of the gradient, or of minus the update."""
        if self.mode == "gradient":
            state, gradient = self.gradient(clients, batches)
            return state, {"signs": sign(gradient)}
        state, update = self.trained(clients, batches)
        return state, {"signs": sign(-update)}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The majority."""
        return self.vote.counted(server, received, cohort)

    def move(self, said: Message, round: int) -> Tensor:
        """Minus step_t v."""
        return self.vote.move(said["vote"], round)
