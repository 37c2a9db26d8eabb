"""Local-only training: every client alone, the floor that any federation has to beat."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from pfed1bs.algorithms.base.method import Method
from pfed1bs.core.options import BELOW_ONE, option
from pfed1bs.engine.contract import Batches, Cohort, State, blank, buffers_of, present, stack
from pfed1bs.nn.descent import Walk
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Local(Method):
    """Nothing is sent. `train` says whether clients that are not sampled train too, as in pfed1bs."""

    momentum: float = option(0.0, "velocity persists over rounds", BELOW_ONE, role="optimiser")
    train: Literal["sampled", "all"] = option("sampled", "who does local work in a round")

    paper: ClassVar[str] = "training alone"
    personalises: ClassVar[bool] = True

    @property
    def down(self) -> Layout:
        """Nothing."""
        return {}

    @property
    def up(self) -> Layout:
        """Nothing."""
        return {}

    @property
    def trains(self) -> Literal["sampled", "all"]:
        """As configured."""
        return self.train

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        w = stack(self.task.init(self.seed), clients)
        return {}, {"w": w, **self.task.buffers(clients), **present(velocity=blank(w) if self.momentum else None)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """Nothing."""
        return {}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD."""
        walk = Walk(clients["w"], clients.get("velocity"), buffers_of(clients), torch.zeros(len(cohort.ids)))
        for x, y in batches():
            walk = self.descent.advance(walk, x, y)
        return {"w": walk.w, **walk.buffers, **present(velocity=walk.velocity), "log/loss": walk.loss}, {}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """Nothing to do."""
        return server
