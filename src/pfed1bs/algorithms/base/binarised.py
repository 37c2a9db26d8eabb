"""Bin(u, alpha): every weight of an update drawn as +alpha or -alpha, and the gradients through it (FedBAT)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.compressors import Binary
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.descent import Descent


@dataclass(frozen=True)
class Bin:
    """Everything in place on v = u / (2 alpha), u counted in the distance of its two values: few passes over memory.

    alpha (S, tensors) has a value for every weight tensor. What is no weight stays u.
    """

    code: Binary
    descent: Descent

    def magnitudes(self, u: Tensor) -> Tensor:
        """The mean |u| of every weight tensor, (S, tensors)."""
        return torch.stack([torch.stack([row[part].abs().mean() for part in self.code.weights]) for row in u])

    def widths(self, alpha: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The places of every tensor and the distance of its two values, (S, 1); 1 if it has more than two."""
        yield from zip(self.code.weights, torch.split(2 * alpha, 1, 1), strict=True)
        yield from ((part, torch.ones_like(alpha[:, :1])) for part in self.code.plain)

    def counted(self, u: Tensor, alpha: Tensor) -> Tensor:
        """The v of u, written over it."""
        for part, width in self.widths(alpha):
            u[:, part].div_(width)
        return u

    def draw(self, v: Tensor, w: Tensor, alpha: Tensor, noise: Tensor, model: Tensor) -> Tensor:
        """Write w + Bin(u, alpha) to the model: +alpha with probability v + 1/2, cut to 0 .. 1, else -alpha.

        The noise, uniform in -1/2 .. 1/2, becomes Bin in widths and is returned.
        """
        for part in self.code.weights:
            noise[:, part].lt_(v[:, part]).sub_(0.5)
        for part in self.code.plain:
            noise[:, part] = v[:, part]
        for part, width in self.widths(alpha):
            torch.addcmul(w[:, part], noise[:, part], width, out=model[:, part])
        return noise

    def slope(self, v: Tensor, drawn: Tensor, grad: Tensor) -> Tensor:
        """The gradient to alpha (S, tensors); that to Bin becomes the one to u, and `drawn` is written over.

        Where |u| < alpha: d Bin / d u = 1, d Bin / d alpha = (Bin - u) / alpha; elsewhere 0 and sign(u) = Bin / alpha.
        """
        sums = []
        for part in self.code.weights:
            to, own, whole = grad[:, part], v[:, part], drawn[:, part].mul_(grad[:, part])
            torch.ops.aten.hardtanh_backward.grad_input(to, own, -0.5, 0.5, grad_input=to)
            sums.append(whole.addcmul_(to, own, value=-1).sum(1))
        return 2 * torch.stack(sums, 1)

    def descend(self, v: Tensor, w: Tensor, grad: Tensor, velocity: Tensor | None, *alphas: Tensor) -> None:
        """Step u <- u - lr (grad + mu (w + u)) with momentum; v counts by the first alpha before, the second after."""
        lr, mu, momentum = self.descent.lr, self.descent.mu, self.descent.momentum
        for (part, old), (_, new) in zip(*map(self.widths, alphas), strict=True):
            to = grad[:, part] if velocity is None else velocity[:, part].mul_(momentum).add_(grad[:, part])
            to.add_(w[:, part], alpha=mu).addcmul_(v[:, part], mu * old)
            v[:, part].mul_(old / new).addcmul_(to, -lr / new)

    def ended(self, v: Tensor, w: Tensor, alpha: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The model w + u and Bin(u, alpha), written over v and over what was drawn."""
        for part, width in self.widths(alpha):
            drawn[:, part].mul_(width)
            v[:, part].mul_(width).add_(w[:, part])
        return v, drawn


def noise(cohort: Cohort, name: str, room: Tensor) -> Tensor:
    """The room (S, n), filled with numbers in -1/2 .. 1/2, each row from its client's own stream."""
    for row, whole in zip(room, cohort.integers(name, room.shape[1], room.device), strict=True):
        row.copy_(whole).mul_(2**-32)
    return room
