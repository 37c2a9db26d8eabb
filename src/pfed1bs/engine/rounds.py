"""The round loop: every message of every client is encoded, counted and decoded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter

import torch
from torch import Tensor

from pfed1bs.core.errors import Failure, UserError
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import (
    News,
    hear,
    listen,
    moved,
    remember,
    replaced,
    rows,
    say,
    tell,
    watched,
)
from pfed1bs.engine.ledger import Traffic, traffic
from pfed1bs.engine.recorder import Recorder
from pfed1bs.engine.trust import ALL, Trust, finite
from pfed1bs.engine.workers import CPU, alone, portions, spread
from pfed1bs.wire.messages import Message

SMALLER = "try a smaller algorithm.lr, or look at that client's data"


@dataclass(frozen=True)
class Schedule:
    """How long a run is, and how much work each of its rounds has."""

    rounds: int = 100  # T
    sampled: int | None = None  # S, clients in a round; None: all
    steps: int = 10  # R, local steps in a round
    batch: int = 64  # B, samples in a step
    seed: int = 0  # of cohorts and batches
    chunk: int | None = None  # clients computed at once; None: all


@dataclass(frozen=True)
class Progress:
    """All that a run needs to go on."""

    round: int  # the next one
    server: State  # on the CPU, where its bytes come and go
    clients: State  # (K, ...) each
    seen: Tensor  # (K,) last broadcast held by each client, -1: none
    history: dict[int, bytes] = field(default_factory=dict)  # broadcasts that somebody may still have to catch up on


@dataclass(frozen=True)
class Round:
    """What happened in one round."""

    number: int
    cohort: Cohort  # the sampled clients
    traffic: Traffic
    uplinks: list[bytes]  # encoded messages of the sampled clients, ascending by id
    log: State  # what the method logged: scalars of the server, one value or packed signs per client
    seconds: float
    progress: Progress
    sizes: Tensor  # (K,) training samples of all clients
    notes: Mapping[str, float] = field(default_factory=dict)  # what the source of the round adds to its line


@dataclass(frozen=True)
class Plan:
    """A round as the server opens it."""

    cohort: Cohort  # whose answers count
    active: Cohort  # who does local work: the cohort, or everyone
    news: list[list[News]]  # what each of the active clients is sent

    def part(self, ids: Tensor) -> "Plan":
        """The same round for those of its clients that are among `ids`."""
        at = torch.isin(self.active.ids, ids)
        news = [items for items, here in zip(self.news, at.tolist(), strict=True) if here]
        return Plan(self.cohort.rows(torch.isin(self.cohort.ids, ids)), self.active.rows(at), news)


@dataclass(frozen=True)
class Work:
    """What some clients have done in a round."""

    ids: Tensor
    state: State
    log: State
    messages: list[bytes]


@dataclass(frozen=True)
class Turn:
    """A round as its clients see it; called with the places of some of them in the cohort, it does their work."""

    algorithm: Algorithm
    data: Federation
    clients: State
    news: list[list[News]]
    cohort: Cohort
    steps: int
    batch: int
    local: Recorder = field(default_factory=Recorder)
    places: Tensor | None = None  # rows of `clients` that are the cohort's; None: there are all clients, row by id

    def __call__(self, at: Tensor) -> Work:
        """Hear, train, speak."""
        algorithm, some = self.algorithm, self.cohort.rows(at)
        mine = rows(self.clients, some.ids if self.places is None else self.places[at])
        mine, received = hear(algorithm, mine, [self.news[i] for i in at])
        batches = self.data.batches(some.ids, some.round, some.seed, self.steps, self.batch)
        mine, said = self.local(algorithm, mine, received, some, batches)
        mine, log = split_log(mine)
        check(mine, log, some)
        try:
            return Work(some.ids, mine, log, say(algorithm, said, some, algorithm.known(mine, "up", some.round)))
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


def simulate(
    algorithm: Algorithm,
    data: Federation,
    schedule: Schedule | None = None,
    *,
    device: str | torch.device = "auto",
    resume: Progress | None = None,
    trust: Trust = ALL,
    **fields: int | None,
) -> Iterator[Round]:
    """Run the rounds one by one; the caller prints, evaluates, saves and stops.

    `fields` are those of a Schedule, in place of one or instead of its own. `resume` continues after the last round of
    an earlier run, bit for bit. `trust` bounds what clients may claim.
    """
    size, device = scheduled(schedule, fields), choose(device)
    data = data.to(device)
    now = resume or begin(algorithm, len(data.sizes))
    now = replace(now, clients=moved(now.clients, device))
    local = Recorder()
    for t in range(now.round, size.rounds):
        began = perf_counter()
        plan = prepare(algorithm, now, data.sizes, size.seed, size.sampled, data.present)
        turn = Turn(algorithm, data, now.clients, plan.news, plan.active, size.steps, size.batch, local)
        done = spread(turn, portions(len(plan.active.ids), size.chunk, device), device)
        ids = torch.cat([part.ids for part in done])
        state = replaced(now.clients, ids, joined([part.state for part in done]))
        uplinks = dict(zip(ids.tolist(), chain(*(part.messages for part in done)), strict=False))
        sent = [uplinks[client] for client in plan.cohort.ids.tolist() if client in uplinks]
        after, shared = conclude(algorithm, now, plan, sent, trust)
        now = replace(after, clients=state)
        log = {**moved(joined([part.log for part in done]), CPU), **shared}
        bill = traffic(algorithm, plan.news, sent, plan.active)
        yield Round(t, plan.cohort, bill, sent, log, perf_counter() - began, now, data.sizes)


def scheduled(schedule: Schedule | None, fields: Mapping[str, int | None]) -> Schedule:
    """The schedule with some of its fields replaced; None: the defaults."""
    return replace(schedule or Schedule(), **fields)  # type: ignore[arg-type]  # a field that it has not is a TypeError


def prepare(
    algorithm: Algorithm, now: Progress, sizes: Tensor, seed: int, sampled: int | None, among: Tensor | None = None
) -> Plan:
    """Who takes part in the next round, and what each of them is sent; `sizes` (K,) training samples of all clients.

    `among` are the ids of those who may take part; None: all.
    """
    among = torch.arange(len(sizes)) if among is None else among
    cohort = sample(seed, now.round, sizes, now.seen, sampled, among)
    active = cohort if algorithm.trains == "sampled" else gathered(cohort, sizes, now.seen, among)
    with alone(where(now)):
        return Plan(cohort, active, tell(algorithm, now.server, now.history, active))


def conclude(
    algorithm: Algorithm, now: Progress, plan: Plan, uplinks: Sequence[bytes | Message], trust: Trust = ALL
) -> tuple[Progress, State]:
    """The server after the answers of a round, ascending by id, and what it logs; client states stay as they were.

    Diverged, if that would not be finite: it names the clients whose message alone is enough for it.
    """
    server, log = answered(algorithm, now, plan.cohort, uplinks, trust)
    if not finite(server):
        single = [(plan.cohort.rows(slice(i, i + 1)), [data]) for i, data in enumerate(uplinks)]
        bad = [int(one.ids) for one, data in single if not finite(answered(algorithm, now, one, data, ALL)[0])]
        who = f"the message of client {', '.join(map(str, bad))} makes" if bad else "its messages together make"
        raise Diverged(f"round {now.round}: {who} the shared state NaN or infinite", SMALLER, bad)
    seen = now.seen.index_fill(0, plan.active.ids, now.round)
    return Progress(now.round + 1, server, now.clients, seen, remember(algorithm, now.history, plan.news, seen)), log


def answered(
    algorithm: Algorithm, now: Progress, cohort: Cohort, uplinks: Sequence[bytes | Message], trust: Trust
) -> tuple[State, State]:
    """The server's state after the messages of a cohort, and its log with what `diagnose` found in each."""
    known = algorithm.known(now.server, "up", now.round)
    answers, cut = trust.heard(algorithm.up, lambda: listen(algorithm, uplinks, cohort, known))
    weighed, less = trust.weighed(cohort)
    found: list[State] = []
    heard = watched(algorithm, now.server, answers, found)
    with alone(where(now)):
        server, log = split_log(algorithm.aggregate(now.server, heard, weighed))
    rows = [{name: value.unsqueeze(0) for name, value in one.items()} for one in found]
    return server, {**log, **(split_log(joined(rows))[1] if rows else {}), **cut, **less}


def where(now: Progress) -> torch.device:
    """The device on which clients are computed; a server that has none at hand computes on the CPU."""
    return next((value.device for value in now.clients.values()), CPU)


def choose(device: str | torch.device) -> torch.device:
    """The device; "auto" is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device}", "there are auto, cpu, cuda, cuda:0, cuda:1, ...") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"there is no device {device} here", "leave --device out, or write --device cpu")
    return chosen


def begin(algorithm: Algorithm, clients: int) -> Progress:
    """Before round 0."""
    with alone():
        server, states = algorithm.init(clients)
    return Progress(0, server, states, torch.full((clients,), -1))


def sample(seed: int, round: int, sizes: Tensor, seen: Tensor, sampled: int | None, among: Tensor) -> Cohort:
    """The clients of a round: uniform without replacement, the same for every method."""
    clients = len(among)
    if sampled is not None and not 1 <= sampled <= clients:
        few = " without the newcomers" if clients < len(sizes) else ""
        raise UserError(f"sampled must be in 1 .. clients = {clients}{few}, got {sampled}")
    ids = among[torch.randperm(clients, generator=stream(seed, "cohort", round))[: sampled or clients]].sort().values
    return Cohort(seed, round, ids, sizes.cpu()[ids], seen[ids])


def gathered(cohort: Cohort, sizes: Tensor, seen: Tensor, ids: Tensor) -> Cohort:
    """Other clients in the round of this cohort."""
    return Cohort(cohort.seed, cohort.round, ids, sizes.cpu()[ids], seen[ids])


def split_log(state: State) -> tuple[State, State]:
    """The state, and apart from it what goes to the log."""
    log = {name.removeprefix("log/"): value for name, value in state.items() if name.startswith("log/")}
    return {name: value for name, value in state.items() if not name.startswith("log/")}, log


def joined(parts: list[State]) -> State:
    """The states or logs of all portions, one after the other."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def check(clients: State, log: State, cohort: Cohort) -> None:
    """Stop when a client's weights, anything else that it keeps or says, or its loss are not finite."""
    good = torch.ones(len(cohort.ids), dtype=torch.bool)
    kept = [value.reshape(len(value), -1).sum(1) for value in clients.values() if value.is_floating_point()]
    for value in [*kept, *([log["loss"]] if "loss" in log else [])]:
        good &= torch.isfinite(value).cpu()
    if not bool(good.all()):
        bad = cohort.ids[~good].tolist()
        who = ", ".join(map(str, bad))
        raise Diverged(
            f"round {cohort.round}: weights, message or loss of client {who} became NaN or infinite",
            SMALLER,
            bad,
        )
