"""What long messages need: checksums, finite numbers, weighted sums; native where built, else zlib, NumPy and torch."""

import sys
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core import native

PIECES = 64  # that a native call takes at once
FUSED = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # how torch adds products there


def crc32(data: bytes | memoryview, crc: int = 0) -> int:
    """zlib.crc32."""
    return native.crc32(data, crc) if native.enabled else zlib.crc32(data, crc)


def sealed(head: bytes, pieces: Sequence[bytes | memoryview]) -> bytes:
    """The head, the CRC-32 of all the rest in four bytes, and the pieces."""
    if native.enabled and len(pieces) <= PIECES:
        return native.sealed(head, pieces)
    crc = zlib.crc32(head)
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return b"".join((head, crc.to_bytes(4, "little"), *pieces))


def finite(values: NDArray[np.float32]) -> bool:
    """Whether none of them is NaN or infinite."""
    if native.enabled and values.flags.c_contiguous:
        return native.finite(values)
    return bool(np.isfinite(values).all())


def finite_copy(data: bytes | memoryview) -> Tensor | None:
    """The float32 numbers of little-endian bytes as a tensor of their own; None if one is NaN or infinite."""
    values = np.frombuffer(data, "<f4")
    if not native.enabled or sys.byteorder != "little":
        return torch.from_numpy(values.astype(np.float32)) if finite(values) else None
    out = native.empty(values.size)
    return out if native.finite(values, out) else None


def accumulate(total: Tensor, x: Tensor, share: float) -> Tensor:
    """Add share * x to a total, in place: total.add_(x, alpha=share), for float32 to float64 without a copy."""
    kinds = (total.dtype, x.dtype) == (torch.float64, torch.float32)
    ready = total.is_cpu and total.is_contiguous() and x.is_contiguous() and total.shape == x.shape
    if kinds and ready and FUSED and native.usable(x) and native.accumulate(total, x, share):
        return total
    return total.add_(x, alpha=share)
