"""FedProx: FedAvg whose clients are held back near the shared model (Li et al., MLSys 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.core.options import NOT_NEGATIVE, option
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.nn.descent import Walk
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class FedProx(Averaging):
    """As published, with a fixed number of local steps for all; prox = 0 is FedAvg, bit for bit."""

    prox: float = option(0.01, "mu_p: pull towards the shared model of the round", NOT_NEGATIVE)

    paper: ClassVar[str] = "Li et al., MLSys 2020"

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD on the loss and (mu_p / 2) |w - start|^2."""
        start, buffers = self.begin(clients, received)
        walk = Walk(start, None, buffers, torch.zeros(len(start)))
        for x, y in batches():
            walk = self.descent.advance(walk, x, y, walk.w - start if self.prox else None, self.prox)
        state = {"w": walk.w, **walk.buffers, "log/loss": walk.loss}
        return state, self.said(walk.w - start, walk.buffers, cohort)
