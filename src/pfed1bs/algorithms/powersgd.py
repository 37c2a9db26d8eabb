"""PowerSGD: updates as products of two thin matrices, both ways, with memory (Vogels et al., NeurIPS 2019)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.compressors import LowRank
from pfed1bs.core.options import at_least, option
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Batches, Cohort, State, blank, stack
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class PowerSGD(Replica):
    """M = x + e; P = orth(M Q') and Q = M^T P are sent, e = M - P Q^T stays: x is an update, or the mean of all.

    Q' is the Q that the server sent last, at first random. The original exchanges mean factors twice in a step, so that
    it needs no memory at the server. A client's memory rests while it is away.
    """

    rank: int = option(2, "r: columns of P and Q", at_least(1))
    server_lr: float = server_step()

    paper: ClassVar[str] = "Vogels et al., NeurIPS 2019"

    @cached_property
    def code(self) -> LowRank:
        """How updates and their mean travel."""
        return LowRank(self.task.parts, self.rank)

    @property
    def down(self) -> Layout:
        """P, Q, biases and normalisation of the mean."""
        return self.code.layout

    @property
    def up(self) -> Layout:
        """The same of an update."""
        return self.code.layout

    @property
    def snapshot_layout(self) -> Layout:
        """The model, and Q'."""
        return {**super().snapshot_layout, "q": self.down["q"]}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, a random Q', and nothing lost yet."""
        server, states = super().init(clients)
        said = {name: torch.zeros(codec.shape) for name, codec in self.down.items()}
        said["q"] = torch.randn(said["q"].shape, generator=stream(self.seed, "powersgd"))
        kept = {"q": stack(said["q"], clients), "error": blank(states["w"])}
        return {**server, **said, "error": torch.zeros_like(server["w"])}, {**states, **kept}

    def after(self, copies: State, said: Message, round: int) -> State:
        """The moved model, and Q'."""
        return {**super().after(copies, said, round), "q": said["q"].expand_as(copies["q"]).clone()}

    def move(self, said: Message, round: int) -> Tensor:
        """eta_s times what the message stands for."""
        return self.server_lr * self.code.decompress(said)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD, compressed together with what was lost before."""
        state, update = self.trained(clients, batches)
        m = update + clients["error"]
        said = self.code.compress(m, clients["q"])
        return {**state, "error": m - self.code.decompress(said)}, said

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id, compressed together with what was lost before."""
        m = summed(server["error"], cohort.weights, map(self.code.decompress, received))
        said = {name: field[0] for name, field in self.code.compress(m[None], server["q"][None]).items()}
        lost = m - self.code.decompress(said)
        return {"w": server["w"] + self.move(said, cohort.round), **said, "error": lost}
