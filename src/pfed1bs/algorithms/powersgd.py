"""PowerSGD: updates as products of two thin matrices, both ways, with memory (Vogels et al., NeurIPS 2019)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, averaged, summed
from pfed1bs.compressors import Alternating, LowRank
from pfed1bs.core.options import at_least, option
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Batches, Cohort, State, blank, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class PowerSGD(Replica):
    """M = x + e; P = orth(M Q') and Q = M^T P are sent, e = M - P Q^T stays: x is an update, or the mean of all.

    Q' is the Q that the server sent last, at first random. The original exchanges mean factors twice in a step, so that
    it needs no memory at the server. A client's memory rests while it is away.

    factors = "half": P = M Q' is sent in even rounds, Q = M^T P' in odd ones, where a dash is the orth of the mean that
    the server sent last, and M - P Q'^T or M - P' Q^T stays. Everybody computes orth alone, with the same bits; that of
    the server is in snapshots. The mean of factors is that of the products, so the server has no memory.
    """

    rank: int = option(2, "r: columns of P and Q", at_least(1))
    factors: Literal["both", "half"] = option("both", "half: P and Q travel in turns, one a round")
    server_lr: float = server_step()

    paper: ClassVar[str] = "Vogels et al., NeurIPS 2019"

    @cached_property
    def code(self) -> LowRank:
        """How updates and their mean travel."""
        return LowRank(self.task.parts, self.rank)

    @cached_property
    def half(self) -> Alternating | None:
        """The same for one factor a round; None: both travel."""
        return Alternating(self.code) if self.factors == "half" else None

    @property
    def down(self) -> Layout:
        """P, Q or one of them, biases and normalisation of the mean."""
        return (self.half or self.code).layout

    @property
    def up(self) -> Layout:
        """The same of an update."""
        return self.down

    @property
    def snapshot_layout(self) -> Layout:
        """The model, and Q' or P'."""
        return {**super().snapshot_layout, "q": Floats((self.half.long,)) if self.half else self.down["q"]}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, a random Q', and nothing lost yet."""
        server, states = super().init(clients)
        said = {name: torch.zeros(codec.shape) for name, codec in self.down.items()}
        lost = {} if self.half else {"error": torch.zeros_like(server["w"])}
        if not self.half:  # the basis that follows a factor of zeros is random by itself
            said["q"] = torch.randn(said["q"].shape, generator=stream(self.seed, "powersgd"))
        q = self.start(said, -1)
        return {**server, **said, "q": q, **lost}, {**states, "q": stack(q, clients), "error": blank(states["w"])}

    def start(self, said: Message, round: int) -> Tensor:
        """Q', or P', after the server's decision of a round."""
        if not self.half:
            return said["q"]
        return self.half.basis(said["factor"], round, stream(self.seed, "powersgd", round))

    def product(self, said: Message, q: Tensor, round: int) -> Tensor:
        """P Q^T (..., n) of a message that began with Q', or P'."""
        return self.code.decompress(self.half.pair(said, q, round) if self.half else said)

    def after(self, copies: State, said: Message, round: int) -> State:
        """The moved model, and Q' or P'."""
        theta = copies["theta"] + self.server_lr * self.product(said, copies["q"], round)
        return {"theta": theta, "q": self.start(said, round).expand_as(copies["q"]).clone()}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD, compressed together with what was lost before."""
        state, update = self.trained(clients, batches)
        m, q, t = update + clients["error"], clients["q"], cohort.round
        said = self.half.compress(m, q, t) if self.half else self.code.compress(m, q)
        return {**state, "error": m - self.product(said, q, t)}, said

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id; of both factors compressed together with what was lost."""
        if self.half:
            said = self.half.meant(averaged(self.up, cohort.weights, received), cohort.round)
            lost = State()
        else:
            m = summed(server["error"], cohort.weights, map(self.code.decompress, received))
            said = {name: field[0] for name, field in self.code.compress(m[None], server["q"][None]).items()}
            lost = {"error": m - self.code.decompress(said)}
        w = server["w"] + self.server_lr * self.product(said, server["q"], cohort.round)
        return {"w": w, **said, "q": self.start(said, cohort.round), **lost}
