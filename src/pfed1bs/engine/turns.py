"""A round as its clients see it: hear, train, speak."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pfed1bs.core.errors import Failure
from pfed1bs.data import Federation
from pfed1bs.engine.answers import differing, ready, say
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import News, agreeing, entering, hear, replaced, rows
from pfed1bs.engine.recorder import Recorder
from pfed1bs.engine.replicas import alike
from pfed1bs.engine.store import Changes, Clients, Store
from pfed1bs.engine.workers import CPU
from pfed1bs.wire.messages import Message

SMALLER = "try a smaller algorithm.lr, or look at that client's data"


@dataclass(frozen=True)
class Work:
    """What some clients have done in a round."""

    ids: Tensor
    state: State
    log: State
    messages: list[bytes]
    differing: Mapping[int, bytes] = field(default_factory=dict)  # by client: that its replica is not the server's
    kept: Changes | None = None  # instead of the state, once that is in a store

    def into(self, clients: Clients) -> "Work":
        """The work with its states in a store, where clients have one."""
        if not isinstance(clients, Store) or not len(self.ids):
            return self
        return replace(self, state={}, kept=clients.put(self.ids, self.state))


@dataclass(frozen=True)
class Turn:
    """A round as its clients see it; called with the places of some of them in the cohort, it does their work."""

    algorithm: Algorithm
    data: Federation
    clients: Clients
    news: list[list[News]]
    cohort: Cohort
    steps: int
    batch: int
    local: Recorder = field(default_factory=Recorder)
    places: Tensor | None = None  # rows of `clients` that are the cohort's; None: there are all clients, row by id
    later: Callable[[], Cohort] | None = None  # of the next round: its batches are drawn while the device computes

    def __call__(self, at: Tensor) -> Work:
        """Hear, train, speak; who finds that its replica is not the server's says that instead, and stays as it was."""
        algorithm, some, news = self.algorithm, self.cohort.rows(at), [self.news[i] for i in at.tolist()]
        mine = rows(self.clients, some.ids if self.places is None else self.places[at])
        right = entering(algorithm, mine, news, (some.seen < 0) & early(mine))
        mine, received = hear(algorithm, mine, news)
        if early(mine) and bool(right.all()):
            try:
                return self._work(at, some, mine, received, alike(algorithm, mine))
            except Apart:  # which of them is asked, and the work begun anew
                pass
        right &= agreeing(algorithm, mine, news)
        if bool(right.all()):
            return self._work(at, some, mine, received)
        wrong = some.rows(~right)
        said = dict(zip(wrong.ids.tolist(), differing(algorithm, wrong), strict=True))
        if not bool(right.any()):
            return Work(some.ids[right], {}, {}, [], said)
        work = self._work(at[right], some.rows(right), rows(mine, right.nonzero().flatten()), received)
        return replace(work, differing=said)

    def _work(self, at: Tensor, some: Cohort, mine: State, received: Message, sure: Tensor | bool = True) -> Work:
        """What clients that have heard do and say; Apart, if their replicas are not `sure` to be right."""
        algorithm = self.algorithm
        batches = self.data.batches(some.ids, some.round, some.seed, self.steps, self.batch)
        mine, said = self.local(algorithm, mine, received, some, batches)
        fields, signs = ready(algorithm.up, said) if early(mine) else (said, True)
        if self.later is not None:
            later = self.later()
            self.data.foresee(later.ids[at], later.round, later.seed, self.batch, self.local.asked)
            if int(at[-1]) == len(self.cohort.ids) - 1:  # none of this round is left
                self.local.foresee(later.round)
        mine, log = split_log(mine)
        fields = fields if check(mine, log, some, sure, signs) else said  # which says what is wrong with it
        try:
            return Work(some.ids, mine, log, say(algorithm, fields, some, algorithm.known(mine, "up", some.round)))
        except ValueError:  # no codec takes numbers that are not finite
            check(said, {}, some)
            raise


class Diverged(Failure):
    """Weights, losses or a shared state that are no longer finite, and the clients that made them so."""

    def __init__(self, message: str, hint: str, clients: list[int]) -> None:
        super().__init__(message, hint)
        self.clients = clients

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.message, self.hint, self.clients)


def split_log(state: State) -> tuple[State, State]:
    """The state, and apart from it what goes to the log."""
    log = {name.removeprefix("log/"): value for name, value in state.items() if name.startswith("log/")}
    return {name: value for name, value in state.items() if not name.startswith("log/")}, log


class Apart(Exception):
    """Replicas differ from each other."""


def early(clients: State) -> bool:
    """Whether clients begin to work before it is known that their replicas are right: a device has to be waited for."""
    return next(iter(clients.values())).is_cuda


def check(clients: State, log: State, cohort: Cohort, sure: Tensor | bool = True, signs: Tensor | bool = True) -> bool:
    """Stop when a client's weights, anything else that it keeps or says, or its loss are not finite.

    Apart, if `sure` is false. Returns `signs`. All of it is read at once: every word from a device is a wait for it.
    """
    kept = [value.reshape(len(value), -1).sum(1) for value in clients.values() if value.is_floating_point()]
    finite = [torch.isfinite(value) for value in [*kept, *([log["loss"]] if "loss" in log else [])]]
    words = [word for word in (sure, signs) if isinstance(word, Tensor)]
    where = next((one.device for one in [*finite, *words, *clients.values()]), CPU)
    every = torch.ones(len(cohort.ids), dtype=torch.bool, device=where)
    found = torch.stack([every, *(one.to(where) for one in finite)]).all(0)
    told = torch.cat([found, *(word.to(where).view(1) for word in words)]).cpu()
    good, said = told[: len(every)], iter(told[len(every) :].tolist())
    right, signed = (bool(next(said)) if isinstance(word, Tensor) else word for word in (sure, signs))
    if not right:
        raise Apart
    if not bool(good.all()):
        bad = cohort.ids[~good].tolist()
        who = ", ".join(map(str, bad))
        raise Diverged(
            f"round {cohort.round}: weights, message or loss of client {who} became NaN or infinite",
            SMALLER,
            bad,
        )
    return signed


def changed(clients: Clients, ids: Tensor, done: list[Work]) -> Clients:
    """The states of all clients after the work of some, whose ids these are; the others' stay as they were."""
    if isinstance(clients, Store):
        return clients.with_rows([part.kept for part in done if part.kept])
    return replaced(clients, ids, joined([part.state for part in done]))


def joined(parts: list[State]) -> State:
    """The states or logs of all portions, one after the other."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def counted(differing: Sized) -> State:
    """The log of clients whose replica is not the server's; nothing, if there are none."""
    return {"differing": torch.tensor(float(len(differing)))} if differing else {}
