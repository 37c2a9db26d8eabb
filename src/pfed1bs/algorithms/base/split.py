"""What of a model is averaged, and what stays at the client: the head, the last linear layer, or normalisation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.parts import Part
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


def body(task: Task) -> Tensor:
    """(n,) true for all weights but those of the last linear layer."""
    mask = torch.ones(task.n, dtype=torch.bool)
    for part in task.parts:
        if part.head:
            mask[part.slice] = False
    if mask.all() or not mask.any():  # no head, or nothing but a head
        raise UserError(
            "a model is split into its head, the last torch.nn.Linear, and the body before it, and this one has not "
            "both to train",
            "add a layer, or choose a method that averages whole models",
        )
    return mask


def norms(task: Task) -> Tensor:
    """(n,) true for scale and shift of normalisation layers."""
    mask = torch.zeros(task.n, dtype=torch.bool)
    for part in task.parts:
        mask[part.slice] = part.kind == "norm"
    return mask


def head(task: Task, method: str) -> Part:
    """The weight of the last linear layer, (classes, d); a task that has none is refused in the name of `method`."""
    for part in task.parts:
        if part.head and part.kind == "weight":
            return part
    raise UserError(
        f"{method} needs a model that ends in a trainable torch.nn.Linear, and this one has none",
        "end the model in one, or choose a method that needs no features",
    )
