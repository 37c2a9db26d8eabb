"""+-1 in one bit each."""

from dataclasses import dataclass

import numpy as np
import torch
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


def _are_signs(x: Tensor) -> bool:
    if x.device.type != "cpu":
        return bool((x.abs() == 1).all())
    values = x.detach().numpy().ravel()
    return all((np.abs(values[at : at + BLOCK]) == 1).all() for at in range(0, len(values), BLOCK))
