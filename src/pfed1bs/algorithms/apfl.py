"""APFL: a personal model as a mixture of an own and the shared one (Deng et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.companion import apart, shared_of
from pfed1bs.core.options import SHARE, option
from pfed1bs.engine.contract import Batches, Cohort, State, blank, buffers_of, model_of, present
from pfed1bs.nn.descent import Walk
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class APFL(Averaging):
    """Judged is the mixture alpha v + (1 - alpha) w_k; alpha = 1 is Local-only, to rounding.

    Published codes disagree on the order; here a step of w_k, then the mixture, then a step of v by the gradient at the
    mixture times alpha. The weight adapts, if asked to, in the first step of a round, where w_k is still close to the
    shared model. Kept at the client are v and the mixture, not w_k, which every round begins anew. 2 R gradients.
    """

    alpha: float = option(0.5, "share of the own model in the mixture (the first one, if it adapts)", SHARE)
    adaptive: bool = option(False, "whether each client learns its alpha")

    paper: ClassVar[str] = "Deng et al., arXiv 2003.13461"
    personalises: ClassVar[bool] = True

    def gradients(self, steps: int) -> int:
        """One of each model."""
        return 2 * steps

    def init(self, clients: int) -> tuple[State, State]:
        """Own models and mixtures begin as the shared one."""
        server, state = super().init(clients)
        velocity = present(velocity=blank(state["w"]) if self.momentum else None)
        own = {"alpha": torch.full((clients, 1), self.alpha), "own": state["w"]}
        return server, {**own, **state, **apart(self.task.buffers(clients)), **velocity}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of the shared and of the own model, on the same batches."""
        start, shared = self.begin(shared_of(clients), received)
        walk = Walk(start, None, shared, torch.zeros(len(start)))
        v, alpha, buffers, velocity = clients["own"], clients["alpha"], buffers_of(clients), clients.get("velocity")
        for step, (x, y) in enumerate(batches()):
            walk = self.descent.advance(walk, x, y)
            w = walk.w
            grad, loss, buffers = self.task.gradient(mixed(alpha, v, w), x, y, buffers)
            slope = ((v - w) * grad).sum(1, keepdim=True)  # of the loss at the mixture, in alpha
            v, velocity = self.descent.step(v, alpha * grad, velocity)
            if self.adaptive and not step:
                alpha = (alpha - self.lr * slope).clamp(0, 1)
        state = {"alpha": alpha, "own": v, "w": mixed(alpha, v, w), **buffers, **apart(walk.buffers)}
        log = {"log/loss": loss, "log/fit": walk.loss}
        return {**state, **present(velocity=velocity), **log}, self.said(w - start, walk.buffers, cohort)

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The personal model, and the shared one with its own statistics."""
        judged = super().personal(server, shared_of(clients), cohort, batches)
        return {**judged, "personal": model_of(clients)}


def mixed(alpha: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Alpha v + (1 - alpha) w for every client."""
    return alpha * v + (1 - alpha) * w
