"""Arrays in files of NumPy and MATLAB, of which a header is not believed before the bytes it promises are there."""

import struct
import zlib
from collections.abc import Iterator
from math import prod
from typing import IO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # MATLAB's types
MATRIX, COMPRESSED = 14, 15
HEAD = 128  # bytes before the first element
MOST = 1 << 31  # bytes of an element


def npy(file: IO[bytes], size: int) -> NDArray[np.generic]:
    """The array of an .npy file of `size` bytes."""
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of numbers or texts has version 1 or 2, got {version}")
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    if dtype.hasobject or dtype.fields or not dtype.itemsize:
        raise ValueError(f"an array holds numbers or texts, got {dtype}")
    promised = prod(shape) * dtype.itemsize
    if file.tell() + promised != size:
        raise ValueError(f"its header promises {promised} bytes of {dtype} {shape}, it holds {size - file.tell()}")
    data = file.read(promised)
    if len(data) != promised:
        raise ValueError(f"it ends after {len(data)} of {promised} bytes")
    return np.ndarray(shape, dtype, data, order="F" if columns_first else "C")


def matlab(data: bytes, names: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """Those arrays of real numbers in a MATLAB file (version 5, little-endian) that have one of these names."""
    if data[HEAD - 4 : HEAD] != b"\0\1IM":
        raise ValueError("a MATLAB file of version 5, little-endian, says so in its bytes 124 to 127")
    found = {}
    for kind, content in _elements(memoryview(data)[HEAD:]):
        if kind == COMPRESSED:
            inner = [*_elements(memoryview(zlib.decompressobj().decompress(content, MOST)))]
            if len(inner) != 1:
                raise ValueError(f"what is compressed is one element, got {len(inner)}")
            ((kind, content),) = inner
        if kind == MATRIX and (array := _matrix(content, names)):
            found[array[0]] = array[1]
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"it holds no array {' and none '.join(missing)}")
    return found


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and content of one element after the other; contents of up to four bytes stand beside their length."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError("an element ends inside its first eight bytes")
        kind, length = struct.unpack_from("<II", data, at)
        start = at + 8
        if short := kind >> 16:
            kind, length, start = kind & 0xFFFF, short, at + 4
            if length > 4:
                raise ValueError(f"a short element has at most four bytes, got {length}")
        if start + length > len(data):
            raise ValueError(f"an element promises {length} bytes, {len(data) - start} are left")
        yield kind, data[start : start + length]
        at = at + 8 if short else start + (length if kind == COMPRESSED else (length + 7) // 8 * 8)


def _matrix(data: memoryview, names: tuple[str, ...]) -> tuple[str, NDArray[np.generic]] | None:
    """Name and values of an array, if it has one of the names."""
    parts = [*_elements(data)]
    if len(parts) < 4 or bytes(parts[2][1]).decode("latin-1") not in names:
        return None
    (_, flags), (_, sizes), (_, name), (kind, values), *rest = parts
    if kind not in NUMBERS or rest or len(flags) != 8 or flags[1] & 8 or len(sizes) % 4:
        raise ValueError(f"{bytes(name).decode('latin-1')} is no array of real numbers")
    shape = tuple(int(size) for size in np.frombuffer(sizes, "<i4"))
    found = np.frombuffer(values, f"<{NUMBERS[kind]}")
    if min(shape, default=0) < 1 or prod(shape) != len(found):
        raise ValueError(f"its header promises {shape} values, it holds {len(found)}")
    return bytes(name).decode("latin-1"), found.reshape(shape, order="F")
