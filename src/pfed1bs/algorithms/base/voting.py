"""A vote on the direction of every weight: one bit per weight up, one down."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import pow
from typing import Literal

import torch
from torch import Tensor

from pfed1bs.core.rng import TIES, bits, key
from pfed1bs.core.votes import pack, tally, unpack
from pfed1bs.engine.contract import Cohort, State
from pfed1bs.wire.codecs import Levels, Signs
from pfed1bs.wire.messages import Codec, Message


@dataclass(frozen=True)
class Vote:
    """w <- w - step_t v, where v is the majority of the clients' signs of the gradient, coordinate by coordinate."""

    n: int
    step: float
    decay: float  # step_t = step / (1 + t)^decay
    tie: Literal["previous", "zero"]
    weights: Literal["equal", "samples"]

    @property
    def codec(self) -> Codec:
        """How v travels."""
        return Signs(self.n) if self.tie == "previous" else Levels((self.n,), 3)

    def first(self, seed: int) -> Tensor:
        """Seeded bits for the ties of round 0, or no move."""
        if self.tie == "zero":
            return torch.ones(self.n, dtype=torch.int32)
        return torch.from_numpy(bits(key(seed, TIES), self.n).copy())

    def move(self, vote: Tensor, round: int) -> Tensor:
        """Minus step_t v; of a vote with three outcomes, 0 .. 2 stand for -1 .. 1."""
        v = vote if self.tie == "previous" else vote - 1
        return v * (-self.step / pow(1.0 + round, self.decay))

    def counted(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The server after the majority, which is exact in whole numbers."""
        messages = [message["signs"] for message in received]
        votes = cohort.sizes if self.weights == "samples" else torch.ones_like(cohort.sizes)
        if self.tie == "previous":
            outcome = tally(messages, votes, server["vote"], self.n)
            vote, kept = unpack(outcome.bits, self.n), outcome.bits
        else:  # a tie follows whatever stood before, so two opposite votes before it cancel
            outcome = tally(messages, votes, pack(torch.ones(self.n)), self.n)
            other = tally(messages, votes, pack(-torch.ones(self.n)), self.n)
            vote = kept = (1 + (unpack(outcome.bits, self.n) + unpack(other.bits, self.n)) / 2).int()
        w = server["w"] + self.move(vote, cohort.round)
        return {"w": w, "vote": kept, "log/ties": torch.tensor(outcome.ties / self.n)}
