"""What crosses the network: named tensors in, bytes out, and back (docs/wire.md)."""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from pfed1bs.core.checks import crc32, opened, sealed
from pfed1bs.wire.header import (
    HEAD,
    HEADER,
    KINDS,
    VERSION,
    Facts,
    Header,
    Kind,
    Refused,
    check_crc,
    check_rules,
    opening,
    read_header,
)

__all__ = ["HEADER", "KINDS", "VERSION", "Header", "Kind", "Refused", "read_header"]
__all__ += ["Codec", "Decoder", "Layout", "Message", "coordinates", "fingerprint", "fixed_size"]
__all__ += ["decode", "decoder", "encode", "encoder"]

U32_BYTES = struct.Struct("<I")  # the length before a field of varying size that is not the last
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
Decoder = Callable[[bytes, int | None], Message]
Reader = tuple[int | None, bool, Callable[[bytes | memoryview], Tensor]]


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


@lru_cache(maxsize=64)
def _remembered(fields: tuple[tuple[str, Codec], ...]) -> Facts:
    layout = dict(fields)
    return Facts(fingerprint(layout), coordinates(layout), fixed_size(layout))


def _facts(layout: Layout) -> Facts:
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
    one, held = ({name: x.unsqueeze(0) for name, x in given.items()} for given in (message, known or {}))
    return encoder(layout, one, kind=kind, round=round, samples=[samples], known=held)(0)


def encoder(
    layout: Layout,
    message: Message,
    *,
    kind: Kind,
    round: int,
    samples: Sequence[int],
    known: Mapping[str, Tensor] | None = None,
) -> Callable[[int], bytes]:
    """`encode` for the messages of many, by their places in fields (S, ...); what they share is made once."""
    if message and list(message) != list(layout):
        raise ValueError(f"the fields must be {list(layout)} in that order (or none), got {list(message)}")
    facts = _facts(layout)
    count, number = facts.coordinates if message else 0, KINDS[kind]
    numbers = [("round", round), *(("samples", one) for one in samples), ("number of coordinates", count)]
    for name, value in numbers:
        if not 0 <= value <= U32:
            raise ValueError(f"{name} must be in 0 .. 2^32 - 1, the header has 32 bits for it, got {value}")
    fields = [_rows(name, layout[name], x, (known or {}).get(name)) for name, x in message.items()]

    def one(i: int) -> bytes:
        pieces, floats = list[bytes | memoryview](), 0  # in bits of a number: which are floats, still to be checked
        for place, (codec, row) in enumerate(fields, 1):
            data = row(i)
            if codec.size is None and place < len(fields):
                pieces.append(U32_BYTES.pack(len(data)))
            floats |= hasattr(codec, "believed") << len(pieces)
            pieces.append(data)
        found = sealed(HEAD.pack(VERSION, number, facts.fingerprint, round, count, samples[i]), pieces, floats)
        if found is None:
            raise ValueError("values must be finite, got NaN or infinity; lower the learning rate or check the data")
        return found

    return one


def _rows(
    name: str, codec: Codec, x: Tensor, known: Tensor | None
) -> tuple[Codec, Callable[[int], bytes | memoryview]]:
    """The encoded field (S, ...) of each, by place; a codec that shows them as they lie has looked at all of them."""
    if tuple(x.shape[1:]) != codec.shape and not (x.dtype == torch.uint8 and hasattr(codec, "packed")):
        raise ValueError(f"field {name!r} must have shape {codec.shape}, got {tuple(x.shape[1:])}")
    views: Callable[[Tensor], Callable[[int], memoryview]] | None = getattr(codec, "views", None)
    if views is not None:
        return codec, views(x)
    return codec, lambda i: codec.encode(x[i], None if known is None else known[i])


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
    return decoder(layout, kind=kind, round=round, known=known, packed=packed)(data, samples)


def decoder(
    layout: Layout, *, kind: Kind, round: int, known: Mapping[str, Tensor] | None = None, packed: bool = False
) -> Decoder:
    """`decode` for the messages of many; what they share is made once."""
    facts, number = _facts(layout), KINDS[kind]
    readers = {name: _reader(codec, (known or {}).get(name), packed) for name, codec in layout.items()}
    size, floats = facts.size, [codec.believed for codec in layout.values() if hasattr(codec, "believed")]
    sure = (VERSION, number, facts.fingerprint, round, facts.coordinates)
    single = len(floats) == len(readers) == 1  # floats alone: they are gone through once

    def one(data: bytes, samples: int | None) -> Message:
        whole = memoryview(data)
        if len(data) == size and not single:  # what nothing can be said against is not asked rule by rule
            crc = crc32(whole[HEADER.size :], crc32(whole[: HEAD.size]))
            if HEADER.unpack_from(data) == (*sure, samples, crc):
                return _fields(readers, data)
        header = opening(data)
        if size is not None and len(data) not in (HEADER.size, size):
            wrong = "short" if len(data) < size else "long"
            raise Refused(f"too {wrong}: this layout takes {size} bytes ({HEADER.size} if empty), got {len(data)}")
        crc, payload, own = crc32(whole[: HEAD.size]), whole[HEADER.size :], readers
        if len(data) == size and single:
            crc, read = opened(payload, crc)
            own = {name: (size - HEADER.size, True, lambda _: floats[0](read)) for name in readers}
        else:
            crc = crc32(payload, crc)
        check_crc(header, crc)
        check_rules(header, facts, number, round, samples)
        if header.count:
            return _fields(own, data)
        if len(data) != HEADER.size:
            raise Refused(f"an empty message has no payload, got {len(data) - HEADER.size} bytes of it")
        return {}

    return one


def _reader(codec: Codec, known: Tensor | None, packed: bool) -> Reader:
    """How a field is read: its bytes, if they are always as many, whether a view of them will do, and by what."""
    decoded: Callable[..., Tensor] = getattr(codec, "packed", codec.decode) if packed else codec.decode
    return codec.size, hasattr(codec, "views"), lambda part: decoded(part, known)


def _fields(readers: dict[str, Reader], data: bytes) -> Message:
    message, at, whole, last = {}, HEADER.size, memoryview(data), next(reversed(readers))
    for name, (size, view, read) in readers.items():
        if size is None and name != last:
            if at + U32_BYTES.size > len(data):
                raise Refused(f"field {name!r} is cut inside its length")
            (size,) = U32_BYTES.unpack_from(data, at)
            at += U32_BYTES.size
        end = len(data) if size is None else at + size
        if end > len(data):
            raise Refused(f"field {name!r} needs {end - at} bytes, {len(data) - at} are left")
        try:
            message[name] = read(whole[at:end] if view else data[at:end])
        except ValueError as error:
            raise Refused(f"field {name!r}: {error}") from error
        at = end
    if at != len(data):
        raise Refused(f"{len(data) - at} bytes too many after the last field")
    return message
