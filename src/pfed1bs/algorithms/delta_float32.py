"""pFed1BS-Delta without compression: the row that tells what its bits cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.following import Following
from pfed1bs.algorithms.base.replica import summed
from pfed1bs.engine.contract import Cohort, State
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class DeltaFloat32(Following):
    """The same shared model, personal models and following; updates and their mean travel in float32.

    The shared step is 1 unless `step` says otherwise: there is no noise that it would have to follow.
    """

    paper: ClassVar[str] = "this project, the reference of docs/delta.md"

    @property
    def down(self) -> Layout:
        """The step of the shared model."""
        return {"move": Floats((self.task.n,))}

    @property
    def up(self) -> Layout:
        """The client's update."""
        return {"update": Floats((self.task.n,))}

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        theta = self.task.init(self.seed)
        return {"theta": theta, "move": torch.zeros_like(theta)}, self.first(theta, clients)

    def heard(self, said: Message, round: int) -> Tensor:
        """The message itself."""
        return said["move"]

    def spoken(self, clients: State, delta: Tensor, round: int) -> tuple[State, Message]:
        """The update itself; nothing stays."""
        return {}, {"update": delta}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The step eta_g sum_k p_k Delta_k."""
        eta, updates = self.size(cohort), (message["update"] for message in received)
        move = eta * summed(torch.zeros_like(server["theta"]), cohort.weights, updates)
        logged = {"log/shift": move.norm(), "log/step": torch.tensor(eta)}
        return {"theta": server["theta"] + move, "move": move, **logged}
