"""The common case of the contract, in one place: a personal model in clients["w"], trained by SGD, and no replica."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.options import BELOW_ONE, NOT_NEGATIVE, POSITIVE, keys, option
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, Judged, State, buffers_of, model_of
from pfed1bs.nn.descent import Descent
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import Kind, Layout, Message


def one_label(method: str, y: Tensor) -> None:
    """Refuse targets (S, B, ...) other than a class for every sample, for methods that need one."""
    if y.dim() != 2 or y.is_floating_point():
        raise UserError(
            f"{method} needs one class label a sample, and these targets have shape {tuple(y.shape[2:])} of {y.dtype}",
            "choose a method that needs none; `pfed1bs list` shows all",
        )


@dataclass(frozen=True)
class Method(Algorithm):
    """To be said by a method: paper, personalises, down, up, init, broadcast, local, aggregate."""

    task: Task
    seed: int = 0
    lr: float = option(0.05, "eta: step size at the clients", POSITIVE, role="optimiser")
    mu: float = option(1e-5, "ridge", NOT_NEGATIVE, role="optimiser")
    momentum: float = option(0.0, "starts from rest in every round", BELOW_ONE, role="optimiser")

    replicates: ClassVar[bool] = False
    judged_with: ClassVar[Judged] = "nothing"

    @property
    def descent(self) -> Descent:
        """SGD with the options of the method."""
        return Descent(self.task, self.lr, self.mu, self.momentum)

    @property
    def rests(self) -> bool:
        """No: there is no shared model to rest from, or the own one is part of it."""
        return False

    @property
    def kept(self) -> bool:
        """Whether the personal model is the one that the client keeps: here it is, unless a method judges another."""
        return type(self).personal is Method.personal

    @property
    def trains(self) -> Literal["sampled", "all"]:
        """The sampled clients."""
        return "sampled"

    @property
    def snapshot_layout(self) -> Layout:
        """None."""
        return {}

    def gradients(self, steps: int) -> int:
        """How many a client computes in a round of so many local steps: one in each."""
        return steps

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Nothing is kept of a broadcast."""
        return clients

    def snapshot(self, server: State) -> Message | None:
        """None."""
        return None

    def anchor(self, round: int) -> int:
        """The round itself."""
        return round

    def replica(self, state: State) -> Tensor | None:
        """The clients' "theta", at the server "theta" or "w", where there are copies."""
        return state.get("theta", state.get("w")) if self.replicates else None

    def known(self, state: State, kind: Kind, round: int) -> Message:
        """Nothing."""
        return {}

    def diagnose(self, server: State, message: Message) -> State:
        """Nothing."""
        return {}

    def penalties(self, server: State, clients: State, round: int) -> State:
        """None."""
        return {}

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The client's model."""
        return {"personal": model_of(clients)}

    def predict(self, model: State, x: Tensor) -> Tensor:
        """The logits of its network."""
        return self.task.logits(model["w"], x, buffers_of(model))

    @property
    def remark(self) -> str:
        """Nothing."""
        return ""

    def idle(self, *names: str) -> str:
        """Which of these options, that nothing asks for, were given all the same."""
        given = [name for name in names if getattr(self, name) != keys(type(self))[name].default]
        return f"{', '.join(given)} changes nothing beside the other options" if given else ""
