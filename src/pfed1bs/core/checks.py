"""What long messages need: checksums, finite numbers, weighted sums; native where built, else zlib, NumPy and torch."""

import sys
import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core import native

LITTLE = sys.byteorder == "little"
PIECES = 64  # that a native call takes at once
POLYNOMIAL = 0xEDB88320  # of CRC-32 without x^32, which is 1: the highest bit is the coefficient of x^0
FUSED = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")  # how torch adds products there


def crc32(data: bytes | memoryview, crc: int = 0) -> int:
    """zlib.crc32."""
    return native.crc32(data, crc) if native.enabled else zlib.crc32(data, crc)


def joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of two pieces one after the other, from theirs and the bytes of the second."""
    return _product(first, _power(8 * length)) ^ second


@cache
def _power(exponent: int) -> int:
    """x^exponent modulo the polynomial."""
    if exponent < 2:
        return 1 << 31 - exponent
    half = _power(exponent // 2)
    return _product(_product(half, half), _power(exponent % 2))


def _product(a: int, b: int) -> int:
    """The product a b modulo the polynomial."""
    total = 0
    for i in reversed(range(32)):
        total ^= b if a >> i & 1 else 0
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return total


def sealed(head: bytes, pieces: Sequence[bytes | memoryview], floats: int = 0) -> bytes | None:
    """The head, the CRC-32 of all the rest in four bytes, and the pieces, read once.

    None, if a piece whose bit in `floats` is set holds a float that is NaN or infinite.
    """
    if native.enabled and LITTLE and len(pieces) <= PIECES:
        return native.sealed(head, pieces, floats)
    if not all(finite(np.frombuffer(piece, "<f4")) for i, piece in enumerate(pieces) if floats >> i & 1):
        return None
    crc = zlib.crc32(head)
    for piece in pieces:
        crc = zlib.crc32(piece, crc)
    return b"".join((head, crc.to_bytes(4, "little"), *pieces))


def opened(data: bytes | memoryview, crc: int = 0) -> tuple[int, Tensor | None]:
    """The CRC-32 of little-endian float32 numbers, after that of what came before, and a copy of them, read once.

    None instead of the copy, if one is NaN or infinite.
    """
    if native.enabled and LITTLE:
        return native.opened(data, crc)
    values = np.frombuffer(data, "<f4").astype(np.float32)
    return zlib.crc32(data, crc), torch.from_numpy(values) if finite(values) else None


def finite(values: NDArray[np.float32]) -> bool:
    """Whether none of them is NaN or infinite."""
    if native.enabled and values.flags.c_contiguous:
        return native.finite(values)
    return bool(np.isfinite(values).all())


def accumulate(total: Tensor, x: Tensor, share: float) -> Tensor:
    """Add share * x to a total, in place: total.add_(x, alpha=share), for float32 to float64 without a copy."""
    kinds = (total.dtype, x.dtype) == (torch.float64, torch.float32)
    ready = total.is_cpu and total.is_contiguous() and x.is_contiguous() and total.shape == x.shape
    if kinds and ready and FUSED and native.usable(x) and native.accumulate(total, x, share):
        return total
    return total.add_(x, alpha=share)
