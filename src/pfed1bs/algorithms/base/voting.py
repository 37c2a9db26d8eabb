"""What the methods that vote on the direction of every weight share: one bit per weight up, one down."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import pow
from typing import Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.replica import Replica
from pfed1bs.core.options import NOT_NEGATIVE, POSITIVE, option
from pfed1bs.core.rng import TIES, bits, key
from pfed1bs.core.votes import pack, tally, unpack
from pfed1bs.engine.contract import Cohort, State
from pfed1bs.wire.codecs import Levels, Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Voting(Replica):
    """w <- w - step_t v, where v is the majority of the clients' signs of the gradient, coordinate by coordinate."""

    step: float = option(0.005, "eta_s: how far every weight goes in round 0", POSITIVE)
    decay: float = option(
        0.5, "step_t = step / (1 + t)^decay: the length of a step never shrinks by itself", NOT_NEGATIVE
    )
    tie: Literal["previous", "zero"] = option(
        "previous", "zero: no move, as in the original, for two bits per weight down"
    )
    weights: Literal["equal", "samples"] = option("equal", "of the clients in the vote")

    @property
    def down(self) -> Layout:
        """The vote."""
        return {"vote": Signs(self.task.n) if self.tie == "previous" else Levels((self.task.n,), 3)}

    @property
    def up(self) -> Layout:
        """The signs of a client."""
        return {"signs": Signs(self.task.n)}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and seeded bits for the ties of round 0."""
        server, states = super().init(clients)
        if self.tie == "zero":
            return {**server, "vote": torch.ones(self.task.n, dtype=torch.int32)}, states
        return {**server, "vote": torch.from_numpy(bits(key(self.seed, TIES), self.task.n).copy())}, states

    def move(self, said: Message, round: int) -> Tensor:
        """Minus step_t v; of a vote with three outcomes, 0 .. 2 stand for -1 .. 1."""
        v = said["vote"] if self.tie == "previous" else said["vote"] - 1
        return v * (-self.step / pow(1.0 + round, self.decay))

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The majority, exact in whole numbers."""
        n = self.task.n
        messages = [message["signs"] for message in received]
        votes = cohort.sizes if self.weights == "samples" else torch.ones_like(cohort.sizes)
        if self.tie == "previous":
            outcome = tally(messages, votes, server["vote"], n)
            vote, kept = unpack(outcome.bits, n), outcome.bits
        else:  # a tie follows whatever stood before, so two opposite votes before it cancel
            outcome = tally(messages, votes, pack(torch.ones(n)), n)
            both = unpack(outcome.bits, n) + unpack(tally(messages, votes, pack(-torch.ones(n)), n).bits, n)
            vote = kept = (1 + both / 2).int()
        w = server["w"] + self.move({"vote": vote}, cohort.round)
        return {"w": w, "vote": kept, "log/ties": torch.tensor(outcome.ties / n)}
