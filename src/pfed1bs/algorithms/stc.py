"""STC: few weights, one magnitude, both ways, with memory (Sattler et al., IEEE TNNLS 2020)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import FRACTION, option
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State, blank
from pfed1bs.wire.codecs import Sparse
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class STC(Replica):
    """The ceil(p n) largest of all weights together (the original: of each tensor), places in Rice code.

    R local steps a round, where the original has one; clients weigh by their samples unless `weights` says equal. A
    client's residual rests while it is away.
    """

    p_up: float = option(1 / 400, "share of the weights that a client sends", FRACTION)
    p_down: float = option(1 / 400, "share of the weights that the server sends", FRACTION)
    weights: Literal["samples", "equal"] = option("samples", "of the clients in the mean")
    server_lr: float = server_step()

    paper: ClassVar[str] = "Sattler et al., IEEE TNNLS 2020"

    @property
    def down(self) -> Layout:
        """The ternary move of the model."""
        return {"move": Sparse(self.task.n, kept(self.task.n, self.p_down))}

    @property
    def up(self) -> Layout:
        """The ternary update."""
        return {"update": Sparse(self.task.n, kept(self.task.n, self.p_up))}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and empty residuals."""
        server, states = super().init(clients)
        zero = torch.zeros_like(server["w"])
        return {**server, "move": zero, "residual": zero.clone()}, {**states, "residual": blank(states["w"])}

    def move(self, said: Message, round: int) -> Tensor:
        """The message itself."""
        return said["move"]

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD; what is too small to be sent waits."""
        state, update = self.trained(clients, batches)
        waiting = clients["residual"] + update
        sent = ternary(waiting, kept(self.task.n, self.p_up))
        return {**state, "residual": waiting - sent}, {"update": sent}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id; what is too small to be sent waits here too."""
        updates = (message["update"] for message in received)
        waiting = summed(server["residual"], self.server_lr * cohort.shares(self.weights), updates)
        sent = ternary(waiting, kept(self.task.n, self.p_down))
        return {"w": server["w"] + sent, "move": sent, "residual": waiting - sent}


def kept(n: int, share: float) -> int:
    """ceil(p n), the number of weights that are sent."""
    if not 0 < share <= 1:
        raise UserError(f"algorithm.p_up and p_down must be in (0, 1], got {share}", "the paper uses 1/400")
    return min(n, ceil(share * n))


def ternary(x: Tensor, count: int) -> Tensor:
    """The `count` largest of (..., n) values by magnitude, each with its sign and the mean of their magnitudes."""
    at = x.abs().topk(count, -1).indices
    largest = x.gather(-1, at)
    equal = torch.where(largest == 0, largest, largest.abs().mean(-1, keepdim=True) * sign(largest))
    return torch.zeros_like(x).scatter(-1, at, equal)
