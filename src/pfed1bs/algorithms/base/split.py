"""What methods share whose clients average the body of a model and keep its head, the last linear layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.exact import Exact
from pfed1bs.compressors import Compressor
from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Body:
    """The update of the body in float32; that of the head is not sent and counts as none."""

    mask: Tensor  # (n,) true for the body

    @property
    def layout(self) -> Layout:
        """The update of the body."""
        return {"update": Floats((int(self.mask.sum()),))}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """The columns of the body."""
        return {"update": update[:, self.mask.to(update.device)]}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """The same among zeros."""
        return torch.zeros(len(self.mask)).masked_scatter(self.mask, message["update"])


@dataclass(frozen=True)
class Split(Exact):
    """Exact averaging of the body; judged is the averaged body under the client's own head."""

    personalises: ClassVar[bool] = True

    @cached_property
    def body(self) -> Tensor:
        """(n,) true for the weights that are averaged."""
        return body(self.task)

    @property
    def compressor(self) -> Compressor:
        """The body's updates as they are."""
        return Body(self.body)

    @property
    def down(self) -> Layout:
        """The averaged body."""
        return {**super().down, "w": Floats((int(self.body.sum()),))}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The averaged body; the server's head stays as it was drawn and is never used."""
        return {**super().broadcast(server, cohort), "w": server["w"][self.body.to(server["w"].device)]}

    def _begin(self, clients: State, received: State) -> tuple[Tensor, State]:
        _, buffers = super()._begin(clients, received)
        w = clients["w"].clone()
        w[:, self.body.to(w.device)] = received["w"]
        return w, buffers

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """What a client would begin the next round with, and the same fine-tuned."""
        judged = super().personal(self.broadcast(server, cohort), clients, cohort, batches)
        return {"personal": judged["global"], "tuned": judged["tuned"]}


def body(task: Task) -> Tensor:
    """(n,) true for all weights but those of the last linear layer."""
    mask = torch.ones(task.n, dtype=torch.bool)
    for part in task.parts:
        if part.head:
            mask[part.slice] = False
    if mask.all() or not mask.any():
        raise UserError(
            "a model is split into its last torch.nn.Linear and the body before it, and this one has not both",
            "add a layer, or choose a method that averages whole models",
        )
    return mask
