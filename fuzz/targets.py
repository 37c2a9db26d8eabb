"""Everything that reads what others wrote, by name: a function of bytes that raises only if it is wrong."""

import random

import disk
import network

TARGETS = {**network.TARGETS, **disk.TARGETS}


def seeds() -> dict[str, list[bytes]]:
    """Valid inputs of every target."""
    return {**network.seeds(), **disk.seeds()}


def mutant(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """An input with a few accidents: flipped, cut, doubled, exchanged, and numbers that are large."""
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = at + chance.choice((1, 2, 4, 8, 32))
        new = (
            bytes([data[at] ^ 1 << chance.randrange(8)]) if at < len(data) else b"",
            b"",
            data[at:end] * 2,
            other[at:end],
            chance.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * (end - at),
            chance.randbytes(end - at),
        )
        piece = chance.choice(new)
        data = data[:at] + piece + data[at + (1 if piece is new[0] else end - at) :]
    return data[:at] if chance.random() < 0.1 else data
