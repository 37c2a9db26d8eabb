"""Signs by where they differ from what the receiver holds, in Rice's code (docs/wire.md)."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.votes import unpack
from pfed1bs.wire import rice
from pfed1bs.wire.signs import Signs

PLAIN = 255  # first byte of the plain form; that of the coded form is the number of low bits of a gap
CHECK_BYTES = 2  # of the signs themselves: a receiver that holds something else finds out


@dataclass(frozen=True)
class Differences:
    """+-1 as differences to `known`; plain without one, or if that is shorter. At most ceil(count / 8) + 1 bytes.

    Both `x` and `known` may be packed already (uint8). Gaps between random places are geometric, for which Rice's code
    is nearly optimal.
    """

    count: int

    def __post_init__(self) -> None:
        Signs(self.count)

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"differences {self.count}"

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


def _coded(signs: bytes, held: bytes, count: int) -> bytes:
    """Low bits of a gap, check, number of differences, the code of the gaps between them."""
    changed = np.frombuffer(signs, np.uint8) ^ np.frombuffer(held, np.uint8)
    touched = np.flatnonzero(changed != 0)  # of booleans it is four times as fast as of bytes
    bits = np.flatnonzero(np.unpackbits(changed[touched], bitorder="little").view(np.bool_))
    gaps = np.diff(8 * touched[bits >> 3] + (bits & 7), prepend=-1) - 1
    low = rice.best(gaps)
    head = bytes([low]) + _check(signs) + len(gaps).to_bytes(rice.width(count), "little")
    return head + rice.encode(gaps, low)


def _places(data: bytes, count: int) -> NDArray[np.int64]:
    """Where the signs differ, ascending; ValueError for bytes that no signs are coded to."""
    head = 1 + CHECK_BYTES + rice.width(count)
    if len(data) < head:
        raise ValueError(f"differences begin with {head} bytes, got {len(data)}")
    low, number = data[0], int.from_bytes(data[1 + CHECK_BYTES : head], "little")
    if low > count.bit_length():
        raise ValueError(f"first byte must be {PLAIN} or at most {count.bit_length()}, got {low}")
    if number > count:
        raise ValueError(f"there are {number} differences among {count} signs")
    return np.cumsum(rice.decode(data[head:], low, number, count - number) + 1) - 1
