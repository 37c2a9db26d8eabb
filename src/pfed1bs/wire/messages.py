"""What crosses the network: named tensors in, bytes out, and back (docs/wire.md)."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pfed1bs.core.checks import crc32, opened, sealed

VERSION = 3
HEADER = struct.Struct("<BBHIIII")  # version, kind, layout, round, coordinates, samples, CRC-32 of all the rest
U32_BYTES = struct.Struct("<I")  # the checksum, and the length before a field of varying size that is not the last
Kind = Literal["down", "up", "snapshot"]
KINDS: dict[Kind, int] = {"down": 1, "up": 2, "snapshot": 3}
CHECKED = HEADER.size - U32_BYTES.size  # bytes of the header before its checksum
NAMES = {number: name for name, number in KINDS.items()}
U32 = (1 << 32) - 1


class Codec(Protocol):
    """How one field of a message becomes bytes; `known` is what the receiver already holds of it."""

    @property
    def wire(self) -> str:
        """Name and numbers in the fingerprint of a layout; part of the format, whatever the class is called."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the field in one message."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes of every encoded field, or None if that varies."""
        ...

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """The bytes of x."""
        ...

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The tensor that `encode` was given; ValueError for bytes that no tensor encodes to."""
        ...


Message = dict[str, Tensor]
Layout = Mapping[str, Codec]


class Refused(ValueError):
    """A message that breaks a rule of the format; nothing of it may be used."""


@dataclass(frozen=True)
class Header:
    """The fixed part of a message."""

    version: int
    kind: int
    layout: int
    round: int
    count: int
    samples: int  # of a client; in a message of the server the checksum of the replica it leads to
    crc: int  # over all bytes but these four


def coordinates(layout: Layout) -> int:
    """Number of values in a full message."""
    return sum(prod(codec.shape) for codec in layout.values())


def fingerprint(layout: Layout) -> int:
    """16 bits that tell layouts apart: the low half of the CRC-32 of "name=codec numbers" joined by ";"."""
    return crc32(";".join(f"{name}={codec.wire}" for name, codec in layout.items()).encode()) & 0xFFFF


def fixed_size(layout: Layout) -> int | None:
    """Bytes of every full message with its header, or None if a field varies."""
    sizes = [codec.size for codec in layout.values()]
    return None if None in sizes else HEADER.size + sum(size for size in sizes if size is not None)


class _Facts(NamedTuple):
    """What every message of a layout has in common."""

    fingerprint: int
    coordinates: int
    size: int | None


@lru_cache(maxsize=64)
def _remembered(fields: tuple[tuple[str, Codec], ...]) -> _Facts:
    layout = dict(fields)
    return _Facts(fingerprint(layout), coordinates(layout), fixed_size(layout))


def _facts(layout: Layout) -> _Facts:
    try:
        return _remembered(tuple(layout.items()))
    except TypeError:  # a codec that cannot be a key
        return _remembered.__wrapped__(tuple(layout.items()))


def encode(
    layout: Layout,
    message: Message,
    *,
    kind: Kind,
    round: int,
    samples: int = 0,
    known: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Header and payload of one message; an empty message is a header alone.

    `samples` is what the sender claims: a client its training samples, a server the checksum of its replica.
    """
    if message and list(message) != list(layout):
        raise ValueError(f"the fields must be {list(layout)} in that order (or none), got {list(message)}")
    facts = _facts(layout)
    count = facts.coordinates if message else 0
    for name, value in (("round", round), ("samples", samples), ("number of coordinates", count)):
        if not 0 <= value <= U32:
            raise ValueError(f"{name} must be in 0 .. 2^32 - 1, the header has 32 bits for it, got {value}")
    head = HEADER.pack(VERSION, KINDS[kind], facts.fingerprint, round, count, samples, 0)[:-4]
    pieces, floats = _payload(layout, message, known or {})
    data = sealed(head, pieces, floats)
    if data is None:
        raise ValueError("values must be finite, got NaN or infinity; lower the learning rate or check the data")
    return data


def _payload(layout: Layout, message: Message, known: Mapping[str, Tensor]) -> tuple[list[bytes | memoryview], int]:
    """The encoded fields in the order of the layout, with a length before those that need one.

    And in bits of a number, which of these pieces are floats that are still to be checked.
    """
    pieces: list[bytes | memoryview] = []
    floats = 0
    for i, (name, field) in enumerate(message.items(), 1):
        codec = layout[name]
        if tuple(field.shape) != codec.shape and not (field.dtype == torch.uint8 and hasattr(codec, "packed")):
            raise ValueError(f"field {name!r} must have shape {codec.shape}, got {tuple(field.shape)}")
        view: Callable[[Tensor], memoryview] | None = getattr(codec, "view", None)
        data = codec.encode(field, known.get(name)) if view is None else view(field)
        if codec.size is None and i < len(layout):
            pieces.append(U32_BYTES.pack(len(data)))
        floats |= (view is not None) << len(pieces)
        pieces.append(data)
    return pieces, floats


def read_header(data: bytes) -> Header:
    """The header of a message whose version and checksum are right."""
    header = _header(data)
    _check_crc(header, crc32(memoryview(data)[HEADER.size :], crc32(data[:CHECKED])))
    return header


def _header(data: bytes) -> Header:
    if len(data) < HEADER.size:
        raise Refused(f"too short: a message has at least {HEADER.size} bytes, got {len(data)}")
    header = Header(*HEADER.unpack_from(data))
    if header.version != VERSION:
        raise Refused(f"version is {header.version}, expected {VERSION}: the sender runs another release")
    return header


def _check_crc(header: Header, crc: int) -> None:
    if crc != header.crc:
        raise Refused(f"checksum is {crc:08x}, the header says {header.crc:08x}: damaged, cut or extended on the way")


def _check_rules(header: Header, facts: _Facts, kind: int, round: int, samples: int | None) -> None:
    agreed = header.samples if samples is None else samples
    rules: tuple[tuple[str, int, tuple[int, ...], Callable[[int], object], str], ...] = (
        ("kind", header.kind, (kind,), lambda number: NAMES.get(number, number), "it answers another question"),
        ("layout", header.layout, (facts.fingerprint,), "{:04x}".format, "the sender has another model or method"),
        ("round", header.round, (round,), int, "it comes too late or too early"),
        ("number of coordinates", header.count, (0, facts.coordinates), int, "the sender has another model"),
        ("sample count", header.samples, (agreed,), int, "not what was agreed on"),
    )
    for name, value, allowed, shown, why in rules:
        if value not in allowed:
            expected = " or ".join(str(shown(one)) for one in allowed)
            raise Refused(f"{name} is {shown(value)}, expected {expected}: {why}")


def decode(
    layout: Layout,
    data: bytes,
    *,
    kind: Kind,
    round: int,
    samples: int | None = None,
    known: Mapping[str, Tensor] | None = None,
    packed: bool = False,
) -> Message:
    """The message that `encode` was given, or a Refused that names the broken rule.

    `samples`: the count the sender must have claimed (None: any). `packed`: leave signs as packed bytes.
    """
    header, facts, payload = _header(data), _facts(layout), memoryview(data)[HEADER.size :]
    size = facts.size
    if size is not None and len(data) not in (HEADER.size, size):
        wrong = "short" if len(data) < size else "long"
        raise Refused(f"too {wrong}: this layout takes {size} bytes ({HEADER.size} if empty), got {len(data)}")
    read: Tensor | None | Literal[False] = False
    if len(data) == size and [hasattr(codec, "believed") for codec in layout.values()] == [True]:
        crc, read = opened(payload, crc32(data[:CHECKED]))  # floats alone: they are gone through once
    else:
        crc = crc32(payload, crc32(data[:CHECKED]))
    _check_crc(header, crc)
    _check_rules(header, facts, KINDS[kind], round, samples)
    if header.count:
        return _fields(layout, data, known or {}, packed, read)
    if len(data) != HEADER.size:
        raise Refused(f"an empty message has no payload, got {len(data) - HEADER.size} bytes of it")
    return {}


def _fields(
    layout: Layout, data: bytes, known: Mapping[str, Tensor], packed: bool, read: Tensor | None | Literal[False]
) -> Message:
    message, at, whole = {}, HEADER.size, memoryview(data)
    for i, (name, codec) in enumerate(layout.items(), 1):
        size = codec.size
        if size is None and i < len(layout):
            if at + U32_BYTES.size > len(data):
                raise Refused(f"field {name!r} is cut inside its length")
            (size,) = U32_BYTES.unpack_from(data, at)
            at += U32_BYTES.size
        end = len(data) if size is None else at + size
        if end > len(data):
            raise Refused(f"field {name!r} needs {end - at} bytes, {len(data) - at} are left")
        decoded: Callable[..., Tensor] = getattr(codec, "packed", codec.decode) if packed else codec.decode
        part = whole[at:end] if hasattr(codec, "view") else data[at:end]
        try:
            message[name] = decoded(part, known.get(name)) if read is False else codec.believed(read)  # type: ignore[attr-defined]
        except ValueError as error:
            raise Refused(f"field {name!r}: {error}") from error
        at = end
    if at != len(data):
        raise Refused(f"{len(data) - at} bytes too many after the last field")
    return message
