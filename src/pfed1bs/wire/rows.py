"""Codecs of tables with missing rows, such as the mean features of those classes that somebody holds."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXACT = 1 << 24  # float32 counts exactly up to here


@dataclass(frozen=True)
class Table:
    """What codecs of tables with a column before the values share."""

    rows: int
    width: int

    name: ClassVar[str]

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"{self.name} {self.rows}x{self.width}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, 1 + width)."""
        return (self.rows, 1 + self.width)

    @property
    def size(self) -> int | None:
        """As many bytes as there are rows."""
        return None


class Rows(Table):
    """A table (rows, 1 + width): a flag, 1 where the row is there and 0 where it is missing, and float32 values.

    All rows there: their values alone. Otherwise one bit per row comes first, 1 if it is there, little-endian, in an
    odd number of bytes, so that the length alone tells the two apart. Missing rows are decoded as zeros.
    """

    name: ClassVar[str] = "rows"

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """The rows whose flag is 1."""
        table = _table(x)
        if not np.isin(table[:, 0], (0, 1)).all():
            raise ValueError("the first column must hold 1 for the rows that are there and 0 for the others")
        there = table[:, 0] > 0
        bits = b"" if there.all() else np.packbits(there, bitorder="little").tobytes().ljust(self._bitmap, b"\0")
        return bits + _values(table[there]).tobytes()

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The table."""
        there = np.ones(self.rows, bool)
        if len(data) != 4 * self.width * self.rows:
            there = self._flags(data[: self._bitmap])
            data = data[self._bitmap :]
        if len(data) != 4 * self.width * there.sum():
            raise ValueError(f"{there.sum()} rows of {self.width} values do not take {len(data)} bytes")
        table = np.zeros(self.shape, np.float32)
        table[there, 0] = 1
        table[there, 1:] = np.frombuffer(data, "<f4").reshape(-1, self.width)
        return _checked(table)

    @property
    def _bitmap(self) -> int:
        return (self.rows + 7) // 8 | 1

    def _flags(self, data: bytes) -> NDArray[np.bool_]:
        if len(data) != self._bitmap:
            raise ValueError(f"the flags of {self.rows} rows take {self._bitmap} bytes, got {len(data)}")
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(bool)
        if bits[self.rows :].any() or bits[: self.rows].all() or not bits.any():
            raise ValueError("flags are sent if some rows are there and some are missing, with unused bits 0")
        return bits[: self.rows]


class CountedRows(Table):
    """A table (rows, 1 + width): how many samples the row stands for, 0 where it is missing, and float32 values.

    Every row that is there takes one 32-bit number, count * rows + row, and its values; rows ascend. Missing ones are
    decoded as zeros.
    """

    name: ClassVar[str] = "counted-rows"

    @property
    def _record(self) -> np.dtype[np.void]:
        return np.dtype([("key", "<u4"), ("values", "<f4", (self.width,))])

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """The rows whose count is not 0."""
        table = _table(x)
        counts = table[:, 0].astype(np.float64)
        limit = min(EXACT, (2**32 - 1) // self.rows)
        if (counts != np.floor(counts)).any() or counts.min() < 0 or counts.max() > limit:
            raise ValueError(f"counts must be whole numbers in 0 .. {limit}, got {counts.min():g} .. {counts.max():g}")
        there = np.flatnonzero(counts)
        records = np.empty(len(there), self._record)
        records["key"] = counts[there].astype(np.uint64) * self.rows + there
        records["values"] = _values(table[there])
        return records.tobytes()

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The table."""
        size = self._record.itemsize
        if not data or len(data) % size:
            raise ValueError(f"a row takes {size} bytes and there is at least one, got {len(data)} bytes")
        records = np.frombuffer(data, self._record)
        counts, rows = np.divmod(records["key"].astype(np.int64), self.rows)
        if (np.diff(rows) <= 0).any() or counts.min() < 1 or counts.max() > EXACT:
            raise ValueError(f"rows must ascend and stand for 1 .. {EXACT} samples each")
        table = np.zeros(self.shape, np.float32)
        table[rows, 0] = counts
        table[rows, 1:] = records["values"]
        return _checked(table)


def _table(x: Tensor) -> NDArray[np.float32]:
    if x.dtype != torch.float32:
        raise ValueError(f"values must be float32, got {x.dtype}; convert them with .float()")
    table: NDArray[np.float32] = x.detach().cpu().numpy()
    if not table[:, 0].any():
        raise ValueError("a table needs at least one row that is there; send an empty message instead")
    return table


def _values(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    values = rows[:, 1:].astype("<f4")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite, got NaN or infinity; lower the learning rate or check the data")
    return values


def _checked(table: NDArray[np.float32]) -> Tensor:
    if not np.isfinite(table).all():
        raise ValueError("values must be finite, got NaN or infinity")
    return torch.from_numpy(table)
