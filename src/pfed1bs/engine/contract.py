"""The contract of a federated method, and what all of them know of a state."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import torch
from torch import Tensor

from pfed1bs.engine.cohorts import Cohort as Cohort  # a name of the contract
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import Kind, Layout, Message

State = dict[str, Tensor]  # named tensors; client states have a leading client axis; "log/..." goes to metrics.jsonl


class Batches(Protocol):
    """Mini-batches of a cohort: R pairs of inputs (S, B, ...) and labels (S, B)."""

    @property
    def steps(self) -> int:
        """R, the number of local steps of a round."""
        ...

    def __call__(
        self, name: str = "train", steps: int | None = None, only: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one purpose, the same at every call.

        `only` (S, N), on the CPU, is true for the samples that may be drawn, by their place in the client's own
        training set; None: all. A client with all of them draws what it draws without `only`.
        """
        ...

    def first(self, share: float) -> "Batches":
        """Batches of the first `share` of every client's training samples alone."""
        ...

    def samples(self, start: float = 0.0, stop: float = 1.0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Every training sample once, or those between two shares: inputs (S, E, ...), labels and a mask (S, E)."""
        ...


Judged = Literal["nothing", "replica", "server"]  # what has to be known of the server to judge a client's models


class Algorithm(Protocol):
    """A federated method: pure functions of states. Structural: whatever has these names is one, by any class.

    A method that is run by its name is a frozen dataclass with the fields `task` and `seed`; its other fields are its
    options. `Method` in pfed1bs.extend has the common case of most of what follows.
    """

    task: Task

    @property
    @abstractmethod
    def seed(self) -> int:
        """What everything random of the method comes from, at every party."""

    @property
    @abstractmethod
    def paper(self) -> str:
        """Where the method comes from."""

    @property
    @abstractmethod
    def personalises(self) -> bool:
        """Whether it ends with a model per client that differs by more than fine-tuning."""

    @property
    @abstractmethod
    def down(self) -> Layout:
        """Fields sent by the server."""

    @property
    @abstractmethod
    def up(self) -> Layout:
        """Fields sent by each client."""

    @property
    @abstractmethod
    def trains(self) -> Literal["sampled", "all"]:
        """Who does local work in a round."""

    @property
    @abstractmethod
    def replicates(self) -> bool:
        """Whether broadcasts build on each other, so that every client must absorb each of them, also late.

        `local` of such a method is handed an empty broadcast: what it heard is in the clients' states.
        """

    @property
    @abstractmethod
    def snapshot_layout(self) -> Layout:
        """Fields of a snapshot, which replaces all missed broadcasts; empty: there is none."""

    @property
    @abstractmethod
    def rests(self) -> bool:
        """Whether clients["w"] is the judged model, trained beside or from a shared one, and nothing else begins there.

        Then it may stay as it is once the shared model has learnt all of a client's samples (engine/rest.py).
        """

    @property
    @abstractmethod
    def judged_with(self) -> Judged:
        """What `personal` reads of the server's state, so that it can be judged where the client is.

        "replica": the shared weights, as "w" or "theta", of which clients["theta"] is the copy; "server": its real
        numbers, which have to be sent for judging.
        """

    @abstractmethod
    def init(self, clients: int) -> tuple[State, State]:
        """Server state and client states at round 0, the same at every party for the same seed."""

    @abstractmethod
    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """What the server says at the start of a round: fields common to all, or with a leading axis (S, ...)."""

    @abstractmethod
    def absorb(self, clients: State, received: Message, round: int) -> State:
        """What a client of a method that replicates does with every broadcast, late ones too, or with a snapshot."""

    @abstractmethod
    def snapshot(self, server: State) -> Message | None:
        """The fields of `snapshot_layout`; None where there are none."""

    @abstractmethod
    def anchor(self, round: int) -> int:
        """The broadcast that the snapshot of a round stands for, with all before it; those after it are sent too."""

    @abstractmethod
    def replica(self, state: State) -> Tensor | None:
        """The weights that both sides hold after the same broadcasts: (n,) of the server, (S, n) of clients.

        They are compared by a checksum in every broadcast. None: nothing is compared.
        """

    @abstractmethod
    def known(self, state: State, kind: Kind, round: int) -> Message:
        """What both sides hold of the fields of a message before it is sent, from the state of either of them.

        Server: "down" before the round (for clients that heard the last broadcast), "up" before `aggregate`. Clients:
        "down" before they hear, "up" after `local`, every field with a leading axis. Codecs may send the difference.
        """

    @abstractmethod
    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The work of a round at the clients, and what each of them says; every field (S, ...)."""

    @abstractmethod
    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The new server state; messages are decoded lazily, ascending by id, signs still packed."""

    @abstractmethod
    def diagnose(self, server: State, message: Message) -> State:
        """What to watch in one client's message, taken while `aggregate` decodes it; "log/..." keys.

        Numbers are logged as their mean. A field of `up` with packed signs, under its name, is logged at evaluations
        as mean distances of the clients' signs.
        """

    @abstractmethod
    def penalties(self, server: State, clients: State, round: int) -> State:
        """What the objective adds to the mean loss of each of these clients, (S,) in float64 by name; none: nothing.

        `round` is the next one. Where there is something, the weighted sum over all clients is logged as "potential".
        """

    @abstractmethod
    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """What is judged, by name: "personal", and where they exist "global", "tuned" and others.

        Weights and buffers of a model, and beside them what else `predict` needs of it.
        """

    @abstractmethod
    def predict(self, model: State, x: Tensor) -> Tensor:
        """What a model out of `personal` answers to inputs x (S, E, ...): logits (S, E, classes), as a rule its own."""

    @property
    @abstractmethod
    def remark(self) -> str:
        """What whoever starts a run with these options should know before; empty: nothing."""


CONTRACT = tuple(name for name in vars(Algorithm) if not name.startswith("_"))  # what a method says, its task apart


def buffers_of(state: State) -> State:
    """BatchNorm statistics and their like, which stay at the client."""
    return {name: value for name, value in state.items() if name.startswith("buffer/")}


def model_of(state: State) -> State:
    """Weights and buffers."""
    return {"w": state["w"], **buffers_of(state)}


def under(prefix: str, state: State) -> State:
    """The same tensors under longer names."""
    return {prefix + name: value for name, value in state.items()}


def within(prefix: str, state: State) -> State:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def besides(prefix: str, state: State) -> State:
    """The tensors whose names do not begin so."""
    return {name: value for name, value in state.items() if not name.startswith(prefix)}


def chosen(on: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Rows of `one` where `on` (S,) is true, those of `other` elsewhere."""
    return torch.where(on.view(-1, *(1 for _ in one.shape[1:])), one, other)


def present(**values: Tensor | None) -> State:
    """Those of the named tensors that exist."""
    return {name: value for name, value in values.items() if value is not None}


def stack(w: Tensor, clients: int) -> Tensor:
    """(clients, n) rows that all show the same weights w (n,)."""
    return w.expand(clients, -1)


def blank(like: Tensor) -> Tensor:
    """(clients, ...) rows that all show the same zeros, in the shape of others."""
    return torch.zeros_like(like[:1]).expand_as(like)
