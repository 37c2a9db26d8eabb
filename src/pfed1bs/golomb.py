"""Golomb-Rice codes of non-negative integers: short bits for the gaps between sparse positions (docs/wire.md)."""

from math import floor, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray

GOLDEN = (sqrt(5) - 1) / 2


def exponent(share: float) -> int:
    """The best number of low bits for the gaps between positions, of which a share p is taken (Sattler et al., 2019).

    b = 1 + floor(log2(log(golden - 1) / log(1 - p))), and never below 0.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of positions that are taken must be in (0, 1], got {share}")
    return 0 if share == 1 else max(0, 1 + floor(log2(log(GOLDEN) / log(1 - share))))


def encode(values: NDArray[np.int64], low: int) -> bytes:
    """Each value as v >> low ones, a zero, and the low bits, lowest first; bits fill bytes from the lowest.

    The unused bits of the last byte are ones: fewer than eight ones cannot be a code, so no count is needed.
    """
    high = values >> low
    zeros = np.cumsum(high + 1 + low) - 1 - low  # where the zero of every code stands
    total = int(zeros[-1]) + 1 + low if len(zeros) else 0
    bits = np.ones((total + 7) // 8 * 8, np.uint8)
    bits[zeros] = 0
    for place in range(low):
        bits[zeros + 1 + place] = values >> place & 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode(data: bytes, low: int) -> NDArray[np.int64]:
    """The values that `encode` was given; ValueError for bytes that no values encode to."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    # The first zero at or after every place, then where the code that begins there ends; one more place ends the walk.
    places = np.where(bits == 0, np.arange(len(bits)), len(bits))
    zeros = np.minimum.accumulate(places[::-1])[::-1]
    begins, at = [], 0
    after = (zeros + 1 + low).tolist()
    while at < len(after) and after[at] <= len(after):
        begins.append(at)
        at = after[at]
    rest = len(bits) - at
    if rest >= 8 or not bits[at:].all():
        raise ValueError(f"{rest} bits at the end are no whole code; only up to 7 ones may follow the last one")
    start = np.array(begins, np.int64)
    zero = zeros[start]
    values = (zero - start) << low
    for place in range(low):
        values |= bits[zero + 1 + place].astype(np.int64) << place
    return values
