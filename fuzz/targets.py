"""Everything that reads what others wrote, by name: a function of bytes that raises only if it is wrong."""

import random
from importlib import import_module
from importlib.util import find_spec

HOMES = ["network", "disk", *(["records"] if find_spec("flwr") else [])]  # whose records are read by Flower first
ROOMS = [import_module(name) for name in HOMES]
TARGETS = {name: target for room in ROOMS for name, target in room.TARGETS.items()}


def seeds() -> dict[str, list[bytes]]:
    """Valid inputs of every target."""
    return {name: inputs for room in ROOMS for name, inputs in room.seeds().items()}


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
