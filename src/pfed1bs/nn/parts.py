"""What of a module is trained, where it lies inside flat weights, and what stays as it was built."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

State = dict[str, Tensor]

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Part:
    """One parameter tensor inside the flat weights."""

    name: str
    slice: slice
    shape: tuple[int, ...]
    kind: Literal["weight", "bias", "norm"]  # norm: scale and shift of a normalisation layer
    head: bool  # belongs to the last linear layer


@dataclass(frozen=True)
class Constants:
    """Parameters that are not trained, the same for all clients, held once on every device that needs them."""

    values: State
    _moved: dict[torch.device, State] = field(default_factory=dict)

    def stacked(self, clients: int, device: torch.device) -> State:
        """One row that is shown to all clients, of each."""
        if device not in self._moved:
            self._moved[device] = {name: value.to(device) for name, value in self.values.items()}
        return {name: value.expand(clients, *value.shape) for name, value in self._moved[device].items()}


def parts_of(module: nn.Module, head: str | None) -> tuple[Part, ...]:
    """The trained parameters one after the other; `head` is the name of the last linear layer."""
    parts: list[Part] = []
    start = 0
    for name, value in module.named_parameters():
        if not value.requires_grad:
            continue
        owner = name.rpartition(".")[0]
        norm = isinstance(module.get_submodule(owner), NORMS)
        kind: Literal["weight", "bias", "norm"] = "norm" if norm else "weight" if value.dim() > 1 else "bias"
        stop = start + math.prod(value.shape)
        parts.append(Part(name, slice(start, stop), tuple(value.shape), kind, owner == head))
        start = stop
    return tuple(parts)
