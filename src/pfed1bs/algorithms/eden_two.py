"""EDEN both ways: rotated updates in few bits up, their mean in few bits down to copies of the model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.compressors import Eden, decompressed
from pfed1bs.core.options import Range, option
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Layout, Message

SERVER = torch.tensor([-1])  # whose rotation the answer has: no client has this number


@dataclass(frozen=True)
class EdenTwo(Replica):
    """Everybody moves by what the server's message says, the server too; both scales are the unbiased one.

    Below one bit a seeded set of rotated coordinates is sent, one bit each. Nothing is remembered: the error of a
    message has mean 0 and is fresh in every round.
    """

    bits: float = option(0.1, "b: bits per coordinate of the padded update", Range("in (0, 4]", lambda x: 0 < x <= 4))
    down_bits: float = option(
        0.0, "the same for the server's answer; 0: as `bits`", Range("in [0, 4]", lambda x: 0 <= x <= 4)
    )
    server_lr: float = server_step()

    paper: ClassVar[str] = "Vargaftik et al., ICML 2022, both ways"

    @property
    def update(self) -> Eden:
        """How updates travel."""
        return Eden(self.task.n, self.bits)

    @property
    def answer(self) -> Eden:
        """How their mean travels."""
        return Eden(self.task.n, self.down_bits or self.bits)

    @property
    def down(self) -> Layout:
        """The compressed mean."""
        return self.answer.layout

    @property
    def up(self) -> Layout:
        """The compressed update."""
        return self.update.layout

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and an answer that says nothing."""
        server, states = super().init(clients)
        return {**server, **self.answered(torch.zeros_like(server["w"]), 0)}, states

    def speaker(self, round: int) -> Cohort:
        """The server as a client of its own."""
        return Cohort(self.seed, round, SERVER, torch.ones_like(SERVER), SERVER)

    def answered(self, mean: Tensor, round: int) -> Message:
        """The message of the server about a mean update (n,)."""
        return {name: field[0] for name, field in self.answer.compress(mean[None], self.speaker(round)).items()}

    def move(self, said: Message, round: int) -> Tensor:
        """eta_s times what the message stands for."""
        return self.server_lr * self.answer.decompress(said, self.speaker(round))

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD, each client's way in a rotation of its own."""
        state, update = self.trained(clients, batches)
        return state, self.update.compress(update, cohort)

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id, then compressed itself."""
        updates = decompressed(self.update, received, cohort)
        said = self.answered(summed(torch.zeros(self.task.n), cohort.weights, updates), cohort.round)
        return {"w": server["w"] + self.move(said, cohort.round), **said}
