"""Where every random number comes from: named torch streams, and the portable generator behind the projection."""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core import native

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the step of SplitMix64
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # its factors
MASK = (1 << 64) - 1
MOST = 1 << 31  # row numbers are int32
SEPARATOR = "\x1f"  # between the parts of a stream's name

# Purposes of the portable generator, the first name after the seed (docs/wire.md).
SIGNS, ROWS, ROTATION, TIES, LAYERS, ANCHORS = range(6)


def stream(seed: int, *name: str | int) -> torch.Generator:
    """A CPU generator for one purpose: the same (seed, name) draws the same, in whatever order streams are made."""
    parts = [f"{type(part).__name__}:{part}" for part in (seed, *name)]
    if any(SEPARATOR in part for part in parts):
        raise ValueError(f"the name of a stream must not hold the separator {SEPARATOR!r}, got {name}")
    text = SEPARATOR.join(parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))


def word(key: int, index: int) -> int:
    """The 64-bit word number `index` of the sequence `key`: SplitMix64 with random access."""
    z = (key + (index + 1) * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * FIRST) & MASK
    z = ((z ^ (z >> 27)) * SECOND) & MASK
    return z ^ (z >> 31)


def key(seed: int, purpose: int, round: int = 0) -> int:
    """The sequence for one purpose and round of a 64-bit seed."""
    if not 0 <= seed <= MASK:
        raise ValueError(f"seed must fit in 64 bits, got {seed}; choose one in 0 .. 2^64 - 1")
    if round < 0:
        raise ValueError(f"round must not be negative, got {round}; rounds count from 0")
    return word(word(seed, purpose), round)


def words(key: int, count: int, start: int = 0) -> NDArray[np.uint64]:
    """Words start .. start + count - 1 of the sequence `key`."""
    if native.enabled:
        return native.words(key, start, count)
    return sequence(torch.tensor(signed(key)), count, start).numpy().view(np.uint64)


def sequence(key: Tensor, count: int, start: int = 0) -> Tensor:
    """The same words as a tensor, computed where the key lies; the sign of a number is its highest bit."""
    z = key + torch.arange(start + 1, start + 1 + count, device=key.device).mul_(signed(GOLDEN))
    z = (z ^ _shifted(z, 30)) * signed(FIRST)
    z = (z ^ _shifted(z, 27)) * signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, places: int) -> Tensor:
    """The bits of z moved to the right, without copies of the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def signed(word: int) -> int:
    """The bits of a 64-bit word as a number with a sign, which is what tensors have."""
    return word - (1 << 64) if word >> 63 else word


def bits(key: int, count: int) -> NDArray[np.uint8]:
    """`count` random bits, packed little-endian, unused bits of the last byte zero."""
    packed = words(key, (count + 63) // 64).astype("<u8").view(np.uint8)[: (count + 7) // 8]
    if count % 8:
        packed[-1] &= (1 << count % 8) - 1
    return packed


def distinct(key: int, size: int, count: int) -> NDArray[np.int32]:
    """`count` distinct numbers below `size` (a power of two up to 2^31), uniform, ascending.

    They are the first `count` different candidates, two from each word (low half, then high half), each the top
    log2(size) bits of its half. Above size / 2 the numbers that are left out are drawn instead.
    """
    if size & (size - 1) or not 1 <= size <= MOST:
        raise ValueError(
            f"numbers are drawn below a power of two up to 2^31, got {size}: they have 32 bits, with a sign"
        )
    if not 0 <= count <= size:
        raise ValueError(f"there are {size} numbers, so {count} distinct ones cannot be drawn")
    if native.enabled:
        return native.distinct(key, size, count)
    drawn = min(count, size - count)
    seen = np.full(size, -1, np.int64)
    start, candidates = 0, np.empty(0, np.int64)
    while drawn:
        need = drawn if start == 0 else max(64, drawn // 4)
        halves = words(key, need, start).astype("<u8").view("<u4").astype(np.int64)
        start += need
        candidates = np.concatenate([candidates, halves >> (32 - (size.bit_length() - 1))])
        # Written backwards, so that the earliest place of every candidate is the one that stays.
        seen[candidates[::-1]] = np.arange(len(candidates))[::-1]
        first = seen[candidates] == np.arange(len(candidates))
        if int(first.sum()) >= drawn:
            candidates = candidates[first][:drawn]
            break
    member = np.zeros(size, bool)
    member[candidates] = True
    return np.flatnonzero(member if drawn == count else ~member).astype(np.int32)
