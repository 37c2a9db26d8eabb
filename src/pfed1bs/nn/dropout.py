"""Dropout whose draws come from each client's own stream, not from the global random state."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pfed1bs.core.rng import MASK, sequence, signed, stream

KEY = "key"  # the buffer of a layer that draws
WHOLE = 1 << 24  # draws are multiples of 1 / WHOLE


class Dropout(nn.Module):
    """Zeroes numbers, or whole channels (axis 1, after the samples), with probability p.

    The key is a buffer of the client, like the statistics of BatchNorm: it stays there, is saved with the rest of the
    state, and counts the draws. So a client draws the same alone as in a stack, and after a resume.
    """

    key: Tensor

    def __init__(self, p: float, channels: bool) -> None:
        super().__init__()
        self.p, self.channels = p, channels
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training mode; what is left is scaled up to keep the mean."""
        if not self.training or not self.p:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape
        keep = (uniform(self.key, shape) >= int(self.p * WHOLE)).to(x.dtype)
        self.key.add_(1)
        return x * keep * (1 / (1 - self.p) if self.p < 1 else 0.0)


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Whole numbers below 2^24 from the SplitMix64 sequence of a key, the same on every device."""
    return sequence(key, torch.Size(shape).numel()).bitwise_and_(WHOLE - 1).view(shape)


def replaced(module: nn.Module) -> nn.Module:
    """The module with every layer torch.nn.Dropout, also for channels, replaced by one that draws from its key."""
    for name, layer in [*module._modules.items()]:
        if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            setattr(module, name, Dropout(layer.p, not isinstance(layer, nn.Dropout)))
        elif layer is not None:
            replaced(layer)
    return module


def keys(module: nn.Module) -> Iterator[str]:
    """The names of the keys in a module."""
    yield from (f"{name}.{KEY}" for name, layer in module.named_modules() if isinstance(layer, Dropout))


def first(seed: int, name: str, clients: int) -> Tensor:
    """The first keys of a layer at all clients, (clients,)."""
    drawn = [stream(seed, "dropout", name, client).initial_seed() for client in range(clients)]
    return torch.tensor([signed(word & MASK) for word in drawn], dtype=torch.int64)
