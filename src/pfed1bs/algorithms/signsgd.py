"""signSGD with majority vote: every client votes with the sign of its gradient (Bernstein et al., ICML 2018)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from pfed1bs.algorithms.base.voting import Voting
from pfed1bs.core.options import BELOW_ONE, POSITIVE, option
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class SignSGD(Voting):
    """One move per round, by the gradient of R batches together at the shared model.

    With beta > 0 it is Signum: clients vote with m <- beta m + (1 - beta) gradient, which rests while they are away. No
    model is trained at the client, so the fine-tuned one counts as personal.
    """

    lr: float = option(
        0.005, "eta: step size of fine-tuning, the only place where it counts", POSITIVE, role="optimiser"
    )
    beta: float = option(0.0, "how much of the momentum stays, 0.9 in the paper; 0: the plain gradient", BELOW_ONE)

    paper: ClassVar[str] = "Bernstein et al., ICML 2018"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """The fine-tuned model is the personal one."""
        return "tuned"

    def init(self, clients: int) -> tuple[State, State]:
        """As every vote, and a momentum at rest."""
        server, states = super().init(clients)
        return server, {**states, "m": torch.zeros_like(states["w"])} if self.beta else states

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The signs of the gradient, or of its momentum."""
        state, m = self.gradient(clients, batches)
        if self.beta:
            m = state["m"] = self.beta * clients["m"] + (1 - self.beta) * m
        return state, {"signs": sign(m)}
