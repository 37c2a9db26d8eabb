"""The lossless codecs of message fields."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, inf, isfinite, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.checks import finite, opened
from pfed1bs.wire import rice
from pfed1bs.wire.differences import Differences
from pfed1bs.wire.signs import Signs, rows_of

__all__ = ["Differences", "Floats", "Levels", "Signs", "Sparse"]

NUMBER = struct.Struct("<f")


@dataclass(frozen=True)
class Floats:
    """Finite float32 values, little-endian, the last axis fastest; `Floats()` is one number.

    `least` is a rule for what may be said, 0 for scales and norms; the bytes do not depend on it.
    """

    shape: tuple[int, ...] = ()
    least: float = -inf

    def __post_init__(self) -> None:
        if prod(self.shape) < 1:
            raise ValueError(f"a field of values needs at least one, got shape {self.shape}; leave the field out")

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"floats {axes(self.shape)}".rstrip()

    @property
    def size(self) -> int:
        """Four bytes a value."""
        return 4 * prod(self.shape)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bytes of x, which must be finite."""
        data = self.views(x.unsqueeze(0))(0)
        if not finite(np.frombuffer(data, "<f4")):
            raise ValueError("values must be finite, got NaN or infinity; lower the learning rate or check the data")
        return bytes(data)

    def views(self, x: Tensor) -> Callable[[int], memoryview]:
        """The bytes of `encode` by place in x (S, ...), where they lie in this order; they may not be finite."""
        if x.dtype != torch.float32:
            raise ValueError(f"values must be float32, got {x.dtype}; convert them with .float()")
        values = np.ascontiguousarray(x.detach().cpu().numpy(), "<f4")
        self._check(values)
        return rows_of(values, self.size)

    def decode(self, data: bytes | memoryview, known: Tensor | None = None) -> Tensor:
        """The values in float32."""
        if len(data) != self.size:
            raise ValueError(f"{prod(self.shape)} float32 values are {self.size} bytes, got {len(data)}")
        if self.shape:
            return self.believed(opened(data)[1])
        (value,) = NUMBER.unpack(data)
        number = torch.scalar_tensor(value, dtype=torch.float32)
        if isfinite(value) and value >= self.least:  # one number: to look at it costs less than to have it looked at
            return number
        return self.believed(number if isfinite(value) else None)

    def believed(self, values: Tensor | None) -> Tensor:
        """Values that were read, in the shape of the field; None stands for some that are not finite."""
        if values is None:
            raise ValueError("values must be finite, got NaN or infinity")
        self._check(values.numpy())
        return values.reshape(self.shape)

    def _check(self, values: NDArray[np.float32]) -> None:
        if self.least > -inf and values.min() < self.least:
            raise ValueError(f"values must be at least {self.least:g}, got {values.min():g}: it is a scale or a norm")


@dataclass(frozen=True)
class Levels:
    """Whole numbers below `levels` in the fewest bits that hold them, little-endian; unused bits at the end are 0."""

    shape: tuple[int, ...]
    levels: int

    def __post_init__(self) -> None:
        if prod(self.shape) < 1:
            raise ValueError(f"a field of levels needs at least one, got shape {self.shape}; leave the field out")
        if not 2 <= self.levels <= 1 << 16:
            raise ValueError(f"the number of levels must be in 2 .. 65536, got {self.levels}")

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"levels {axes(self.shape)} {self.levels}"

    @property
    def bits(self) -> int:
        """Bits of one value."""
        return (self.levels - 1).bit_length()

    @property
    def size(self) -> int:
        """Bytes of all values together."""
        return (self.bits * prod(self.shape) + 7) // 8

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bits of whole numbers in 0 .. levels - 1."""
        if x.is_floating_point():
            raise ValueError(f"levels must be whole numbers, got {x.dtype}; convert them with .int()")
        values = x.cpu().numpy().ravel()
        self._check(values)
        bits = np.empty((len(values), self.bits), np.uint8)
        for place in range(self.bits):
            bits[:, place] = values >> place & 1
        return np.packbits(bits, bitorder="little").tobytes()

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The values in int32."""
        if len(data) != self.size:
            raise ValueError(f"{prod(self.shape)} values of {self.bits} bits are {self.size} bytes, got {len(data)}")
        used = self.bits * prod(self.shape)
        if used % 8 and data[-1] >> used % 8:
            raise ValueError("unused bits of the last byte must be 0")
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=used, bitorder="little").reshape(-1, self.bits)
        values = bits[:, 0].astype(np.int32)
        for place in range(1, self.bits):
            values |= bits[:, place].astype(np.int32) << place
        if self.levels < 1 << self.bits:  # else bits cannot say anything else
            self._check(values)
        return torch.from_numpy(values).reshape(self.shape)

    def _check(self, values: NDArray[np.integer]) -> None:
        if values.min() < 0 or values.max() >= self.levels:
            raise ValueError(f"levels must be in 0 .. {self.levels - 1}, got {values.min()} .. {values.max()}")


@dataclass(frozen=True)
class Sparse:
    """At most `count` of n values are not 0 but +-magnitude: that number, then places and signs in Rice's code.

    Place p is visited at time p stride mod n: neighbours, which tend to be large together, would make gaps uneven.
    A number of values below count is sent too, and the magnitude with a minus says so.
    The code of each is that of 2 gap + (1 if it is negative), where gap counts the zeros since the one before.
    """

    n: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.n:
            raise ValueError(f"the number of values that are not 0 must be in 1 .. n = {self.n}, got {self.count}")

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"sparse {self.n} {self.count}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,)."""
        return (self.n,)

    @property
    def size(self) -> None:
        """It varies."""

    @property
    def stride(self) -> int:
        """The first number from round(0.618 n) on that has no factor in common with n."""
        return next(step for step in range(max(1, round(0.618 * self.n)), self.n + 2) if gcd(step, self.n) == 1)

    @property
    def low(self) -> int:
        """Bits of a gap, with its sign, that do not depend on its length."""
        return rice.exponent(self.count / self.n) + 1

    @property
    def longest(self) -> int:
        """Bytes that no message exceeds."""
        return 4 + self.width + (self.count * (1 + self.low) + (2 * self.n >> self.low) + 7) // 8

    @property
    def width(self) -> int:
        """Bytes of the number of values, which is sent if it is less than count."""
        return rice.width(self.count)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bytes of (n,) values that are 0 or +-magnitude in float32."""
        values = x.detach().cpu().numpy()
        positions = np.flatnonzero(values)
        visits = positions * self.stride % self.n
        order = np.argsort(visits)
        kept, visits = values[positions[order]], visits[order]
        magnitude = np.abs(kept[:1]) if len(kept) else np.zeros(1, np.float32)
        if len(kept) > self.count:
            raise ValueError(f"at most {self.count} values may differ from 0, got {len(kept)}; keep the largest")
        if x.dtype != torch.float32 or not np.isfinite(magnitude).all() or (np.abs(kept) != magnitude).any():
            raise ValueError("values must be 0 or +-magnitude, one finite float32 number for all")
        codes = 2 * (np.diff(visits, prepend=-1) - 1) + (kept < 0)
        if len(codes) == self.count or not len(codes):
            return magnitude.astype("<f4").tobytes() + rice.encode(codes, self.low)
        number = len(codes).to_bytes(self.width, "little")
        return (-magnitude).astype("<f4").tobytes() + number + rice.encode(codes, self.low)

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The (n,) values in float32."""
        if not 4 <= len(data) <= self.longest:
            raise ValueError(f"{self.count} of {self.n} values are 4 to {self.longest} bytes, got {len(data)}")
        magnitude, begin, number = float(Floats((1,)).decode(data[:4])), 4, self.count
        if magnitude < 0:
            magnitude, begin = -magnitude, 4 + self.width
            number = int.from_bytes(data[4:begin], "little")
            if not 0 < number < self.count:
                raise ValueError(f"a number of values is sent if it is in 1 .. {self.count - 1}, got {number}")
        elif not any(data[:4]):
            number = 0
        elif magnitude == 0:
            raise ValueError("the magnitude must be above 0 if there are values, and +0 if there are none")
        codes = rice.decode(data[begin:], self.low, number, 2 * self.n)
        visits = np.cumsum((codes >> 1) + 1) - 1
        if number and visits[-1] >= self.n:
            raise ValueError(f"a value lies beyond the last of {self.n}")
        values = torch.zeros(self.n)
        positions = torch.from_numpy(visits * pow(self.stride, -1, self.n) % self.n)
        values[positions] = magnitude * torch.from_numpy(1 - 2 * (codes & 1)).float()
        return values


def axes(shape: tuple[int, ...]) -> str:
    """A shape as in "2x3"; nothing for one number."""
    return "x".join(map(str, shape))
