"""The round loop: every message of every client is encoded, counted and decoded."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor

from pfed1bs.algorithm import Algorithm, Cohort, State
from pfed1bs.data import Federation
from pfed1bs.exchange import Traffic, hear, listen, moved, pieces, remember, replaced, rows, say, tell, traffic
from pfed1bs.rng import stream
from pfed1bs.wire import Message


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
    log: State  # what the method logged: scalars of the server, one value per client that trained
    seconds: float
    progress: Progress
    known: Message = field(default_factory=dict)  # what the server held of an uplink's fields before it came


class Diverged(RuntimeError):
    """Weights or losses that are no longer finite."""


def simulate(
    algorithm: Algorithm,
    data: Federation,
    *,
    rounds: int,
    sampled: int | None = None,
    steps: int = 10,
    batch: int = 64,
    seed: int = 0,
    chunk: int | None = None,
    device: str | torch.device = "auto",
    resume: Progress | None = None,
) -> Iterator[Round]:
    """Run the rounds one by one; the caller prints, evaluates, saves and stops.

    `sampled` clients take part in a round (None: all), at most `chunk` of them are computed at once (None: all).
    `resume` continues after the last round of an earlier run, bit for bit.
    """
    device = choose(device)
    data = data.to(device)
    now = resume or begin(algorithm, len(data.sizes))
    now = replace(now, clients=moved(now.clients, device))
    for t in range(now.round, rounds):
        began = perf_counter()
        cohort = draw(seed, t, data.sizes, now.seen, sampled)
        active = cohort if algorithm.trains == "sampled" else everyone(cohort, data.sizes, now.seen)
        news = tell(algorithm, now.server, now.history, active)
        state, log, uplinks = now.clients, list[State](), dict[int, bytes]()
        for at in pieces(len(active.ids), chunk):
            some = active.rows(at)
            mine, received = hear(algorithm, rows(state, some.ids), [news[i] for i in at])
            mine, said = algorithm.local(mine, received, some, data.batches(some.ids, t, seed, steps, batch))
            mine, own = split_log(mine)
            check(mine, own, some)
            log.append(own)
            state = replaced(state, some.ids, mine)
            messages = say(algorithm, said, some, algorithm.known(mine, "up", t))
            uplinks.update(zip(some.ids.tolist(), messages, strict=False))
        sent = [uplinks[client] for client in cohort.ids.tolist() if client in uplinks]
        known = algorithm.known(now.server, "up", t)
        server, shared = split_log(algorithm.aggregate(now.server, listen(algorithm, sent, cohort, known), cohort))
        seen = now.seen.index_fill(0, active.ids, t)
        now = Progress(t + 1, server, state, seen, remember(algorithm, now.history, news, seen))
        bill = traffic(algorithm, news, sent, active)
        yield Round(t, cohort, bill, sent, {**joined(log), **shared}, perf_counter() - began, now, known)


def choose(device: str | torch.device) -> torch.device:
    """The device; "auto" is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def begin(algorithm: Algorithm, clients: int) -> Progress:
    """Before round 0."""
    server, states = algorithm.init(clients)
    return Progress(0, server, states, torch.full((clients,), -1))


def draw(seed: int, round: int, sizes: Tensor, seen: Tensor, sampled: int | None) -> Cohort:
    """The clients of a round: uniform without replacement, the same for every method."""
    clients = len(sizes)
    if sampled is not None and not 1 <= sampled <= clients:
        raise ValueError(f"sampled must be in 1 .. clients = {clients}, got {sampled}")
    ids = torch.randperm(clients, generator=stream(seed, "cohort", round))[: sampled or clients].sort().values
    return Cohort(seed, round, ids, sizes.cpu()[ids], seen[ids])


def everyone(cohort: Cohort, sizes: Tensor, seen: Tensor) -> Cohort:
    """All clients in the round of this cohort."""
    return Cohort(cohort.seed, cohort.round, torch.arange(len(sizes)), sizes.cpu(), seen)


def split_log(state: State) -> tuple[State, State]:
    """The state, and apart from it what goes to the log."""
    log = {name.removeprefix("log/"): value for name, value in state.items() if name.startswith("log/")}
    return {name: value for name, value in state.items() if not name.startswith("log/")}, log


def joined(logs: list[State]) -> State:
    """The logs of all chunks, one after the other."""
    return {name: torch.cat([log[name].cpu() for log in logs]) for name in logs[0]}


def check(clients: State, log: State, cohort: Cohort) -> None:
    """Stop when a client's weights or loss are not finite."""
    good = torch.ones(len(cohort.ids), dtype=torch.bool)
    for value in [clients["w"].sum(1), *([log["loss"]] if "loss" in log else [])]:
        good &= torch.isfinite(value).cpu()
    if not bool(good.all()):
        bad = cohort.ids[~good].tolist()
        raise Diverged(
            f"round {cohort.round}: the weights or the loss of client {', '.join(map(str, bad))} became NaN or infinite"
            "; try a smaller algorithm.lr, or look at that client's data"
        )
