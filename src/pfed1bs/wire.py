"""What crosses the network: named tensors in, bytes out, and back (docs/wire.md)."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

import torch
from torch import Tensor

VERSION = 1
HEADER = struct.Struct("<BBHIIII")  # version, kind, layout, round, coordinates, samples, CRC-32 of all the rest
LENGTH = struct.Struct("<I")  # in front of a field of varying size, unless it is the last
Kind = Literal["down", "up", "snapshot"]
KINDS: dict[Kind, int] = {"down": 1, "up": 2, "snapshot": 3}
U32 = (1 << 32) - 1


class Codec(Protocol):
    """How one field of a message becomes bytes; `known` is what the receiver already holds of it."""

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
    samples: int
    crc: int


def coordinates(layout: Layout) -> int:
    """Number of values in a full message."""
    return sum(prod(codec.shape) for codec in layout.values())


def fingerprint(layout: Layout) -> int:
    """16 bits that tell layouts apart: the low half of the CRC-32 of "name=Codec(arguments)" joined by ";"."""
    return zlib.crc32(";".join(f"{name}={codec!r}" for name, codec in layout.items()).encode()) & 0xFFFF


def fixed_size(layout: Layout) -> int | None:
    """Bytes of every full message with its header, or None if a field varies."""
    sizes = [codec.size for codec in layout.values()]
    return None if None in sizes else HEADER.size + sum(size for size in sizes if size is not None)


def encode(
    layout: Layout,
    message: Message,
    *,
    kind: Kind,
    round: int,
    samples: int = 0,
    known: Mapping[str, Tensor] | None = None,
) -> bytes:
    """Header and payload of one message; an empty message is a header alone."""
    if message and list(message) != list(layout):
        raise ValueError(f"the fields must be {list(layout)} in that order (or none), got {list(message)}")
    for name, value in (("round", round), ("samples", samples)):
        if not 0 <= value <= U32:
            raise ValueError(f"{name} must be in 0 .. 2^32 - 1, got {value}")
    known = known or {}
    payload = b""
    for i, name in enumerate(message):
        codec, field = layout[name], message[name]
        if tuple(field.shape) != codec.shape and not (field.dtype == torch.uint8 and hasattr(codec, "packed")):
            raise ValueError(f"field {name!r} must have shape {codec.shape}, got {tuple(field.shape)}")
        data = codec.encode(field, known.get(name))
        payload += data if codec.size is not None or i == len(layout) - 1 else LENGTH.pack(len(data)) + data
    count = coordinates(layout) if message else 0
    head = HEADER.pack(VERSION, KINDS[kind], fingerprint(layout), round, count, samples, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def read_header(data: bytes) -> Header:
    """The header of a message whose version and checksum are right."""
    if len(data) < HEADER.size:
        raise Refused(f"too short: a message has at least {HEADER.size} bytes, got {len(data)}")
    header = Header(*HEADER.unpack_from(data))
    if header.version != VERSION:
        raise Refused(f"version {header.version} is not supported; this program speaks version {VERSION}")
    crc = zlib.crc32(data[HEADER.size :], zlib.crc32(data[: HEADER.size - 4]))
    if crc != header.crc:
        raise Refused(f"checksum is {crc:08x}, the header says {header.crc:08x}: damaged, cut or extended on the way")
    return header


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
    size = fixed_size(layout)
    if size is not None and len(data) not in (HEADER.size, size):
        raise Refused(f"{len(data)} bytes are {'fewer' if len(data) < size else 'more'} than the {size} of this layout")
    header = read_header(data)
    full = coordinates(layout)
    rules = (
        ("kind", header.kind, (KINDS[kind],)),
        ("layout", header.layout, (fingerprint(layout),)),
        ("round", header.round, (round,)),
        ("number of coordinates", header.count, (0, full)),
        ("sample count", header.samples, (header.samples if samples is None else samples,)),
    )
    for name, value, allowed in rules:
        if value not in allowed:
            raise Refused(f"{name} is {value}, expected {' or '.join(map(str, allowed))}")
    if header.count == 0:
        if len(data) != HEADER.size:
            raise Refused(f"an empty message has no payload, got {len(data) - HEADER.size} bytes")
        return {}
    return _fields(layout, data, known or {}, packed)


def _fields(layout: Layout, data: bytes, known: Mapping[str, Tensor], packed: bool) -> Message:
    message, at = {}, HEADER.size
    for i, (name, codec) in enumerate(layout.items()):
        size = codec.size
        if size is None and i < len(layout) - 1:
            if at + LENGTH.size > len(data):
                raise Refused(f"field {name!r} is cut before its length")
            (size,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size
        end = len(data) if size is None else at + size
        if end > len(data):
            raise Refused(f"field {name!r} needs {end - at} bytes, {len(data) - at} are left")
        read = getattr(codec, "packed", codec.decode) if packed else codec.decode
        try:
            message[name] = read(data[at:end], known.get(name))
        except ValueError as error:
            raise Refused(f"field {name!r}: {error}") from error
        at = end
    if at != len(data):
        raise Refused(f"{len(data) - at} bytes too many after the last field")
    return message
