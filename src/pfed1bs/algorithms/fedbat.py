"""FedBAT: updates that learn to be binary while they are trained (Li et al., ICML 2024)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.binarised import Bin, noise
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

    @property
    def bin(self) -> Bin:
        """Bin(u, alpha) and its gradients."""
        return Bin(self.compressor, self.descent)

    def alpha(self, alpha0: Tensor, a: Tensor) -> Tensor:
        """The step of every weight tensor, (S, tensors)."""
        return (alpha0 * torch.exp(self.rho * a)).clamp(self.alpha_min, self.alpha_max)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """First phi R steps of w + u, the others of w + Bin(u, alpha); then Bin is drawn once more and sent."""
        w, buffers = self.begin(clients, received)
        steps, warm, binary = batches(), int(self.warm_up * batches.steps), self.bin
        u, buffers, loss = self.descent.run(w, buffers, islice(steps, warm))
        u = u.sub_(w) if warm else torch.zeros_like(u)
        alpha0, velocity = binary.magnitudes(u), torch.zeros_like(u) if self.momentum else None
        a = torch.zeros_like(alpha0)
        alpha = self.alpha(alpha0, a)
        v, model, room = binary.counted(u, alpha), torch.empty_like(u), torch.empty_like(u)  # now u = 2 alpha v
        for step, (x, y) in enumerate(steps, warm):
            drawn = binary.draw(v, w, alpha, noise(cohort, f"fedbat/{step}", room), model)
            grad, loss, buffers = self.task.gradient(model, x, y, buffers, out=model)  # at w + Bin(u, alpha)
            free = (alpha > self.alpha_min) & (alpha < self.alpha_max)  # d alpha / d a = rho alpha, 0 at the bounds
            a = a - self.lr * self.rho * alpha * binary.slope(v, drawn, grad) * free
            binary.descend(v, w, grad, velocity, alpha, self.alpha(alpha0, a))  # u <- u - lr 1[|u| <= alpha] grad
            alpha = self.alpha(alpha0, a)
        drawn = binary.draw(v, w, alpha, noise(cohort, "fedbat/sent", room), model)
        own, update = binary.ended(v, w, alpha, drawn)
        return {"w": own, **buffers, "log/loss": loss}, self.said(update, buffers, cohort)
