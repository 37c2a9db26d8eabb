"""The round loop: every message of every client is encoded, counted and decoded."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from pfed1bs.core import gpu
from pfed1bs.core.errors import Failure, UserError
from pfed1bs.core.failing import explained
from pfed1bs.data import Federation
from pfed1bs.engine.answers import listen, watched
from pfed1bs.engine.cohorts import sample, working
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import News, moved, remember, tell
from pfed1bs.engine.ledger import Traffic, traffic
from pfed1bs.engine.memory import fitting, housed
from pfed1bs.engine.recorder import Recorder
from pfed1bs.engine.rest import over
from pfed1bs.engine.store import Clients, device_of
from pfed1bs.engine.trust import ALL, Trust, finite
from pfed1bs.engine.turns import SMALLER, Diverged, Turn, changed, counted, joined, split_log
from pfed1bs.engine.workers import CPU, alone, portions, spread
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Message

REPLICA = "the clients' states are damaged, or this device computes other bits; begin anew, or with --device cpu"


@dataclass(frozen=True)
class Schedule:
    """How long a run is, and how much work each of its rounds has."""

    rounds: int = 100  # T
    sampled: int | None = None  # S, clients in a round; None: all
    steps: int = 10  # R, local steps in a round
    batch: int = 64  # B, samples in a step
    seed: int = 0  # of cohorts and batches
    chunk: int | None = None  # clients computed at once; None: as many as fit (engine/memory.py)


@dataclass(frozen=True)
class Progress:
    """All that a run needs to go on."""

    round: int  # the next one
    server: State  # on the CPU, where its bytes come and go
    clients: Clients  # (K, ...) each
    seen: Tensor  # (K,) last broadcast held by each client, -1: none
    history: dict[int, bytes] = field(default_factory=dict)  # broadcasts that somebody may still have to catch up on
    lost: frozenset[int] = frozenset()  # clients that have said that their replica is not the server's
    resting: frozenset[int] = frozenset()  # clients that have said that they rest; empty where their states are at hand


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
    last: bool = False  # whether all clients rest, so that nothing would come of another round


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


def simulate(
    algorithm: Algorithm,
    data: Federation,
    schedule: Schedule | None = None,
    *,
    device: str | torch.device = "auto",
    resume: Progress | None = None,
    trust: Trust = ALL,
    states: Path | None = None,
    **fields: int | None,
) -> Iterator[Round]:
    """Run the rounds one by one; the caller prints, evaluates, saves and stops.

    `fields` are those of a Schedule, in place of one or instead of its own. `resume` continues after the last round of
    an earlier run, bit for bit. `trust` bounds what clients may claim. States of clients that are too much for memory
    are in files of the folder `states`; None: in files without names, which end with the process.
    """
    size, device = scheduled(schedule, fields), choose(device)
    with explained(device, "before the first round", size.chunk or len(data.sizes)):
        data = data.to(device)
        now = resume or begin(algorithm, len(data.sizes))
        some = size.sampled not in (None, len(data.sizes)) and algorithm.trains == "sampled"
        now = replace(now, clients=housed(now.clients, some, device, states))
        chunk = size.chunk or fitting(algorithm, now.clients, data, size.batch, size.sampled, device)
    size, local, last = replace(size, chunk=chunk), Recorder(), over(now.clients, data.present)
    for t in range(now.round, size.rounds):
        if last:
            return
        with explained(device, f"round {t}", chunk or len(data.sizes)):
            done = _round(algorithm, data, now, size, trust, local)
        now, last = done.progress, done.last
        yield done


def _round(
    algorithm: Algorithm, data: Federation, now: Progress, size: Schedule, trust: Trust, local: Recorder
) -> Round:
    """The next round."""
    began, t, device = perf_counter(), now.round, where(now)
    plan = prepare(algorithm, now, data.sizes, size.seed, size.sampled, data.present)
    turn = Turn(algorithm, data, now.clients, plan.news, plan.active, size.steps, size.batch, local)

    def later() -> Cohort:
        following = sample(size.seed, t + 1, data.sizes, now.seen, size.sampled, data.present)
        return working(algorithm.trains, following, data.sizes, now.seen, data.present)

    turn = replace(turn, later=later) if device.type != "cpu" and t + 1 < size.rounds else turn
    portion = portions(len(plan.active.ids), size.chunk, device)
    done = spread(lambda at: turn(at).into(now.clients), portion, device)
    differ = {client: said for part in done for client, said in part.differing.items()}
    done = [part for part in done if len(part.ids)]
    if not done:
        raise Failure(f"round {t}: the replica of every client is another than the server's", REPLICA)
    ids, asked = torch.cat([part.ids for part in done]), plan
    plan = plan.part(ids) if differ else plan
    state = changed(now.clients, ids, done)
    uplinks = dict(zip(ids.tolist(), chain(*(part.messages for part in done)), strict=False))
    sent = [uplinks[client] for client in plan.cohort.ids.tolist() if client in uplinks]
    after, shared = conclude(algorithm, now, plan, sent, trust)
    log = {**moved(joined([part.log for part in done]), CPU), **shared, **counted(differ)}
    bill = traffic(algorithm, asked.news, [*sent, *differ.values()], asked.active)
    after = replace(after, clients=state, lost=after.lost | differ.keys())
    seconds = perf_counter() - began
    return Round(t, plan.cohort, bill, sent, log, seconds, after, data.sizes, last=over(after.clients, data.present))


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
    active = working(algorithm.trains, cohort, sizes, now.seen, among)
    with alone(where(now), numbers(now)):
        return Plan(cohort, active, tell(algorithm, now.server, now.history, active, now.lost))


def conclude(
    algorithm: Algorithm,
    now: Progress,
    plan: Plan,
    uplinks: Sequence[bytes | Message],
    trust: Trust = ALL,
    pairs: bool = True,
) -> tuple[Progress, State]:
    """The server after the answers of a round, ascending by id, and what it logs; client states stay as they were.

    `pairs`: packed signs are logged too, for the distances of all pairs of clients.
    Diverged, if that would not be finite: it names the clients whose message alone is enough for it.
    """
    server, log = answered(algorithm, now, plan.cohort, uplinks, trust, pairs)
    if not finite(server):
        single = [(plan.cohort.rows(slice(i, i + 1)), [data]) for i, data in enumerate(uplinks)]
        bad = [int(one.ids) for one, data in single if not finite(answered(algorithm, now, one, data, ALL)[0])]
        who = f"the message of client {', '.join(map(str, bad))} makes" if bad else "its messages together make"
        raise Diverged(f"round {now.round}: {who} the shared state NaN or infinite", SMALLER, bad)
    seen = now.seen.index_fill(0, plan.active.ids, now.round)
    history, lost = remember(algorithm, now.history, plan.news, seen), now.lost - {*plan.active.ids.tolist()}
    return Progress(now.round + 1, server, now.clients, seen, history, lost), log


def answered(
    algorithm: Algorithm,
    now: Progress,
    cohort: Cohort,
    uplinks: Sequence[bytes | Message],
    trust: Trust,
    pairs: bool = False,
) -> tuple[State, State]:
    """The server's state after the messages of a cohort, and its log with what `diagnose` found in each."""
    known, early = algorithm.known(now.server, "up", now.round), where(now).type != "cpu"
    answers, cut = trust.heard(algorithm.up, lambda: listen(algorithm, uplinks, cohort, known, early))
    weighed, less = trust.weighed(cohort)
    found: list[State] = []
    heard = watched(algorithm, now.server, answers, found, pairs)
    with alone(where(now), numbers(now)):
        server, log = split_log(algorithm.aggregate(now.server, heard, weighed))
    noted = {name: torch.stack([one[name] for one in found]) for name in (found[0] if found else {})}
    return server, {**log, **split_log(noted)[1], **cut, **less}


def where(now: Progress) -> torch.device:
    """The device on which clients are computed; a server that has none at hand computes on the CPU."""
    return device_of(now.clients)


def numbers(now: Progress) -> int:
    """How many the server has to deal with."""
    return max((value.numel() for value in now.server.values()), default=0)


def choose(device: str | torch.device) -> torch.device:
    """The device; "auto" is CUDA where there is one that can be used."""
    if device == "auto":
        reason = gpu.trouble() if torch.cuda.is_available() else ""
        if reason:
            warnings.warn(f"the GPU is not used, the CPU is: {reason}", stacklevel=2)
        return torch.device("cuda" if reason is None else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device}", "there are auto, cpu, cuda, cuda:0, cuda:1, ...") from None
    if chosen.type == "cuda" and (reason := gpu.trouble(chosen.index or 0)):
        raise UserError(f"there is no device {device} here: {reason}", gpu.ON_CPU)
    return chosen


def begin(algorithm: Algorithm, clients: int) -> Progress:
    """Before round 0; a model that a message has no numbers for is refused."""
    with alone():
        server, states = algorithm.init(clients)
    floats = any(isinstance(codec, Floats) for codec in (*algorithm.up.values(), *algorithm.down.values()))
    if floats and "w" in states and states["w"].dtype != torch.float32:
        raise UserError(
            f"numbers are sent in float32, but this model is {states['w'].dtype}", "give Task module.float()"
        )
    return Progress(0, server, states, torch.full((clients,), -1))
