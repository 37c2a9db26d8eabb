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
        w, velocity = w if warm else w.clone(), None
        u, update, model = w - start, torch.empty_like(w), torch.empty_like(w)
        alpha0 = self.magnitudes(u)
        a = torch.zeros_like(alpha0)
        for step, (x, y) in enumerate(steps, warm):
            alpha = self.alpha(alpha0, a)
            self.binarise(u, alpha, cohort, f"fedbat/{step}", out=update)
            grad, loss, buffers = self.task.gradient(torch.add(start, update, out=model), x, y, buffers)
            slope = self.chain(grad, u, update, alpha)
            grad.add_(w, alpha=self.mu)
            if self.momentum:
                velocity = grad if velocity is None else grad.add_(velocity, alpha=self.momentum)
            torch.sub(w.add_(grad, alpha=-self.lr), start, out=u)
            free = (alpha > self.alpha_min) & (alpha < self.alpha_max)
            a = a - self.lr * self.rho * alpha * slope * free
        self.binarise(u, self.alpha(alpha0, a), cohort, "fedbat/sent", out=update)
        said = {**self.compressor.compress(update, cohort), **{name: buffers[name] for name in self.statistics}}
        return {"w": w, **buffers, "log/loss": loss}, said

    def magnitudes(self, u: Tensor) -> Tensor:
        """The mean |u| of every weight tensor, (S, tensors)."""
        return torch.stack([u[:, part].abs().mean(1) for part in self.compressor.weights], 1)

    def alpha(self, alpha0: Tensor, a: Tensor) -> Tensor:
        """The step of every weight tensor, (S, tensors)."""
        return (alpha0 * torch.exp(self.rho * a)).clamp(self.alpha_min, self.alpha_max)

    def binarise(self, u: Tensor, alpha: Tensor, cohort: Cohort, name: str, out: Tensor) -> None:
        """Bin(u, alpha): +alpha with probability (u / alpha + 1) / 2, cut to 0 .. 1, else -alpha; the rest as it is."""
        for k, own in enumerate(u):  # one client after the other: its weights fit the cache
            drawn = cohort.rows(slice(k, k + 1)).uniform(name, len(own))[0].to(u.device)
            for part in self.compressor.plain:
                out[k, part] = own[part]
            for i, part in enumerate(self.compressor.weights):
                above = torch.addcmul(own[part] + alpha[k, i], drawn[part], alpha[k, i], value=-2)  # u / alpha > 2r - 1
                torch.copysign(alpha[k, i], above, out=out[k, part])

    def chain(self, grad: Tensor, u: Tensor, update: Tensor, alpha: Tensor) -> Tensor:
        """The gradient to alpha (S, tensors) from that to the update, which becomes the one to u: 0 where |u| > alpha.

        d Bin / d alpha is Bin / alpha - u / alpha inside and sign(u) outside, where that is Bin / alpha.
        """
        slope = torch.empty_like(alpha)
        for k in range(len(u)):
            for i, part in enumerate(self.compressor.weights):
                slope[k, i] = (grad[k, part] * update[k, part]).sum()
                grad[k, part] *= u[k, part].abs().le_(alpha[k, i])  # in place: 1 and 0 as float32
                slope[k, i] -= (grad[k, part] * u[k, part]).sum()
        return slope / alpha
