"""+-1 in one bit each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.votes import pack, unpack

BLOCK = 1 << 15  # values that a CPU checks at once, so that they stay in its cache


@dataclass(frozen=True)
class Signs:
    """+-1 as one bit each, little-endian, 1 for +1; the unused bits of the last byte are 0."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a field of signs needs at least one, got {self.count}; leave the field out")

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"signs {self.count}"

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
        if not _are_signs(x):
            raise ValueError("signs must be +1 or -1; pass sign(x), where 0 counts as +1")
        return pack(x)

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bits of (count,) values +-1, or of signs that are packed already (uint8)."""
        return bytes(self.views(x.unsqueeze(0))(0))

    def views(self, x: Tensor) -> Callable[[int], memoryview]:
        """The bytes of `encode` by place in x (S, count), or packed (S, size), where they lie in this order."""
        bits = np.ascontiguousarray((x if x.dtype == torch.uint8 else self.pack(x)).cpu().numpy())
        self._check(bits.shape[-1], bits[:, -1].max(initial=0))
        return rows_of(bits, self.size)

    def packed(self, data: bytes | memoryview, known: Tensor | None = None) -> Tensor:
        """The same bits as a uint8 tensor, for votes."""
        self._check(len(data), data[-1] if data else 0)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def decode(self, data: bytes | memoryview, known: Tensor | None = None) -> Tensor:
        """(count,) values +-1 in float32."""
        return unpack(self.packed(data), self.count)

    def _check(self, size: int, last: int) -> None:
        if size != self.size:
            raise ValueError(f"{self.count} signs are {self.size} bytes, got {size}")
        if self.count % 8 and last >> self.count % 8:
            raise ValueError("unused bits of the last byte must be 0")


def rows_of(values: NDArray[Any], size: int) -> Callable[[int], memoryview]:
    """The bytes of each row of a contiguous array, so many each."""
    flat = values.reshape(-1).view(np.uint8).data
    return lambda i: flat[i * size : (i + 1) * size]


def _are_signs(x: Tensor) -> bool:
    if x.device.type != "cpu":
        return bool((x.abs() == 1).all())
    values = x.detach().numpy().ravel()
    return all((np.abs(values[at : at + BLOCK]) == 1).all() for at in range(0, len(values), BLOCK))
