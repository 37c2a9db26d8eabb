"""Averaging in full precision, for methods that differ from FedAvg in what a client does with the shared model."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.compressors import Compressor, Dense
from pfed1bs.engine.contract import Batches, Cohort, State, model_of, present
from pfed1bs.wire.messages import Message

APART = "shared/"  # what the keys of the shared model's buffers begin with where a personal model is kept beside it


@dataclass(frozen=True)
class Exact(Averaging):
    """Float32 weights down, float32 updates up, and their weighted mean."""

    @property
    def compressor(self) -> Compressor:
        """Updates as they are."""
        return Dense(self.task.n)

    def said(self, update: Tensor, buffers: State, cohort: Cohort) -> Message:
        """What the clients answer after they moved by `update` (S, n)."""
        return {**self.compressor.compress(update, cohort), **{name: buffers[name] for name in self.statistics}}


@dataclass(frozen=True)
class Companion(Exact):
    """A personal model, kept at the client as "w" with its own statistics and velocity, beside the shared one.

    The shared model's statistics stand under "shared/buffer/...": two models must not write into one BatchNorm.
    """

    personalises: ClassVar[bool] = True

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        server, state = super().init(clients)
        velocity = present(velocity=0 * state["w"] if self.momentum else None)
        return server, {**state, **apart(self.task.buffers(clients)), **velocity}

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The personal model, and the shared one with its own statistics."""
        judged = super().personal(server, shared_of(clients), cohort, batches)
        return {**judged, "personal": model_of(clients)}


def apart(buffers: State) -> State:
    """Buffers of the shared model under the keys they are kept by."""
    return {APART + name: value for name, value in buffers.items()}


def shared_of(clients: State) -> State:
    """The clients as the shared model knows them: its own buffers, and as many rows of weights."""
    own = {name.removeprefix(APART): value for name, value in clients.items() if name.startswith(APART)}
    return {"w": clients["w"], **own}
