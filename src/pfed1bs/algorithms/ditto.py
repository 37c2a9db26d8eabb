"""Ditto: a personal model pulled towards the global one (Li et al., ICML 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from pfed1bs.algorithms.base.exact import Companion, apart, shared_of
from pfed1bs.core.options import NOT_NEGATIVE, option
from pfed1bs.engine.contract import Batches, Cohort, State, Walk, buffers_of, present
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class Ditto(Companion):
    """A persistent v per client, and FedAvg on the same batches; lam = 0 is Local-only, bit for bit.

    The authors' code draws clients in proportion to N_k and averages them equally; here they are drawn uniformly and
    weighted by N_k, as in all methods, which has the same mean. A round takes 2 R gradients.
    """

    lam: float = option(0.1, "lambda: pull of the personal model towards the received one", NOT_NEGATIVE)

    paper: ClassVar[str] = "Li et al., ICML 2021"

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of both models; the personal one is pulled towards the model as it was received."""
        start, shared = self._begin(shared_of(clients), received)
        walk = Walk(start, None, shared, torch.zeros(len(start)))
        own = Walk(clients["w"], clients.get("velocity"), buffers_of(clients), walk.loss)
        for x, y in batches():
            own = self.descent.advance(own, x, y, own.w - start if self.lam else None, self.lam)
            walk = self.descent.advance(walk, x, y)
        state = {"w": own.w, **own.buffers, **apart(walk.buffers), **present(velocity=own.velocity)}
        return {**state, "log/loss": own.loss}, self.said(walk.w - start, walk.buffers, cohort)
