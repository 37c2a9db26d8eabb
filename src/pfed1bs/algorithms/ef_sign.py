"""EF-sign: scaled signs both ways, what a message lost is added to the next (Karimireddy et al., ICML 2019)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.core.options import option
from pfed1bs.core.votes import sign, unpack
from pfed1bs.engine.contract import Batches, Cohort, State, blank
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class EFSign(Replica):
    """c = x + e; sign(c) and s = |c|_1 / n are sent, e = c - s sign(c) stays: x is a client's update, or their mean.

    The memory of both sides is that of the two-way variants (Tang et al., ICML 2019). A client's memory rests while it
    is away.
    """

    scales: Literal["one", "tensor"] = option(
        "one", "how many scales a message has: 32 bits, or 32 for each weight tensor"
    )
    weights: Literal["samples", "equal"] = option("samples", "of the clients in the mean")
    server_lr: float = server_step()

    paper: ClassVar[str] = "Karimireddy et al., ICML 2019"

    @property
    def sizes(self) -> list[int]:
        """Numbers of neighbouring weights that share a scale."""
        slices = [part.slice for part in self.task.parts] if self.scales == "tensor" else [slice(0, self.task.n)]
        return [part.stop - part.start for part in slices]

    @property
    def down(self) -> Layout:
        """Signs and scale of the mean."""
        shape = (len(self.sizes),) if self.scales == "tensor" else ()
        return {"signs": Signs(self.task.n), "scale": Floats(shape, least=0)}

    @property
    def up(self) -> Layout:
        """Signs and scale of an update."""
        return self.down

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and nothing lost yet."""
        server, states = super().init(clients)
        zero = torch.zeros_like(server["w"])
        said = {"signs": sign(zero), "scale": torch.zeros(self.down["scale"].shape)}
        return {**server, **said, "error": zero}, {**states, "error": blank(states["w"])}

    def compress(self, c: Tensor) -> tuple[Message, Tensor]:
        """Signs and scales of (..., n) values, and what they lose."""
        scale = torch.stack([part.abs().mean(-1) for part in torch.split(c, self.sizes, -1)], -1)
        said = {"signs": sign(c), "scale": scale if self.scales == "tensor" else scale.squeeze(-1)}
        return said, c - self.move(said, 0)

    def move(self, said: Message, round: int) -> Tensor:
        """Every sign times its scale."""
        if self.scales == "one":
            return said["scale"].unsqueeze(-1) * said["signs"]
        sizes = torch.tensor(self.sizes, device=said["scale"].device)
        return said["scale"].repeat_interleave(sizes, -1) * said["signs"]

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD, compressed together with what was lost before."""
        state, update = self.trained(clients, batches)
        said, error = self.compress(update + clients["error"])
        return {**state, "error": error}, said

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id, compressed together with what was lost before."""
        unpacked = ({**message, "signs": unpack(message["signs"], self.task.n)} for message in received)
        updates = (self.move(message, cohort.round) for message in unpacked)
        said, error = self.compress(summed(server["error"], self.server_lr * cohort.shares(self.weights), updates))
        return {"w": server["w"] + self.move(said, cohort.round), **said, "error": error}
