"""FedBAT: updates that learn to be binary while they are trained (Li et al., ICML 2024)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.compressors import Binary
from pfed1bs.core.options import POSITIVE, SHARE, option
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class FedBAT(Averaging):
    """After a warm-up the model is w + Bin(u, alpha), alpha = alpha0 exp(rho a), `a` learned for every weight tensor.

    Bin draws +-alpha anew in every step, with mean clip(u, -alpha, alpha). Biases and normalisation stay in float32,
    where the authors' code drops biases; clients weigh by samples, not by batches; a round has R steps for all methods,
    not ten epochs. Momentum rests again after the warm-up. The client's own model is w + u.
    """

    rho: float = option(6.0, "how fast alpha follows its parameter", POSITIVE)
    warm_up: float = option(0.5, "phi: share of the steps with a real-valued update", SHARE)
    alpha_min: float = option(5e-4, "least alpha", POSITIVE)
    alpha_max: float = option(5e-2, "largest alpha", POSITIVE)

    paper: ClassVar[str] = "Li et al., ICML 2024"

    @cached_property
    def compressor(self) -> Binary:
        """A bit per weight."""
        return Binary(self.task.parts)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """Warm-up steps with the real-valued update u, the others with a binary one, for which v = u / (2 alpha)."""
        start, buffers = self._begin(clients, received)
        steps, warm = batches(), int(self.warm_up * batches.steps)
        w, buffers, loss = self.descent.run(start, buffers, islice(steps, warm))
        v, model, room = w.sub_(start) if warm else torch.zeros_like(w), torch.empty_like(w), torch.empty(w.shape)
        alpha0, velocity = self.magnitudes(v), torch.zeros_like(v) if self.momentum else None
        a, alpha = torch.zeros_like(alpha0), self.alpha(alpha0, torch.zeros_like(alpha0))
        for part, width in self.widths(alpha):
            v[:, part].div_(width)
        for step, (x, y) in enumerate(steps, warm):
            bits = self.binarise(v, start, alpha, drawn(cohort, f"fedbat/{step}", room).to(w.device), model)
            grad, loss, buffers = self.task.gradient(model, x, y, buffers, out=model)
            free = (alpha > self.alpha_min) & (alpha < self.alpha_max)
            a = a - self.lr * self.rho * alpha * self.slope(v, bits, grad) * free
            self.descend(v, start, grad, velocity, alpha, self.alpha(alpha0, a))
            alpha = self.alpha(alpha0, a)
        bits = self.binarise(v, start, alpha, drawn(cohort, "fedbat/sent", room).to(w.device), model)
        for part, width in self.widths(alpha):
            bits[:, part].mul_(width)
            v[:, part].mul_(width).add_(start[:, part])
        said = {**self.compressor.compress(bits, cohort), **{name: buffers[name] for name in self.statistics}}
        return {"w": v, **buffers, "log/loss": loss}, said

    def magnitudes(self, u: Tensor) -> Tensor:
        """The mean |u| of every weight tensor, (S, tensors)."""
        return torch.stack([torch.stack([row[part].abs().mean() for part in self.compressor.weights]) for row in u])

    def alpha(self, alpha0: Tensor, a: Tensor) -> Tensor:
        """The step of every weight tensor, (S, tensors)."""
        return (alpha0 * torch.exp(self.rho * a)).clamp(self.alpha_min, self.alpha_max)

    def widths(self, alpha: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The places of every tensor and the distance of its two values, (S, 1); 1 if it has more than two."""
        yield from zip(self.compressor.weights, torch.split(2 * alpha, 1, 1), strict=True)
        yield from ((part, torch.ones_like(alpha[:, :1])) for part in self.compressor.plain)

    def binarise(self, v: Tensor, start: Tensor, alpha: Tensor, noise: Tensor, model: Tensor) -> Tensor:
        """Write start + Bin(u, alpha) to the model: +alpha with probability v + 1/2, cut to 0 .. 1, else -alpha.

        The noise, uniform in -1/2 .. 1/2, becomes Bin in widths. What is no weight stays u.
        """
        for part in self.compressor.weights:
            noise[:, part].lt_(v[:, part]).sub_(0.5)
        for part in self.compressor.plain:
            noise[:, part] = v[:, part]
        for part, width in self.widths(alpha):
            torch.addcmul(start[:, part], noise[:, part], width, out=model[:, part])
        return noise

    def slope(self, v: Tensor, bits: Tensor, grad: Tensor) -> Tensor:
        """The gradient to alpha (S, tensors); that to Bin becomes the one to u, and the bits are written over.

        Where |u| < alpha: d Bin / d u = 1, d Bin / d alpha = (Bin - u) / alpha; elsewhere 0 and sign(u) = Bin / alpha.
        """
        sums = []
        for part in self.compressor.weights:
            to, own, whole = grad[:, part], v[:, part], bits[:, part].mul_(grad[:, part])
            torch.ops.aten.hardtanh_backward.grad_input(to, own, -0.5, 0.5, grad_input=to)
            sums.append(whole.addcmul_(to, own, value=-1).sum(1))
        return 2 * torch.stack(sums, 1)

    def descend(self, v: Tensor, start: Tensor, grad: Tensor, velocity: Tensor | None, *alphas: Tensor) -> None:
        """Move u along its gradient, mu w and momentum; v counts it by the first alpha before, by the second after."""
        for (part, old), (_, new) in zip(*map(self.widths, alphas), strict=True):
            to = grad[:, part] if velocity is None else velocity[:, part].mul_(self.momentum).add_(grad[:, part])
            to.add_(start[:, part], alpha=self.mu).addcmul_(v[:, part], self.mu * old)
            v[:, part].mul_(old / new).addcmul_(to, -self.lr / new)


def drawn(cohort: Cohort, name: str, room: Tensor) -> Tensor:
    """The room (S, n) on the CPU, filled with numbers in -1/2 .. 1/2, each row from its client's own stream."""
    for row, whole in zip(room.numpy(), cohort.integers(name, room.shape[1]), strict=True):
        np.multiply(whole.view(np.int32), 2**-32, out=row, dtype=np.float32, casting="unsafe")
    return room
