"""Client states: tensors in memory while they are small, rows of a file, of those who took part, when they are not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pfed1bs.engine.contract import State, under, within
from pfed1bs.engine.slabs import Slabs, Stored, flat
from pfed1bs.engine.workers import CPU

TINY = 16  # bytes of a client's part of a field up to which that field stays in memory

Fields = Mapping[str, Stored]


@dataclass(frozen=True)
class Changes:
    """The states of some clients, on their way into a store."""

    ids: Tensor
    small: State
    own: dict[int, Fields]


@dataclass(frozen=True, eq=False)
class Store(Mapping[str, Tensor]):
    """The states of K clients. It does not change: one with other rows shares the rest with it.

    As a mapping it gives whole fields (K, ...), for whoever has the memory.
    """

    slabs: Slabs
    kinds: State  # every field with no clients, (0, ...)
    small: State  # fields of few bytes, (K, ...)
    first: Fields  # the rows of all clients that have none of their own
    own: dict[int, Fields]
    clients: int  # K
    device: torch.device = CPU  # where rows are computed with

    @classmethod
    def of(cls, states: State, slabs: Slabs) -> "Store":
        """A store of these states (K, ...); a field whose rows are one row expanded is written once."""
        large = {name for name, value in states.items() if value[0].nbytes > TINY}
        one = {name: value[:1] for name, value in states.items() if name in large}
        first = {name: slabs.put(value)[0] for name, value in one.items()}
        kinds = {name: torch.empty(0, *value.shape[1:], dtype=value.dtype) for name, value in states.items()}
        small = {name: value.cpu() for name, value in states.items() if name not in large}
        clients = len(next(iter(states.values())))
        store = cls(slabs, kinds, small, first, {}, clients)
        if all(states[name].stride(0) == 0 for name in large):
            return store
        each = (torch.tensor([client]) for client in range(clients))
        return store.with_rows([store.put(at, {name: value[at] for name, value in states.items()}) for at in each])

    def __getitem__(self, name: str) -> Tensor:
        return self._field(name, torch.arange(self.clients))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def rows(self, at: Tensor) -> State:
        """The states of some clients, (S, ...)."""
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < self.clients:
            raise ValueError(f"clients are 0 .. {self.clients - 1}, got {at.tolist()}")
        return {name: self._field(name, at) for name in self}

    def _field(self, name: str, at: Tensor) -> Tensor:
        if name in self.small:
            return self.small[name][at].to(self.device)
        held, shape = [self.own.get(client, self.first)[name] for client in at.tolist()], self.kinds[name].shape[1:]
        alike = len({*held}) == 1
        field, read = self.kinds[name].new_empty(1 if alike else len(at), *shape), dict[Stored, Tensor]()
        for place, row in zip(flat(field), held, strict=False):
            read[row] = place.copy_(read[row]) if row in read else row.slab.read(row, place)
        return field.to(self.device).expand(len(at), *shape)

    def to(self, device: torch.device) -> "Store":
        """The same states, for a device to compute with."""
        return replace(self, device=device)

    def put(self, ids: Tensor, states: State) -> Changes:
        """Write the states of some clients; they are part of a store that `with_rows` gives."""
        large = {name: self.slabs.put(states[name]) for name in self.first}
        own = [dict(zip(large, rows, strict=True)) for rows in zip(*large.values(), strict=True)]
        small = {name: states[name].cpu() for name in self.small}
        return Changes(ids, small, dict(zip(ids.tolist(), own, strict=False)))

    def with_rows(self, parts: Sequence[Changes]) -> "Store":
        """The store with the states of some clients replaced."""
        own, small = {**self.own}, self.small
        for part in parts:
            own |= part.own
            small = {name: value.index_copy(0, part.ids, part.small[name]) for name, value in small.items()}
        return replace(self, own=own, small=small)

    def saved(self, folder: Path) -> State:
        """What a checkpoint beside this folder needs to find all rows again, which are on the disk then."""
        if self.slabs.folder != folder:
            raise ValueError(f"the clients' states are in {self.slabs.folder}, not in {folder}")
        self.slabs.sync()
        fields = [self.first, *self.own.values()]
        every = dict.fromkeys(row for one in fields for row in one.values())
        number = {row: i for i, row in enumerate(every)}
        names = sorted(self.first)
        index = {
            "rows": torch.tensor([[row.slab.length, row.place, row.crc] for row in every], dtype=torch.int64),
            "own": torch.tensor([*self.own], dtype=torch.int64),
            "fields": torch.tensor([[number[one[name]] for name in names] for one in fields], dtype=torch.int64),
        }
        return {**under("index/", index), **under("kinds/", self.kinds), **under("small/", self.small)}

    @classmethod
    def found(cls, saved: State, clients: int, folder: Path) -> "Store":
        """The store whose rows lie in a folder, as it was saved."""
        index, kinds, small = (within(prefix, saved) for prefix in ("index/", "kinds/", "small/"))
        slabs, names = Slabs(folder), sorted({*kinds} - {*small})
        every = slabs.found(index["rows"].tolist())
        fields = [{name: every[i] for name, i in zip(names, one, strict=True)} for one in index["fields"].tolist()]
        if any(row.slab.length != _bytes(kinds[name]) for one in fields for name, row in one.items()):
            raise ValueError("rows are of other lengths than the fields they are for")
        own = dict(zip(index["own"].tolist(), fields[1:], strict=True))
        if not {*small} <= {*kinds} or any(len(value) != clients for value in small.values()):
            raise ValueError(f"small fields are not those of {clients} clients")
        if not all(0 <= client < clients for client in own):
            raise ValueError(f"rows are of clients that are not among {clients}")
        store = cls(slabs, kinds, small, fields[0], own, clients)
        store.keep()
        return store

    def keep(self) -> None:
        """Have no row of this store written over from now on: a checkpoint names them, and another one no longer."""
        self.slabs.kept = (self.first, self.own)


Clients = State | Store


def row_bytes(clients: Clients) -> int:
    """Bytes of one client's state."""
    kinds = clients.kinds if isinstance(clients, Store) else clients
    return sum(map(_bytes, kinds.values()))


def _bytes(field: Tensor) -> int:
    return field.shape[1:].numel() * field.element_size()


def device_of(clients: Clients) -> torch.device:
    """Where clients are computed; a server that has none at hand computes on the CPU."""
    if isinstance(clients, Store):
        return clients.device
    return next((value.device for value in clients.values()), CPU)
