"""FedBAT: updates that learn to be binary while they are trained (Li et al., ICML 2024)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithm import Batches, Cohort, State
from pfed1bs.algorithms.averaging import Averaging
from pfed1bs.compressors import Binary
from pfed1bs.wire import Message

BLOCK = 1 << 18  # weights that are worked on at once, so that they stay in the second-level cache


@dataclass(frozen=True)
class FedBAT(Averaging):
    """After a warm-up the model is w + Bin(u, alpha), alpha = alpha0 exp(rho a), `a` learned for every weight tensor.

    Bin draws +-alpha anew in every step, with mean clip(u, -alpha, alpha). Biases and normalisation stay in float32,
    where the authors' code drops biases; clients weigh by samples, not by batches; a round has R steps for all methods,
    not ten epochs. Momentum rests again after the warm-up. The client's own model is w + u.
    """

    rho: float = 6.0  # how fast alpha follows its parameter
    warm_up: float = 0.5  # phi: share of the steps with a real-valued update
    alpha_min: float = 5e-4  # least alpha
    alpha_max: float = 5e-2  # largest alpha

    paper: ClassVar[str] = "Li et al., ICML 2024"

    @cached_property
    def compressor(self) -> Binary:
        """A bit per weight."""
        return Binary(self.task.parts)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """Warm-up steps with the real-valued update u, the others with a binary one."""
        start, buffers = self._begin(clients, received)
        steps, warm = batches(), int(self.warm_up * batches.steps)
        w, buffers, loss = self.descent.run(start, buffers, islice(steps, warm))
        w, update, model = w if warm else w.clone(), torch.empty_like(w), torch.empty_like(w)
        alpha0 = self.magnitudes(w, start)
        a, room, velocity = torch.zeros_like(alpha0), None, None
        for step, (x, y) in enumerate(steps, warm):
            alpha = self.alpha(alpha0, a)
            self.binarise(w, start, alpha, cohort, f"fedbat/{step}", update, model)
            grad, loss, buffers = self.task.gradient(model, x, y, buffers, out=room)
            slope = self.descend(w, start, update, grad, alpha, velocity)
            room, velocity = (None, grad) if self.momentum else (grad, None)
            free = (alpha > self.alpha_min) & (alpha < self.alpha_max)
            a = a - self.lr * self.rho * alpha * slope * free
        self.binarise(w, start, self.alpha(alpha0, a), cohort, "fedbat/sent", update, model)
        said = {**self.compressor.compress(update, cohort), **{name: buffers[name] for name in self.statistics}}
        return {"w": w, **buffers, "log/loss": loss}, said

    def magnitudes(self, w: Tensor, start: Tensor) -> Tensor:
        """The mean |w - start| of every weight tensor, (S, tensors)."""
        sizes = torch.empty(len(w), len(self.compressor.weights), device=w.device)
        for i, at in self.blocks(len(w)):
            sizes[at[0], i] = (w[at] - start[at]).abs_().mean(1)
        return sizes

    def alpha(self, alpha0: Tensor, a: Tensor) -> Tensor:
        """The step of every weight tensor, (S, tensors)."""
        return (alpha0 * torch.exp(self.rho * a)).clamp(self.alpha_min, self.alpha_max)

    def blocks(self, clients: int) -> Iterator[tuple[int, tuple[slice, slice]]]:
        """Rows and columns that fit the cache, with the number of their weight tensor: few clients of a long tensor."""
        for i, part in enumerate(self.compressor.weights):
            step = max(1, BLOCK // (part.stop - part.start))
            yield from ((i, (slice(k, k + step), part)) for k in range(0, clients, step))

    def binarise(
        self, w: Tensor, start: Tensor, alpha: Tensor, cohort: Cohort, name: str, update: Tensor, model: Tensor
    ) -> None:
        """Bin(u, alpha) of u = w - start: +alpha with probability (u / alpha + 1) / 2, cut to 0 .. 1, else -alpha.

        What is no weight stays u. Written are the binary update and the model start + update.
        """
        drawn = cohort.uniform(name, w.shape[1]).to(w.device)
        for i, at in self.blocks(len(w)):
            size, begun = alpha[at[0], i : i + 1], start[at]
            above = (w[at] - begun).add_(size).sub_(drawn[at].mul_(2 * size))  # u / alpha > 2r - 1
            torch.add(begun, update[at].copy_(size).copysign_(above), out=model[at])
        for part in self.compressor.plain:
            update[:, part] = w[:, part] - start[:, part]
            model[:, part] = start[:, part] + update[:, part]

    def descend(
        self, w: Tensor, start: Tensor, update: Tensor, grad: Tensor, alpha: Tensor, velocity: Tensor | None
    ) -> Tensor:
        """Move w in place along the gradient to u, mu w and momentum; the gradient to alpha (S, tensors).

        `grad` is that to the update and becomes the direction. d Bin / d u is 0 where |u| > alpha and 1 elsewhere;
        d Bin / d alpha is sign(u) = Bin / alpha there and (Bin - u) / alpha elsewhere.
        """
        slope = torch.empty_like(alpha)
        for i, at in self.blocks(len(w)):
            own, to = w[at], grad[at]
            u = own - start[at]
            whole = (to * update[at]).sum(1)
            to.mul_(u.abs().le_(alpha[at[0], i : i + 1]))  # in place: 1 and 0 as float32
            slope[at[0], i] = whole - u.mul_(to).sum(1)
            self.walk(own, to, None if velocity is None else velocity[at])
        for part in self.compressor.plain:
            self.walk(w[:, part], grad[:, part], None if velocity is None else velocity[:, part])
        return slope / alpha

    def walk(self, w: Tensor, grad: Tensor, velocity: Tensor | None) -> None:
        """Add ridge and momentum to the gradient, and move w along it, all in place."""
        grad.add_(w, alpha=self.mu)
        if velocity is not None:
            grad.add_(velocity, alpha=self.momentum)
        w.add_(grad, alpha=-self.lr)
