"""Rounds as TensorBoard reads them: a file of records, each a small protocol buffer, written without TensorFlow."""

import json
import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

TABLE = []  # of CRC-32C, by the byte that leaves the register
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def export(folder: Path, home: Path, below: Iterable[str | Path] = ()) -> Path:
    """Write the rounds of a run folder to a folder under `home`, named as it lies below one of these; the file."""
    env = json.loads((folder / "env.json").read_text())
    begun = datetime.fromisoformat(env.get("time", "1970-01-01T00:00:00Z")).timestamp()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    above = next(
        (Path(place) for place in below if folder.is_relative_to(place) and folder != Path(place)), folder.parent
    )
    path = home / folder.relative_to(above) / f"events.out.tfevents.{int(begun)}.pfed1bs"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, events(rows, begun))))
    return path


def events(rows: Iterable[Mapping[str, object]], begun: float) -> Iterable[bytes]:
    """The version of the format, then an event for every round, at the time when the round had ended."""
    yield double(1, begun) + text(3, b"brain.Event:2")
    for row in rows:
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        begun += numbers.get("seconds", 0.0)
        values = [text(1, key.encode()) + single(2, value) for key, value in numbers.items() if key != "round"]
        summary = b"".join(text(1, value) for value in values)
        yield double(1, begun) + whole(2, int(numbers["round"]) + 1) + text(5, summary)


def record(data: bytes) -> bytes:
    """Length, its checksum, the bytes, their checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """CRC-32C, turned so that checksums of data with checksums inside stay good ones."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def double(field: int, value: float) -> bytes:
    """A field of 8 bytes."""
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def single(field: int, value: float) -> bytes:
    """A field of 4 bytes."""
    return bytes([field << 3 | 5]) + struct.pack("<f", value)


def text(field: int, value: bytes) -> bytes:
    """A field with its length before it."""
    return bytes([field << 3 | 2]) + varint(len(value)) + value


def whole(field: int, value: int) -> bytes:
    """A whole number from 0 on."""
    return bytes([field << 3]) + varint(value)


def varint(value: int) -> bytes:
    """Seven bits a byte, the low ones first, a high bit where more follow."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
