"""CIFAR's pickled batches, read without running anything they name."""

import io
import pickle
import pickletools
from typing import cast

import numpy as np
from numpy.typing import NDArray

Batch = dict[bytes, object]
WORDS = frozenset(
    "PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 STRING BINSTRING "
    "SHORT_BINSTRING BINBYTES SHORT_BINBYTES UNICODE BINUNICODE SHORT_BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM SETITEMS GLOBAL STACK_GLOBAL REDUCE BUILD "
    "MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET".split()
)


class _Kind:
    """Stands in for numpy.dtype; only unsigned bytes are known."""

    __slots__ = ()

    def __init__(self, code: bytes | str, align: int = 0, copy: int = 0) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"arrays must hold bytes (u1), got {code!r}")

    def __setstate__(self, state: object) -> None:
        """Byte order and the like mean nothing for single bytes."""


class _Array:
    """Stands in for numpy.ndarray: keeps the raw bytes, builds the array itself."""

    __slots__ = ("value",)

    def __init__(self, kind: object, shape: object, code: object) -> None:
        self.value: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes]) -> None:
        _, shape, kind, columns_first, data = state
        if type(kind) is not _Kind:
            raise pickle.UnpicklingError("an array without a dtype")
        self.value = np.frombuffer(data, np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Reader(pickle.Unpickler):
    """Knows the three names an array of bytes needs, and refuses every other."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("numpy", "dtype"):
            return _Kind
        if (module, name) == ("numpy", "ndarray"):
            return None  # only ever an argument of the next one
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _Array
        raise pickle.UnpicklingError(f"it names {module}.{name}, which image batches have no use for; refused")


def batch(data: bytes) -> Batch:
    """One pickled batch: byte-string keys, arrays of bytes, lists."""
    _checked(data)
    content = _Reader(io.BytesIO(data), encoding="bytes").load()
    if not isinstance(content, dict):
        raise pickle.UnpicklingError(f"a batch must be a dictionary, got {type(content).__name__}")
    entries = cast(dict[bytes | str, object], content)
    return {
        key.encode() if isinstance(key, str) else key: value.value if isinstance(value, _Array) else value
        for key, value in entries.items()
    }


def _checked(data: bytes) -> None:
    """Refuse words that batches have no use for, and promises of more memory than there are bytes."""
    for count, (word, value, _) in enumerate(pickletools.genops(data)):
        if word.name not in WORDS:
            raise pickle.UnpicklingError(f"it says {word.name}, which image batches have no use for; refused")
        if word.name.endswith("PUT") and isinstance(value, int) and value > count:
            raise pickle.UnpicklingError(f"it remembers number {value} after {count} words; refused")
