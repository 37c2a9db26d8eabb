"""Targets: messages of every codec and method, Rice's code and snapshots."""

import struct
import zlib
from functools import cache
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.exchange import hear
from pfed1bs.engine.rounds import begin
from pfed1bs.flower.client import checked
from pfed1bs.nn.task import Task
from pfed1bs.wire import rice
from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.messages import (
    HEADER,
    KINDS,
    VERSION,
    Kind,
    Layout,
    Message,
    Refused,
    coordinates,
    decode,
    encode,
    fingerprint,
    read_header,
)
from pfed1bs.wire.rows import CountedRows, Rows

ROUND, SAMPLES = 4, 10
LAYOUTS: list[Layout] = [
    {"a": Signs(9)},
    {"a": Differences(300)},
    {"a": Differences(40), "b": Differences(17)},
    {"a": Sparse(300, 20)},
    {"a": Sparse(5, 5), "b": Floats((2, 2))},
    {"a": Levels((7,), 5), "b": Floats((), 0)},
    {"a": Levels((3,), 1 << 16)},
    {"a": Rows(5, 2)},
    {"a": CountedRows(10, 3), "b": Signs(3)},
    {"a": Floats((2,)), "b": Either(2, 5)},
]


@cache
def methods() -> list[Algorithm]:
    """Every method on a tiny model, and those with other messages once more."""
    task = Task(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    coded = [("pfed1bs", {"code": "entropy"}), ("pfed1bs-delta", {"snapshots": "coded"})]
    coded.append(("powersgd", {"factors": "half"}))
    return [make(name, task) for name in REGISTRY] + [make(name, task, **options) for name, options in coded]


@cache
def layouts() -> list[tuple[Layout, Kind]]:
    """All layouts that are spoken, with the kind of message they are spoken in."""
    kinds: list[Kind] = ["up", "down", "snapshot"]
    told = [(one.up, one.down, one.snapshot_layout) for one in methods()]
    found = [(layout, kind) for three in told for layout, kind in zip(three, kinds, strict=True) if layout]
    return [*((layout, "up") for layout in LAYOUTS), *found]


def sealed(layout: Layout, kind: Kind, payload: bytes, empty: bool = False, round: int = ROUND) -> bytes:
    """A message whose header is right in everything."""
    count = 0 if empty else coordinates(layout)
    head = struct.pack("<BBHIII", VERSION, KINDS[kind], fingerprint(layout), round, count, SAMPLES)
    return head + struct.pack("<I", zlib.crc32(head + payload)) + payload


def known_of(layout: Layout) -> dict[str, Tensor]:
    """Signs that a receiver holds already."""
    return {name: torch.ones(prod(codec.shape)) for name, codec in layout.items() if isinstance(codec, Differences)}


def same(a: Message, b: Message) -> bool:
    """Whether two messages have the same fields with the same bytes."""
    return [*a] == [*b] and all(a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a)


def message(data: bytes) -> None:
    """A message is refused, or it says what its own encoding says again."""
    if len(data) < 2:
        return
    layout, kind = layouts()[data[0] % len(layouts())]
    raw, empty, holds = data[1] & 1, bool(data[1] & 2), data[1] & 4
    known = known_of(layout) if holds else {}
    sent = data[2:] if raw else sealed(layout, kind, data[2:], empty)
    try:
        read_header(sent)
        found = decode(layout, sent, kind=kind, round=ROUND, known=known)
        packed = decode(layout, sent, kind=kind, round=ROUND, known=known, packed=True)
    except Refused:
        return
    assert [*packed] == [*found] and all(value.isfinite().all() for value in found.values())
    again = encode(layout, found, kind=kind, round=ROUND, samples=SAMPLES, known=known)
    assert same(decode(layout, again, kind=kind, round=ROUND, known=known), found)


def rice_code(data: bytes) -> None:
    """Rice's code is refused, or its numbers are coded to the same bytes."""
    if len(data) < 5:
        return
    low, number, most = data[0] % 64, data[1] | data[2] << 8, int.from_bytes(data[3:5], "little") << data[0] % 48
    try:
        values = rice.decode(data[5:], low, number, most)
    except ValueError:
        return
    assert len(values) == number and values.sum() <= most and (values >= 0).all()
    assert rice.encode(values.astype(np.int64), low) == data[5:]


def snapshot(data: bytes) -> None:
    """A client that hears news refuses them, or has finite states of the same shapes after them."""
    if len(data) < 3:
        return
    chosen = [one for one in methods() if one.replicates]
    algorithm, kind = chosen[data[0] % len(chosen)], ("snapshot", "down")[data[1] & 1]
    layout = algorithm.snapshot_layout if kind == "snapshot" else algorithm.down
    at = algorithm.anchor(ROUND) if kind == "snapshot" else ROUND
    news = [sealed(layout, kind, data[2:], round=at)]
    news += [sealed(algorithm.down, "down", b"", True, r) for r in range(at + 1, ROUND + 1)]
    clients = begin(algorithm, 1).clients
    try:
        heard, _ = hear(algorithm, clients, [checked(algorithm, news, ROUND - 1, ROUND)])
    except ValueError:
        return
    assert {name: value.shape for name, value in heard.items()} == {name: v.shape for name, v in clients.items()}


def seeds() -> dict[str, list[bytes]]:
    """Valid inputs of every target."""
    draws = torch.Generator().manual_seed(0)
    found: dict[str, list[bytes]] = {"messages": [], "rice": [], "snapshots": []}
    for i, (layout, kind) in enumerate(layouts()):
        content = {name: drawn(codec, draws) for name, codec in layout.items()}
        for known in ({}, known_of(layout)):
            whole_one = encode(layout, content, kind=kind, round=ROUND, samples=SAMPLES, known=known)
            found["messages"].append(bytes([i, 4 if known else 0]) + whole_one[HEADER.size :])
        found["messages"].append(bytes([i, 1]) + whole_one)
    values = np.array([0, 3, 17, 1, 0, 200])
    found["rice"] = [bytes([low, 6, 0, 255, 0]) + rice.encode(values, low) for low in (0, 2, 5)]
    for i, one in enumerate(algorithm for algorithm in methods() if algorithm.replicates):
        for flag, layout in enumerate((one.snapshot_layout, one.down)):
            content = {name: drawn(codec, draws) for name, codec in layout.items()}
            payload = encode(layout, content, kind="up", round=0)[HEADER.size :] if layout else b""
            found["snapshots"].append(bytes([i, flag]) + payload)
    return found


def drawn(codec: object, draws: torch.Generator) -> Tensor:
    """A value that the codec can say."""
    shape = codec.shape  # type: ignore[attr-defined]
    values = torch.randn(shape, generator=draws)
    if isinstance(codec, Signs | Differences):
        return torch.where(values >= 0, 1.0, -1.0)
    if isinstance(codec, Levels):
        return torch.randint(codec.levels, shape, generator=draws, dtype=torch.int32)
    if isinstance(codec, Sparse):
        return torch.zeros(shape).index_fill_(0, torch.arange(codec.count // 2 + 1), 0.5)
    if isinstance(codec, Rows | CountedRows):
        return torch.cat([torch.arange(shape[0])[:, None].clamp(max=1), values[:, 1:]], 1)
    return values.abs() if getattr(codec, "least", -1) == 0 else values


TARGETS = {"messages": message, "rice": rice_code, "snapshots": snapshot}
