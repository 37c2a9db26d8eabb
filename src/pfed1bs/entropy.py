"""Signs by where they differ from what the receiver holds, in Golomb-Rice code (docs/wire.md)."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.signs import Signs
from pfed1bs.votes import unpack

PLAIN = 255  # first byte of the plain form; that of the coded form is the number of low bits of a gap
CHECK_BYTES = 2  # of the signs themselves: a receiver that holds something else finds out


@dataclass(frozen=True)
class Entropy:
    """+-1 as differences to `known`; plain without one, or if that is shorter. At most ceil(count / 8) + 1 bytes.

    Both `x` and `known` may be packed already (uint8). Gaps between random places are geometric, for which Rice's code
    is nearly optimal; unary and low bits stand apart, so that no loop goes from gap to gap.
    """

    count: int

    def __post_init__(self) -> None:
        Signs(self.count)

    @property
    def shape(self) -> tuple[int, ...]:
        """(count,)."""
        return (self.count,)

    @property
    def size(self) -> None:
        """It varies."""

    @property
    def longest(self) -> int:
        """Bytes of the plain form, which no message exceeds."""
        return 1 + Signs(self.count).size

    def pack(self, x: Tensor) -> Tensor:
        """Bits of (..., count) values +-1 as (..., ceil(count / 8)) bytes, on the device of x."""
        return Signs(self.count).pack(x)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """The shorter form of (count,) signs."""
        data = Signs(self.count).encode(x)
        coded = b"" if known is None else _coded(data, Signs(self.count).encode(known), self.count)
        return coded if 0 < len(coded) < self.longest else bytes([PLAIN]) + data

    def packed(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The signs as a uint8 tensor, for votes."""
        if data[:1] == bytes([PLAIN]):
            return Signs(self.count).packed(data[1:])
        if not len(data) < self.longest:
            raise ValueError(f"differences of {self.count} signs take less than {self.longest} bytes, got {len(data)}")
        places = _places(data, self.count)
        if known is None:
            raise ValueError("it holds differences to signs that this receiver does not have; ask for the plain form")
        held = np.frombuffer(Signs(self.count).encode(known), np.uint8)
        changed = np.zeros(self.count, np.uint8)
        changed[places] = 1
        signs = np.packbits(changed, bitorder="little") ^ held
        if _check(signs.tobytes()) != data[1 : 1 + CHECK_BYTES]:
            raise ValueError("it holds differences to other signs than this receiver has; ask for the plain form")
        return torch.from_numpy(signs)

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """(count,) values +-1 in float32."""
        return unpack(self.packed(data, known), self.count)


def _check(signs: bytes) -> bytes:
    """The low bytes of the CRC-32."""
    return zlib.crc32(signs).to_bytes(4, "little")[:CHECK_BYTES]


def _width(count: int) -> int:
    """Bytes of a number up to `count`."""
    return (count.bit_length() + 7) // 8


def _coded(signs: bytes, held: bytes, count: int) -> bytes:
    """Low bits of a gap, check, number of differences, unary parts of all gaps, low bits of all gaps."""
    changed = np.frombuffer(signs, np.uint8) ^ np.frombuffer(held, np.uint8)
    touched = np.flatnonzero(changed != 0)  # of booleans it is four times as fast as of bytes
    bits = np.flatnonzero(np.unpackbits(changed[touched], bitorder="little").view(np.bool_))
    places = 8 * touched[bits >> 3] + (bits & 7)
    gaps = np.diff(places, prepend=-1) - 1
    low = _low(gaps)
    head = bytes([low]) + _check(signs) + len(gaps).to_bytes(_width(count), "little")
    ends = np.cumsum((gaps >> low) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    unary[ends] = 1
    rest = np.empty((len(gaps), low), np.uint8)
    for place in range(low):
        rest[:, place] = gaps >> place & 1
    return head + np.packbits(np.concatenate([unary, rest.ravel()]), bitorder="little").tobytes()


def _low(gaps: NDArray[np.int64]) -> int:
    """The number of low bits that makes the code shortest, out of the four next to the logarithm of the mean gap."""
    if not len(gaps):
        return 0
    middle = (int(gaps.sum()) // len(gaps)).bit_length()
    return min(range(max(0, middle - 2), middle + 2), key=lambda low: len(gaps) * low + int((gaps >> low).sum()))


def _places(data: bytes, count: int) -> NDArray[np.int64]:
    """Where the signs differ, ascending; ValueError for bytes that no signs are coded to."""
    head = 1 + CHECK_BYTES + _width(count)
    if len(data) < head:
        raise ValueError(f"differences begin with {head} bytes, got {len(data)}")
    low, number = data[0], int.from_bytes(data[1 + CHECK_BYTES : head], "little")
    if low > count.bit_length():
        raise ValueError(f"first byte must be {PLAIN} or at most {count.bit_length()}, got {low}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=head), bitorder="little")
    ends = np.flatnonzero(bits.view(np.bool_))[:number]
    begin = int(ends[-1]) + 1 if len(ends) else 0  # of the low bits
    end = begin + number * low
    if len(ends) < number or not end <= len(bits) < end + 8 or bits[end:].any():
        raise ValueError(f"{number} gaps with {low} low bits do not fill the {len(data) - head} bytes that follow")
    if begin - number << low >= count:  # before the shift below, which it keeps within 64 bits
        raise ValueError(f"a difference lies beyond the last of {count} signs")
    gaps = np.diff(ends, prepend=-1) - 1 << low
    rest = bits[begin:end].reshape(number, low)
    for place in range(low):
        gaps |= rest[:, place].astype(np.int64) << place
    places = np.cumsum(gaps + 1) - 1
    if number and places[-1] >= count:
        raise ValueError(f"a difference lies beyond the last of {count} signs")
    return places
