"""The contract of a federated method, and the few helpers that most methods share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.rng import MASK, stream, words
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import Kind, Layout, Message

State = dict[str, Tensor]  # named tensors; client states have a leading client axis; "log/..." goes to metrics.jsonl


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, ascending by id, as both sides know them."""

    seed: int
    round: int
    ids: Tensor  # (S,)
    sizes: Tensor  # (S,) training samples
    seen: Tensor  # (S,) round of the last broadcast held, -1: none

    @cached_property
    def weights(self) -> Tensor:
        """(S,) shares N_k / sum N in float64, on the CPU."""
        sizes = self.sizes.cpu().double()
        return sizes / sizes.sum()

    def shares(self, weights: Literal["samples", "equal"]) -> Tensor:
        """(S,) shares by samples, or 1 / S each, in float64, on the CPU."""
        return self.weights if weights == "samples" else torch.ones_like(self.weights) / len(self.ids)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """(S, *shape) numbers in [0, 1), multiples of 2^-24, on the CPU; row i from client ids[i]'s own stream."""
        drawn = torch.empty(len(self.ids), prod(shape))
        for row, whole in zip(drawn, self.integers(name, prod(shape)), strict=True):
            whole >>= 8  # in place, where a new array would be fresh memory
            row.copy_(torch.from_numpy(whole.view(np.int32))).mul_(2**-24)
        return drawn.view(-1, *shape)

    def integers(self, name: str, count: int) -> Iterator[NDArray[np.uint32]]:
        """`count` numbers of 32 bits for one client after the other, each from the client's own stream."""
        for client in self.ids.tolist():
            own = stream(self.seed, name, client, self.round).initial_seed() & MASK
            yield words(own, (count + 1) // 2).view(np.uint32)[:count]

    def rows(self, at: Tensor | slice) -> "Cohort":
        """The same round for some of its clients."""
        return Cohort(self.seed, self.round, self.ids[at], self.sizes[at], self.seen[at])


class Batches(Protocol):
    """Mini-batches of a cohort: R pairs of inputs (S, B, ...) and labels (S, B)."""

    @property
    def steps(self) -> int:
        """R, the number of local steps of a round."""
        ...

    def __call__(self, name: str = "train", steps: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one purpose, the same at every call."""
        ...


class Algorithm(Protocol):
    """A federated method: pure functions of states, with hyper-parameters as dataclass fields.

    What stands below with a body is the common case: no replica, a personal model in clients["w"].
    """

    task: Task
    seed: int
    paper: ClassVar[str]  # where the method comes from
    personalises: ClassVar[bool]  # ends with a model per client that differs by more than fine-tuning

    @property
    def down(self) -> Layout:
        """Fields sent by the server."""
        ...

    @property
    def up(self) -> Layout:
        """Fields sent by each client."""
        ...

    @property
    def trains(self) -> Literal["sampled", "all"]:
        """Who does local work in a round."""
        return "sampled"

    def init(self, clients: int) -> tuple[State, State]:
        """Server state and client states at round 0, the same at every party for the same seed."""
        ...

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """What the server says at the start of a round: fields common to all, or with a leading axis (S, ...)."""
        ...

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """What a client does with every broadcast, late ones too."""
        return clients

    def snapshot(self, server: State) -> Message | None:
        """What replaces all missed broadcasts, in the layout {name: Floats}; None: there is no such thing."""
        return None

    def known(self, state: State, kind: Kind, round: int) -> Message:
        """What both sides hold of the fields of a message before it is sent, from the state of either of them.

        Server: "down" before the round (for clients that heard the last broadcast), "up" before `aggregate`. Clients:
        "down" before they hear, "up" after `local`, every field with a leading axis. Codecs may send the difference.
        """
        return {}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The work of a round at the clients, and what each of them says; every field (S, ...)."""
        ...

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The new server state; messages are decoded lazily, ascending by id, signs still packed."""
        ...

    def diagnose(self, server: State, message: Message) -> State:
        """What to watch in one client's message, taken while `aggregate` decodes it; "log/..." keys.

        Numbers are logged as their mean. A field of `up` with packed signs, under its name, is logged at evaluations
        as mean distances of the clients' signs.
        """
        return {}

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The weights that are judged, by name: "personal", and where they exist "global" and "tuned"."""
        return {"personal": model_of(clients)}


def replicates(algorithm: Algorithm) -> bool:
    """Whether broadcasts build on each other, so that every client must absorb each of them."""
    return type(algorithm).absorb is not Algorithm.absorb


def buffers_of(state: State) -> State:
    """BatchNorm statistics and their like, which stay at the client."""
    return {name: value for name, value in state.items() if name.startswith("buffer/")}


def model_of(state: State) -> State:
    """Weights and buffers."""
    return {"w": state["w"], **buffers_of(state)}


def present(**values: Tensor | None) -> State:
    """Those of the named tensors that exist."""
    return {name: value for name, value in values.items() if value is not None}


def stack(w: Tensor, clients: int) -> Tensor:
    """(clients, n) rows that all show the same weights w (n,)."""
    return w.expand(clients, -1)


@dataclass(frozen=True)
class Walk:
    """Weights (S, n) on their way, with what they have gathered."""

    w: Tensor
    velocity: Tensor | None
    buffers: State
    loss: Tensor  # (S,) of the last step
    own: bool = False  # whether the memory of w belongs to the walk and may be written over


@dataclass(frozen=True)
class Descent:
    """Plain SGD with ridge mu and heavy-ball momentum on stacked weights."""

    task: Task
    lr: float
    mu: float = 0.0
    momentum: float = 0.0

    def step(self, w: Tensor, grad: Tensor, velocity: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """W - lr (grad + mu w), or the same through the velocity; the gradient is written over."""
        if self.mu:
            grad.add_(w, alpha=self.mu)
        if not self.momentum:
            return torch.add(w, grad, alpha=-self.lr, out=grad), velocity
        velocity = grad if velocity is None else grad.add_(velocity, alpha=self.momentum)
        return torch.add(w, velocity, alpha=-self.lr), velocity

    def advance(self, walk: Walk, x: Tensor, y: Tensor, pull: Tensor | None = None, lam: float = 0.0) -> Walk:
        """The walk after a step along grad + lam pull + mu w; weights in memory of its own are written over."""
        if self.momentum:
            grad, loss, buffers = self.task.gradient(walk.w, x, y, walk.buffers)
            grad = grad if pull is None else torch.add(grad, pull, alpha=lam)
            return Walk(*self.step(walk.w, grad, walk.velocity), buffers, loss, own=True)
        room = walk.w if walk.own else None
        w, loss, buffers = self.task.descend(walk.w, x, y, walk.buffers, self.lr, self.mu, out=room)
        return Walk(w if pull is None else w.add_(pull, alpha=-self.lr * lam), None, buffers, loss, own=True)

    def run(self, w: Tensor, buffers: State, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, State, Tensor]:
        """Weights and buffers after the batches, and the last loss (S,); momentum starts from rest."""
        walk = Walk(w, None, buffers, torch.zeros(len(w)))
        for x, y in batches:
            walk = self.advance(walk, x, y)
        return walk.w, walk.buffers, walk.loss
