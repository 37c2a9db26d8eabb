"""FedRep: a shared body under personal heads, trained in turns (Collins et al., ICML 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.split import body
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import INSIDE, option
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class FedRep(Averaging):
    """The head learns on the frozen body, then the body under the frozen head.

    The paper counts ten epochs for the head and one to five for the body; here both share the R steps of a round, so
    that methods compare at equal work. Bodies are weighted by N_k (the authors' code: equally for CIFAR). Before
    judging, every client trains its head on the last body, as the paper does in its last round, for `tune_steps`.
    """

    head_share: float = option(0.5, "share of the steps of a round that train the head", INSIDE)

    paper: ClassVar[str] = "Collins et al., ICML 2021"
    personalises: ClassVar[bool] = True

    @cached_property
    def body(self) -> Tensor:
        """All weights but the head's."""
        return body(self.task)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """Steps of the head, then steps of the body; momentum starts from rest at the switch."""
        head_steps = self.head_steps(batches.steps)
        start, buffers = self.begin(clients, received)
        w, buffers, _ = self.descend(start, buffers, "head", batches("head", head_steps))
        w, buffers, loss = self.descend(w, buffers, "body", batches("body", batches.steps - head_steps))
        return {"w": w, **buffers, "log/loss": loss}, self.said(w - start, buffers, cohort)

    def head_steps(self, steps: int) -> int:
        """How many of the steps of a round train the head, at least one; at least one is left for the body."""
        if steps < 2 or not 0 < self.head_share < 1:
            raise UserError(
                f"fedrep shares the steps of a round between head and body: it needs steps >= 2, got {steps}, and "
                f"algorithm.head_share inside (0, 1), got {self.head_share}"
            )
        return min(max(round(self.head_share * steps), 1), steps - 1)

    def descend(
        self, w: Tensor, buffers: State, moving: Literal["head", "body"], batches: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, State, Tensor]:
        """Like Descent.run, but only the head or the body moves, neither by momentum nor by ridge the other."""
        names = [part.name for part in self.task.parts if part.head == (moving == "head")]
        free = (self.body if moving == "body" else ~self.body).to(w.device)
        w, velocity, loss = w.clone(), None, torch.zeros(len(w))
        for x, y in batches:
            if not self.momentum:
                w, loss, buffers = self.task.descend(w, x, y, buffers, self.lr, self.mu, out=w, moving=names)
                continue
            grad, loss, buffers = self.task.gradient(w, x, y, buffers)
            stepped, velocity = self.descent.step(w, grad, velocity)
            w = torch.where(free, stepped, w)
        return w, buffers, loss

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The averaged body under the own head, trained once more; and all of it fine-tuned."""
        judged = super().personal(server, clients, cohort, batches)
        w, buffers = self.begin(clients, self.broadcast(server, cohort))
        w, buffers, _ = self.descend(w, buffers, "head", batches("tune", self.tune_steps or None))
        return {**judged, "personal": {"w": w, **buffers}}
