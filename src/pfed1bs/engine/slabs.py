"""Rows of bytes in files: written once, read back with a checksum, their place used again when nobody needs them."""

import os
import tempfile
from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path
from threading import Lock
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pfed1bs.core.checks import crc32
from pfed1bs.core.errors import Failure, UserError, naming

HEAD = 16  # bytes by which most rows differ already
ELSEWHERE = "restore the folder from a copy, or begin anew in another one"


class Stored:
    """What a client holds of a field, in a file; its place is written to again when nobody refers to it any more."""

    __slots__ = ("__weakref__", "crc", "place", "slab")

    def __init__(self, slab: "Slab", place: int, crc: int) -> None:
        self.slab, self.place, self.crc = slab, place, crc

    def __del__(self) -> None:
        self.slab.free.append(self.place)


class Slab:
    """A file of rows of one length; equal rows are written once."""

    def __init__(self, path: Path | None, length: int) -> None:
        """Open the file, or make it; None: one without a name, which ends with the process."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self._file = cast(RawIOBase, path.open("r+b", 0) if path else tempfile.TemporaryFile(buffering=0))
        self.length, self.name, self.free = length, path or "a temporary file", list[int]()
        self._lock, self.end = Lock(), -(-os.fstat(self._file.fileno()).st_size // length)  # after the last place
        self._same: WeakValueDictionary[int, Stored] = WeakValueDictionary()

    def __del__(self) -> None:
        self._file.close()

    def put(self, data: Tensor) -> Stored:
        """Write bytes (length,), unless they are there."""
        crc = crc32(data.numpy().data)
        known = self._same.get(crc)
        if known is not None and torch.equal(self.read(known, torch.empty_like(data)), data):
            return known
        with self._lock:
            if not self.free:
                self.free.append(self.end)
                self.end += 1
            row, rest = Stored(self, self.free.pop(), crc), data.numpy().data
            self._file.seek(row.place * self.length)
            with naming(self.name):
                while len(rest):
                    rest = rest[self._file.write(rest) or 0 :]
        self._same[crc] = row
        return row

    def read(self, row: Stored, into: Tensor) -> Tensor:
        """Fill bytes (length,) with a row."""
        with self._lock:
            self._file.seek(row.place * self.length)
            rest, found = into.numpy().data, -1
            while len(rest) and found:
                found = self._file.readinto(rest) or 0
                rest = rest[found:]
        if len(rest) or crc32(into.numpy().data) != row.crc:
            raise Failure(f"{self.name} is damaged: row {row.place} is not what was written", ELSEWHERE)
        return into

    def found(self, places: Iterable[tuple[int, int]]) -> list[Stored]:
        """The rows at these places with these checksums, as they were left by somebody else; all others are free."""
        rows = [Stored(self, place, crc) for place, crc in places]
        used = {row.place for row in rows}
        if min(used, default=0) < 0 or max(used, default=-1) >= os.fstat(self._file.fileno()).st_size // self.length:
            raise UserError(f"{self.name} is cut off", ELSEWHERE)
        self.free = [place for place in range(self.end) if place not in used]
        self._same.update({row.crc: row for row in rows})
        return rows

    def sync(self) -> None:
        """Make what was written outlive a power cut."""
        os.fsync(self._file.fileno())


class Slabs:
    """The files of a store, one for every length of a row, in a folder; None: without names."""

    @classmethod
    def new(cls, folder: Path | None) -> "Slabs":
        """Files in which nothing is yet; those that a run without a checkpoint has left go."""
        for path in folder.glob("*.rows") if folder else ():
            path.unlink()
        return cls(folder)

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.all = folder, dict[int, Slab]()
        self.kept: object = None  # the rows that the last checkpoint names, which must stay as they are
        self._lock = Lock()

    def of(self, length: int) -> Slab:
        """The file of rows of this length."""
        with self._lock:
            if length not in self.all:
                self.all[length] = Slab(self.folder / f"{length}.rows" if self.folder else None, length)
            return self.all[length]

    def put(self, field: Tensor) -> list[Stored]:
        """The rows of a field (S, ...)."""
        if len(field) > 1 and field.stride(0) == 0:
            return self.put(field[:1]) * len(field)
        rows, found = flat(field.detach().cpu()), list[Stored]()
        slab = self.of(rows.shape[1])
        for data in rows:  # copies of a shared model lie side by side
            same = bool(found) and torch.equal(data[:HEAD], rows[0, :HEAD]) and torch.equal(data, rows[0])
            found.append(found[0] if same else slab.put(data))
        return found

    def found(self, rows: list[list[int]]) -> list[Stored]:
        """The rows with these lengths, places and checksums, which a checkpoint names."""
        every: dict[int, Stored] = {}
        for length in {row[0] for row in rows}:
            if self.folder and not (self.folder / f"{length}.rows").exists():
                raise UserError(f"{self.folder / f'{length}.rows'} is missing", ELSEWHERE)
            at = [i for i, row in enumerate(rows) if row[0] == length]
            every |= zip(at, self.of(length).found((rows[i][1], rows[i][2]) for i in at), strict=True)
        return [every[i] for i in range(len(rows))]

    def sync(self) -> None:
        """Make all that was written outlive a power cut."""
        for slab in self.all.values():
            slab.sync()


def flat(field: Tensor) -> Tensor:
    """The bytes of every client's part of a field, (S, length)."""
    return field.contiguous().view(len(field), -1).view(torch.uint8)
