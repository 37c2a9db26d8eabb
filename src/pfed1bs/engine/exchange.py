"""Who is told what, and who hears it: the same for the simulator and for real networks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.workers import ahead
from pfed1bs.wire.codecs import Differences, Signs
from pfed1bs.wire.messages import Codec, Kind, Message, decode, encode, fixed_size

PINNED = 1 << 16  # bytes of a field of all clients from which memory that a device writes by itself pays
LONG = 1 << 22  # bytes of a message from which it pays to wake other threads
AHEAD = 6  # messages that are decoded before they are needed


@dataclass(frozen=True)
class News:
    """One encoded message on its way from the server."""

    kind: Kind
    round: int
    data: bytes
    replaces: bytes = b""  # of a snapshot: the broadcast it stands for, which later clients may still need


def tell(algorithm: Algorithm, server: State, history: Mapping[int, bytes], cohort: Cohort) -> list[list[News]]:
    """What each client of the round has to be sent: the broadcast, and before it what it has missed.

    A method whose broadcasts build on each other may send its snapshot instead of all of them, if that is shorter. One
    that says what is `known` sends the difference to those who heard the last broadcast, and the whole to the others.
    """
    if not algorithm.down:
        return [[] for _ in cohort.ids]
    current = _broadcasts(algorithm, server, cohort, {})
    if not algorithm.replicates:
        known = algorithm.known(server, "down", cohort.round)
        difference = _broadcasts(algorithm, server, cohort, known) if known else current
        forms = [difference if seen == cohort.round - 1 else current for seen in cohort.seen.tolist()]
        return [[form[i % len(form)]] for i, form in enumerate(forms)]
    assert len(current) == 1, "a replica is built from broadcasts that are the same for all"
    layout, short = algorithm.snapshot_layout, None
    if layout and cohort.round:
        short = _Snapshot(algorithm, server, cohort.round, current[0].data)
    news = []
    for seen in cohort.seen.tolist():
        missed = range(seen + 1, cohort.round)
        full = [News("down", r, history[r]) for r in missed if r in history] + current
        complete = len(full) == len(missed) + 1
        if short is not None and (not complete or short.size < sum(len(item.data) for item in full)):
            full = [short.news]
        assert complete or short is not None, "history was cut although there is no snapshot"
        news.append(full)
    return news


@dataclass(frozen=True)
class _Snapshot:
    """The snapshot of a round, which is encoded when it is needed."""

    algorithm: Algorithm
    server: State
    round: int
    replaces: bytes

    @cached_property
    def size(self) -> int:
        """Bytes of it."""
        return fixed_size(self.algorithm.snapshot_layout) or len(self.news.data)

    @cached_property
    def news(self) -> News:
        message = self.algorithm.snapshot(self.server) or {}
        data = encode(self.algorithm.snapshot_layout, message, kind="snapshot", round=self.round)
        return News("snapshot", self.round, data, replaces=self.replaces)


def _broadcasts(algorithm: Algorithm, server: State, cohort: Cohort, known: Message) -> list[News]:
    """The encoded broadcast: one for all, or one for each client if a field has a leading client axis."""
    message = algorithm.broadcast(server, cohort)
    own = [name for name, field in message.items() if field.dim() > len(algorithm.down[name].shape)]
    parts = [
        {name: field[i] if name in own else field for name, field in message.items()}
        for i in range(len(cohort.ids) if own else 1)
    ]
    encoded = (encode(algorithm.down, part, kind="down", round=cohort.round, known=known) for part in parts)
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
    for item in sorted({item for items in news for item in items}, key=lambda item: item.round):
        layout = algorithm.down if item.kind == "down" else algorithm.snapshot_layout
        message = decode(layout, item.data, kind=item.kind, round=item.round)
        if message:
            at = torch.tensor([i for i, items in enumerate(news) if item in items])
            clients = replaced(clients, at, algorithm.absorb(rows(clients, at), moved(message, device), item.round))
    return clients, {}


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


def say(algorithm: Algorithm, message: Message, cohort: Cohort, known: Message | None = None) -> list[bytes]:
    """The encoded messages of a cohort, in its order; none for a method that sends nothing."""
    if not algorithm.up:
        return []
    layout, sizes = algorithm.up, cohort.sizes.tolist()
    fields = {name: _ready(layout[name], field) for name, field in message.items()}
    long = any(field.is_pinned() and field[0].nbytes >= LONG for field in fields.values())

    def one(i: int) -> bytes:
        own = {name: field[i] for name, field in fields.items()}
        held = {name: field[i] for name, field in (known or {}).items()}
        return encode(layout, own, kind="up", round=cohort.round, samples=sizes[i], known=held)

    return [*ahead(one, range(len(sizes)), len(sizes))] if long else [one(i) for i in range(len(sizes))]


def _ready(codec: Codec, field: Tensor) -> Tensor:
    """A field of all clients on the CPU, signs packed at once before they move."""
    if isinstance(codec, Signs | Differences) and field.dtype != torch.uint8:
        field = codec.pack(field)
    if field.is_cuda and field.nbytes >= PINNED:
        return torch.empty(field.shape, dtype=field.dtype, pin_memory=True).copy_(field)
    return field.cpu()


def listen(
    algorithm: Algorithm,
    messages: Sequence[bytes | Message],
    cohort: Cohort,
    known: Message | None = None,
    early: bool = False,
) -> Iterable[Message]:
    """The messages of a cohort, one by one, decoded unless they are already, signs still packed.

    `early`: while one is used, the next few long ones are decoded on other threads.
    """
    layout, sizes = algorithm.up, cohort.sizes.tolist()

    def one(data: bytes | Message, size: int) -> Message:
        if isinstance(data, bytes):
            return decode(layout, data, kind="up", round=cohort.round, samples=size, known=known, packed=True)
        return {name: field.clone() for name, field in data.items()}  # what is heard may be written over, heard again

    pairs = zip(messages, sizes, strict=True)
    if early and messages and isinstance(messages[0], bytes) and len(messages[0]) >= LONG:
        return ahead(lambda pair: one(*pair), pairs, AHEAD)
    return (one(*pair) for pair in pairs)


def watched(algorithm: Algorithm, server: State, messages: Iterable[Message], found: list[State]) -> Iterable[Message]:
    """The messages as they come; what `diagnose` takes from each is added to `found`."""
    for message in messages:
        found.append(algorithm.diagnose(server, message))
        yield message


def remember(
    algorithm: Algorithm, history: Mapping[int, bytes], news: list[list[News]], seen: Tensor
) -> dict[int, bytes]:
    """The broadcasts that somebody may still have to catch up on, no more of them than a snapshot is long."""
    if not algorithm.replicates:
        return {}
    fresh = {item.round: item.replaces or item.data for items in news for item in items}
    history = {r: data for r, data in sorted({**history, **fresh}.items()) if r > int(seen.min())}
    layout = algorithm.snapshot_layout
    if layout:
        limit = sum(codec.size or 0 for codec in layout.values())
        while history and sum(map(len, history.values())) > limit:
            history.pop(min(history))
    return history


def moved(state: State, device: torch.device) -> State:
    """The same tensors on a device."""
    return {name: value.to(device) for name, value in state.items()}


def rows(state: State, at: Tensor) -> State:
    """The rows of a state at some places (S,), ascending; neighbours are views, all of them the state itself."""
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
    counts = {len(value) for value in state.values()}
    first, last = (int(at[0]), int(at[-1])) if len(at) else (0, -1)
    if first < 0 or any(last >= count for count in counts) or not bool((at[1:] > at[:-1]).all()):
        raise ValueError(f"places must ascend below the number of rows {sorted(counts)}, got {at.tolist()}")
    near = last - first + 1 == len(at)
    return slice(first, last + 1) if near else at, near and counts == {len(at)}
