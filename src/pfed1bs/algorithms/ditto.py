"""Ditto: a personal model pulled towards the global one (Li et al., ICML 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.companion import apart, distance, shared_of
from pfed1bs.core.options import NOT_NEGATIVE, option
from pfed1bs.engine.contract import Batches, Cohort, State, blank, buffers_of, model_of, present
from pfed1bs.nn.descent import Walk
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class Ditto(Averaging):
    """A persistent v per client, and FedAvg on the same batches; lam = 0 is Local-only, bit for bit.

    The authors' code draws clients in proportion to N_k and averages them equally; here they are drawn uniformly and
    weighted by N_k, as in all methods, which has the same mean. A round takes 2 R gradients.
    """

    lam: float = option(0.1, "lambda: pull of the personal model towards the received one", NOT_NEGATIVE)

    paper: ClassVar[str] = "Li et al., ICML 2021"
    personalises: ClassVar[bool] = True

    def gradients(self, steps: int) -> int:
        """One of each model."""
        return 2 * steps

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        server, state = super().init(clients)
        velocity = present(velocity=blank(state["w"]) if self.momentum else None)
        return server, {**state, **apart(self.task.buffers(clients)), **velocity}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of both models; the personal one is pulled towards the model as it was received."""
        start, shared = self.begin(shared_of(clients), received)
        walk = Walk(start, None, shared, torch.zeros(len(start)))
        own = Walk(clients["w"], clients.get("velocity"), buffers_of(clients), walk.loss)
        for x, y in batches():
            own = self.descent.advance(own, x, y, own.w - start if self.lam else None, self.lam)
            walk = self.descent.advance(walk, x, y)
        state = {"w": own.w, **own.buffers, **apart(walk.buffers), **present(velocity=own.velocity)}
        log = {"log/loss": own.loss, "log/fit": walk.loss, "log/behind": distance(own.w, start, self.lam)}
        return {**state, **log}, self.said(walk.w - start, walk.buffers, cohort)

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The personal model, and the shared one with its own statistics."""
        judged = super().personal(server, shared_of(clients), cohort, batches)
        return {**judged, "personal": model_of(clients)}
