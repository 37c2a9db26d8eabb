"""The fixed part of a message, and the rules that it is held against (docs/wire.md)."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pfed1bs.core.checks import crc32

VERSION = 3
HEADER = struct.Struct("<BBHIIII")  # version, kind, layout, round, coordinates, samples, CRC-32 of all the rest
HEAD = struct.Struct("<BBHIII")  # the same without its checksum
Kind = Literal["down", "up", "snapshot"]
KINDS: dict[Kind, int] = {"down": 1, "up": 2, "snapshot": 3}
NAMES = {number: name for name, number in KINDS.items()}


class Refused(ValueError):
    """A message that breaks a rule of the format; nothing of it may be used."""


@dataclass(slots=True)  # not frozen, which would take five times as long to make
class Header:
    """The fixed part of a message."""

    version: int
    kind: int
    layout: int
    round: int
    count: int
    samples: int  # of a client; in a message of the server the checksum of the replica it leads to
    crc: int  # over all bytes but these four


class Facts(NamedTuple):
    """What every message of a layout has in common."""

    fingerprint: int
    coordinates: int
    size: int | None


def read_header(data: bytes) -> Header:
    """The header of a message whose version and checksum are right."""
    header = opening(data)
    check_crc(header, crc32(memoryview(data)[HEADER.size :], crc32(data[: HEAD.size])))
    return header


def opening(data: bytes) -> Header:
    """The header of a message whose version is right."""
    if len(data) < HEADER.size:
        raise Refused(f"too short: a message has at least {HEADER.size} bytes, got {len(data)}")
    header = Header(*HEADER.unpack_from(data))
    if header.version != VERSION:
        raise Refused(f"version is {header.version}, expected {VERSION}: the sender runs another release")
    return header


def check_crc(header: Header, crc: int) -> None:
    """Refuse a message whose checksum is another than its header says."""
    if crc != header.crc:
        raise Refused(f"checksum is {crc:08x}, the header says {header.crc:08x}: damaged, cut or extended on the way")


def check_rules(header: Header, facts: Facts, kind: int, round: int, samples: int | None) -> None:
    """Refuse a message that is not the one expected, and name the rule."""
    agreed = header.samples if samples is None else samples
    right = (kind, facts.fingerprint, round, agreed) == (header.kind, header.layout, header.round, header.samples)
    if right and header.count in (0, facts.coordinates):
        return
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
