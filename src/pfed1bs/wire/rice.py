"""Rice's code of whole numbers, such as the gaps between sparse places (docs/wire.md).

Unary and low bits stand apart, so that no loop goes from value to value.
"""

from math import floor, log, log2, sqrt

import numpy as np
from numpy.typing import NDArray

GOLDEN = (sqrt(5) - 1) / 2


def exponent(share: float) -> int:
    """The best number of low bits for the gaps between places, of which a share p is taken (Sattler et al., 2019).

    b = 1 + floor(log2(log(golden - 1) / log(1 - p))), and never below 0.
    """
    if not 0 < share <= 1:
        raise ValueError(f"the share of places that are taken must be in (0, 1], got {share}")
    return 0 if share == 1 else max(0, 1 + floor(log2(log(GOLDEN) / log(1 - share))))


def best(values: NDArray[np.int64]) -> int:
    """The number of low bits that makes the code shortest, out of the four next to the logarithm of the mean."""
    if not len(values):
        return 0
    middle = (int(values.sum()) // len(values)).bit_length()
    return min(range(max(0, middle - 2), middle + 2), key=lambda low: len(values) * low + int((values >> low).sum()))


def width(most: int) -> int:
    """Bytes of a whole number up to `most`, such as how many values there are."""
    return (most.bit_length() + 7) // 8


def encode(values: NDArray[np.int64], low: int) -> bytes:
    """For every value v >> low zeros and a one, then the low bits of every value, lowest first; unused bits are 0.

    Bits fill bytes from the lowest. The number of values and of low bits is the caller's to send.
    """
    ends = np.cumsum((values >> low) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    unary[ends] = 1
    rest = np.empty((len(values), low), np.uint8)
    for place in range(low):
        rest[:, place] = values >> place & 1
    return np.packbits(np.concatenate([unary, rest.ravel()]), bitorder="little").tobytes()


def decode(data: bytes, low: int, number: int, most: int) -> NDArray[np.int64]:
    """The values that `encode` was given, which add up to `most` at most; ValueError for bytes that none encode to."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    ends = np.flatnonzero(bits.view(np.bool_))[:number]
    begin = int(ends[-1]) + 1 if len(ends) else 0  # of the low bits
    end = begin + number * low
    if len(ends) < number or not end <= len(bits) < end + 8 or bits[end:].any():
        raise ValueError(f"{number} numbers with {low} low bits do not fill the {len(data)} bytes there are")
    if begin - number << low > most:  # before the shift below, which it keeps within 64 bits
        raise ValueError(f"the numbers add up to more than {most}")
    values = np.diff(ends, prepend=-1) - 1 << low
    rest = bits[begin:end].reshape(number, low)
    for place in range(low):
        values |= rest[:, place].astype(np.int64) << place
    if int(values.sum()) > most:
        raise ValueError(f"the numbers add up to more than {most}")
    return values
