"""Who is told what, and who hears it: the same for the simulator and for real networks."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from pfed1bs.core.votes import unpack
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.replicas import alike, checksum, checksums
from pfed1bs.engine.store import Clients, Store
from pfed1bs.engine.workers import CPU
from pfed1bs.wire.codecs import Differences, Signs
from pfed1bs.wire.messages import (
    Kind,
    Layout,
    Message,
    decode,
    encode,
    fixed_size,
    read_header,
)

FLAT = torch.contiguous_format


@dataclass(frozen=True)
class News:
    """One encoded message on its way from the server."""

    kind: Kind
    round: int
    data: bytes
    replaces: bytes = b""  # of a snapshot: the broadcast it stands for, which later clients may still need


def tell(
    algorithm: Algorithm, server: State, history: Mapping[int, bytes], cohort: Cohort, lost: Container[int] = ()
) -> list[list[News]]:
    """What each client of the round has to be sent: the broadcast, and before it what it has missed.

    A method whose broadcasts build on each other may send its snapshot instead of all of them, if that is shorter, and
    does to clients that have `lost` their replica. One that says what is `known` sends the difference to those who
    heard the last broadcast, and the whole to the others.
    """
    if not algorithm.down:
        return [[] for _ in cohort.ids]
    current = _broadcasts(algorithm, server, cohort, {})
    if algorithm.replicates:
        assert len(current) == 1, "a replica is built from broadcasts that are the same for all"
        return _moves(algorithm, server, history, cohort, current[0], lost)
    known = algorithm.known(server, "down", cohort.round)
    difference = _broadcasts(algorithm, server, cohort, known) if known else current
    forms = [difference if seen == cohort.round - 1 else current for seen in cohort.seen.tolist()]
    return [[form[i % len(form)]] for i, form in enumerate(forms)]


def _moves(
    algorithm: Algorithm,
    server: State,
    history: Mapping[int, bytes],
    cohort: Cohort,
    current: News,
    lost: Container[int],
) -> list[list[News]]:
    """All broadcasts that each client has missed, or the snapshot and those after its anchor."""
    trail = [*(News("down", r, data) for r, data in sorted(history.items())), current]
    length = [*accumulate((len(item.data) for item in reversed(trail)), initial=0)]  # of the last 0, 1, 2, ... of them
    layout, short = algorithm.snapshot_layout if cohort.round else {}, list[News]()
    since = cohort.round - algorithm.anchor(cohort.round)
    least = (fixed_size(layout) or 0) + length[since]
    news = []
    for client, seen in zip(cohort.ids.tolist(), cohort.seen.tolist(), strict=True):
        missed = cohort.round - seen
        whole = missed < len(length)
        if layout and (client in lost or not whole or least < length[missed]):
            short = short or [_snapshot(algorithm, server, cohort.round, current), *trail[len(trail) - since :]]
            news.append(short)
            continue
        assert whole, "history was cut although there is no snapshot"
        news.append(trail[len(trail) - missed :])
    return news


def _snapshot(algorithm: Algorithm, server: State, round: int, current: News) -> News:
    check, message, at = checksum(algorithm, server), algorithm.snapshot(server) or {}, algorithm.anchor(round)
    data = encode(algorithm.snapshot_layout, message, kind="snapshot", round=at, samples=check)
    return News("snapshot", at, data, replaces=current.data if at == round else b"")


def _broadcasts(algorithm: Algorithm, server: State, cohort: Cohort, known: Message) -> list[News]:
    """The encoded broadcast: one for all, or one for each client if a field has a leading client axis."""
    message, check = algorithm.broadcast(server, cohort), checksum(algorithm, server)
    own = [name for name, field in message.items() if field.dim() > len(algorithm.down[name].shape)]
    parts = [
        {name: field[i] if name in own else field for name, field in message.items()}
        for i in range(len(cohort.ids) if own else 1)
    ]
    encoded = (
        encode(algorithm.down, part, kind="down", round=cohort.round, samples=check, known=known) for part in parts
    )
    return [News("down", cohort.round, data) for data in encoded]


def hear(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]]) -> tuple[State, Message]:
    """Client states after their news, and the broadcast of the round, with a leading axis where it differs.

    One client alone cannot tell and hears its own fields without that axis, as if they were common to all. Methods
    that keep a replica find everything in it and get an empty broadcast.
    """
    device = next(iter(clients.values())).device
    if not algorithm.replicates:
        messages = _decoded(algorithm, clients, news)
        if not messages or not messages[0]:
            return clients, {}
        if len(messages) == 1:
            return clients, moved(messages[0], device)
        return clients, {name: torch.stack([one[name] for one in messages]).to(device) for name in messages[0]}
    if len(news) > 1 and all(items == news[0] for items in news) and all(map(_repeated, clients.values())):
        first, _ = hear(algorithm, {name: value[:1] for name, value in clients.items()}, news[:1])
        return {name: value.expand(len(news), *value.shape[1:]) for name, value in first.items()}, {}
    return _absorbed(algorithm, clients, news), {}


def _absorbed(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]]) -> State:
    """The clients of a method that keeps a replica, after each has taken in its news one by one."""
    device, own = next(iter(clients.values())).device, False  # own: whether nobody else holds these states
    heard: dict[int, tuple[News, list[int]]] = {}  # every piece of news, and who is sent it
    for i, items in enumerate(news):
        for item in items:
            heard.setdefault(id(item), (item, []))[1].append(i)
    for item, at in sorted(heard.values(), key=lambda pair: pair[0].round):
        layout = algorithm.down if item.kind == "down" else algorithm.snapshot_layout
        message = _moved(layout, decode(layout, item.data, kind=item.kind, round=item.round, packed=True), device)
        if message and len(at) == len(news):
            clients, own = algorithm.absorb(clients, message, item.round), False
        elif message:
            if not own:
                clients, own = {name: value.clone(memory_format=FLAT) for name, value in clients.items()}, True
            places = torch.tensor(at, device=device)
            some = {name: value[places] for name, value in clients.items()}
            for name, value in algorithm.absorb(some, message, item.round).items():
                if value is not some[name]:
                    clients[name].index_copy_(0, places, value)
    return clients


def _repeated(field: Tensor) -> bool:
    """Whether all clients have the same in a field (S, ...), as newcomers do; long ones are not looked at for it."""
    return field.stride(0) == 0 or (field[0].numel() == 1 and bool((field == field[:1]).all()))


def entering(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]], new: Tensor) -> Tensor:
    """(S,) false for those `new` (S,) clients that their first news leads to another replica than the server's.

    For a device that may round products otherwise, where `agreeing` says nothing of one client alone: first weights
    have no products, and what a snapshot and the broadcasts behind it come to is computed on the processor.
    """
    right, at = torch.ones(len(news), dtype=torch.bool), new.nonzero().flatten().tolist()
    if not algorithm.replicates:
        return right
    whole, short = ([i for i in at if news[i][0].kind == kind] for kind in ("down", "snapshot"))
    if whole:  # from round 0 on, whose checksum is that of the first weights
        right[whole] = _right(algorithm, rows(clients, torch.tensor(whole)), [news[i][:1] for i in whole])
    if short:  # all of them are sent the same, which replaces whatever they have: one stands for all
        sent, one = [news[short[0]]], moved(rows(clients, torch.tensor(short[:1])), CPU)
        right[short] = _right(algorithm, hear(algorithm, one, sent)[0], sent)
    return right


def agreeing(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]]) -> Tensor:
    """(S,) true for the clients whose replica, after their news, is the one that the server has.

    A device may round products otherwise than the server's processor. Copies on it that are all the same, and another
    than the server's, are a matter of the device and no mistake of a client, once their first news was right.
    """
    if next(iter(clients.values())).is_cuda and bool(alike(algorithm, clients)):
        return torch.ones(len(news), dtype=torch.bool)
    return _right(algorithm, clients, news)


def _right(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]]) -> Tensor:
    """(S,) whether the checksum of each replica is the one in the header of the client's last piece of news."""
    held = checksums(algorithm, clients)
    if not held:
        return torch.ones(len(news), dtype=torch.bool)
    said = {item: read_header(item.data).samples for item in {items[-1] for items in news}}
    return torch.tensor([said[items[-1]] == own for items, own in zip(news, held, strict=True)])


def _decoded(algorithm: Algorithm, clients: State, news: Sequence[Sequence[News]]) -> list[Message]:
    """The different broadcasts of a round; the two forms of one broadcast are the same."""
    different = {id(item): (item, client) for client, items in enumerate(news) for item in items}
    messages, known = list[Message](), Message()
    for item, client in different.values():
        known = algorithm.known(clients, "down", item.round)
        own = {name: field[client] for name, field in known.items()}
        messages.append(decode(algorithm.down, item.data, kind="down", round=item.round, known=own))
    if known and all(torch.equal(one[name], messages[0][name]) for one in messages for name in one):
        return messages[:1]
    return messages


def remember(
    algorithm: Algorithm, history: Mapping[int, bytes], news: list[list[News]], seen: Tensor
) -> dict[int, bytes]:
    """The broadcasts that somebody may still have to catch up on: those since the anchor, and more up to a snapshot."""
    if not algorithm.replicates:
        return {}
    last = news[0][-1]
    layout, anchor = algorithm.snapshot_layout, algorithm.anchor(last.round)
    first = min(int(seen.min()), anchor) if layout else int(seen.min())
    fresh = {**history, last.round: last.replaces or last.data}
    history = {r: data for r, data in sorted(fresh.items()) if r > first}
    excess = sum(len(data) for r, data in history.items() if r <= anchor) - sum(c.size or 0 for c in layout.values())
    for r in [*history] if layout else []:
        if excess <= 0 or r > anchor:
            break
        excess -= len(history.pop(r))
    return history


def moved(state: State, device: torch.device) -> State:
    """The same tensors on a device."""
    return {name: value.to(device) for name, value in state.items()}


def _moved(layout: Layout, message: Message, device: torch.device) -> Message:
    """A message on a device, its packed signs unpacked there."""
    signs = {name for name in message if isinstance(layout[name], Signs | Differences)}
    there = moved(message, device)
    return {name: unpack(value, layout[name].shape[0]) if name in signs else value for name, value in there.items()}


def rows(state: Clients, at: Tensor) -> State:
    """The rows of a state at some places (S,), ascending; neighbours are views, all of them the state itself."""
    if isinstance(state, Store):
        return state.rows(at)
    found, whole = _located(state, at)
    return state if whole else {name: value[found] for name, value in state.items()}


def replaced(state: State, at: Tensor, part: State) -> State:
    """The state with its rows at some places (S,), ascending, replaced by those of a part; the part if that is all."""
    if any(len(value) != len(at) for value in part.values()):
        raise ValueError(f"{len(at)} places cannot be filled from rows {[len(value) for value in part.values()]}")
    if _located(state, at)[1]:
        return part
    return {name: value.index_copy(0, at.to(value.device), part[name]) for name, value in state.items()}


def _located(state: State, at: Tensor) -> tuple[slice | Tensor, bool]:
    """Places as a slice where they are neighbours, and whether they are all; refused unless they ascend and exist."""
    counts, places = {value.shape[0] for value in state.values()}, at.tolist()
    first, last = (places[0], places[-1]) if places else (0, -1)
    if first < 0 or any(last >= count for count in counts) or any(a >= b for a, b in pairwise(places)):
        raise ValueError(f"places must ascend below the number of rows {sorted(counts)}, got {places}")
    near = last - first + 1 == len(places)
    return slice(first, last + 1) if near else at, near and counts == {len(places)}
