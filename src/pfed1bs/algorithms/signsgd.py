"""signSGD with majority vote: every client votes with the sign of its gradient (Bernstein et al., ICML 2018)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.replica import Replica
from pfed1bs.algorithms.base.voting import Vote
from pfed1bs.core.options import BELOW_ONE, NOT_NEGATIVE, POSITIVE, option
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State, blank
from pfed1bs.wire.codecs import Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class SignSGD(Replica):
    """One move per round, by the gradient of R batches together at the shared model.

    With beta > 0 it is Signum: clients vote with m <- beta m + (1 - beta) gradient, which rests while they are away. No
    model is trained at the client, so the fine-tuned one counts as personal.
    """

    lr: float = option(
        0.005, "eta: step size of fine-tuning, the only place where it counts", POSITIVE, role="optimiser"
    )
    step: float = option(0.005, "eta_s: how far every weight goes in round 0", POSITIVE)
    decay: float = option(
        0.5, "step_t = step / (1 + t)^decay: the length of a step never shrinks by itself", NOT_NEGATIVE
    )
    tie: Literal["previous", "zero"] = option(
        "previous", "zero: no move, as in the original, for two bits per weight down"
    )
    weights: Literal["equal", "samples"] = option("equal", "of the clients in the vote")
    beta: float = option(0.0, "how much of the momentum stays, 0.9 in the paper; 0: the plain gradient", BELOW_ONE)

    paper: ClassVar[str] = "Bernstein et al., ICML 2018"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """The fine-tuned model is the personal one."""
        return "tuned"

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
        """As every copy, seeded bits for the ties of round 0, and a momentum at rest."""
        server, states = super().init(clients)
        server["vote"] = self.vote.first(self.seed)
        return server, {**states, "m": blank(states["w"])} if self.beta else states

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The signs of the gradient, or of its momentum."""
        state, m = self.gradient(clients, batches)
        if self.beta:
            m = state["m"] = self.beta * clients["m"] + (1 - self.beta) * m
        return state, {"signs": sign(m)}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The majority."""
        return self.vote.counted(server, received, cohort)

    def move(self, said: Message, round: int) -> Tensor:
        """Minus step_t v."""
        return self.vote.move(said["vote"], round)
