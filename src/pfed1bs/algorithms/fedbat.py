"""FedBAT: updates that learn to be binary while they are trained (Li et al., ICML 2024)."""

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
        alpha0 = torch.stack([self.magnitudes(own - begun) for own, begun in zip(w, start, strict=True)])
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

    def magnitudes(self, u: Tensor) -> Tensor:
        """The mean |u| of every weight tensor of one client (n,)."""
        return torch.stack([u[part].abs().mean() for part in self.compressor.weights])

    def alpha(self, alpha0: Tensor, a: Tensor) -> Tensor:
        """The step of every weight tensor, (S, tensors)."""
        return (alpha0 * torch.exp(self.rho * a)).clamp(self.alpha_min, self.alpha_max)

    def binarise(
        self, w: Tensor, start: Tensor, alpha: Tensor, cohort: Cohort, name: str, update: Tensor, model: Tensor
    ) -> None:
        """Bin(u, alpha) of u = w - start: +alpha with probability (u / alpha + 1) / 2, cut to 0 .. 1, else -alpha.

        What is no weight stays u. Written are the binary update and the model start + update.
        """
        u = torch.empty_like(w[0])
        for k, sizes in enumerate(alpha.tolist()):  # one client after the other: its weights fit the cache
            drawn = cohort.rows(slice(k, k + 1)).uniform(name, len(u))[0].to(u.device)
            torch.sub(w[k], start[k], out=u)
            for part in self.compressor.plain:
                update[k, part] = u[part]
            for size, part in zip(sizes, self.compressor.weights, strict=True):
                above = u[part].add_(size).add_(drawn[part], alpha=-2 * size)  # u / alpha > 2r - 1
                update[k, part].fill_(size).copysign_(above)
            torch.add(start[k], update[k], out=model[k])

    def descend(
        self, w: Tensor, start: Tensor, update: Tensor, grad: Tensor, alpha: Tensor, velocity: Tensor | None
    ) -> Tensor:
        """Move w in place along the gradient to u, mu w and momentum; the gradient to alpha (S, tensors).

        `grad` is that to the update and becomes the direction.
        """
        slope, u = torch.empty_like(alpha), torch.empty_like(w[0])
        for k, (own, to) in enumerate(zip(w, grad, strict=True)):
            slope[k] = self.chain(to, torch.sub(own, start[k], out=u), update[k], alpha[k])
            to.add_(own, alpha=self.mu)
            if velocity is not None:
                to.add_(velocity[k], alpha=self.momentum)
            own.add_(to, alpha=-self.lr)
        return slope

    def chain(self, grad: Tensor, u: Tensor, update: Tensor, alpha: Tensor) -> Tensor:
        """One client's gradient to alpha (tensors,) from that to the update, which becomes the one to u (n,).

        d Bin / d u is 0 where |u| > alpha and 1 elsewhere; d Bin / d alpha is sign(u) = Bin / alpha there and
        (Bin - u) / alpha elsewhere.
        """
        slopes, scratch = [], torch.empty_like(u)
        for size, part in zip(alpha.tolist(), self.compressor.weights, strict=True):
            to, own, free = grad[part], u[part], scratch[part]
            whole = torch.mul(to, update[part], out=free).sum()
            to.mul_(torch.abs(own, out=free).le_(size))  # in place: 1 and 0 as float32
            slopes.append(whole - torch.mul(to, own, out=free).sum())
        return torch.stack(slopes) / alpha
