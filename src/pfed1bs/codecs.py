"""The lossless codecs of message fields."""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from pfed1bs.votes import pack, unpack


@dataclass(frozen=True)
class Signs:
    """+-1 as one bit each, little-endian, 1 for +1; the unused bits of the last byte are 0."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a field of signs needs at least one, got {self.count}; leave the field out")

    @property
    def shape(self) -> tuple[int, ...]:
        """(count,)."""
        return (self.count,)

    @property
    def size(self) -> int:
        """Bytes, eight signs in each."""
        return (self.count + 7) // 8

    def pack(self, x: Tensor) -> Tensor:
        """Bits of (..., count) values +-1 as (..., size) bytes, on the device of x."""
        low, high = x.abs().aminmax()
        if not low == high == 1:
            raise ValueError("signs must be +1 or -1; pass sign(x), where 0 counts as +1")
        return pack(x)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bits of (count,) values +-1, or of signs that are packed already (uint8)."""
        data = (x if x.dtype == torch.uint8 else self.pack(x)).cpu().numpy().tobytes()
        self._check(data)
        return data

    def packed(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The same bits as a uint8 tensor, for votes."""
        self._check(data)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """(count,) values +-1 in float32."""
        return unpack(self.packed(data), self.count)

    def _check(self, data: bytes) -> None:
        if len(data) != self.size:
            raise ValueError(f"{self.count} signs are {self.size} bytes, got {len(data)}")
        if self.count % 8 and data[-1] >> self.count % 8:
            raise ValueError("unused bits of the last byte must be 0")


@dataclass(frozen=True)
class Floats:
    """Finite float32 values, little-endian, the last axis fastest; `Floats()` is one number."""

    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if prod(self.shape) < 1:
            raise ValueError(f"a field of values needs at least one, got shape {self.shape}; leave the field out")

    @property
    def size(self) -> int:
        """Four bytes a value."""
        return 4 * prod(self.shape)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bytes of x, which must be finite."""
        if x.dtype != torch.float32:
            raise ValueError(f"values must be float32, got {x.dtype}; convert them with .float()")
        values = x.detach().cpu().numpy()
        if not np.isfinite(values).all():
            raise ValueError("values must be finite, got NaN or infinity; lower the learning rate or check the data")
        return values.astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The values in float32."""
        if len(data) != self.size:
            raise ValueError(f"{prod(self.shape)} float32 values are {self.size} bytes, got {len(data)}")
        values = np.frombuffer(data, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError("values must be finite, got NaN or infinity")
        return torch.from_numpy(values).reshape(self.shape)
