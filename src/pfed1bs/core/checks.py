"""Checksums of bytes, and whether numbers are finite: native where that was built, zlib and NumPy elsewhere."""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core import native

PIECES = 64  # that a native call takes at once


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
