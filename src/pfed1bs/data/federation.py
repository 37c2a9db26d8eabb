"""The samples of all clients in one tensor, each client's training and test part, and who holds what."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from pfed1bs.core.cuda import sent
from pfed1bs.core.errors import UserError
from pfed1bs.data.batches import AT, ClientBatches, Samples, cut, draw, flips
from pfed1bs.data.normalise import Constants

Drawing = tuple[str, str, tuple[int, ...], int, int, int, int]  # kind, name, clients, round, seed, steps, batch

NOBODY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Federation:
    """K clients and their samples, held once; a client's samples lie together, training part first."""

    inputs: Tensor  # (N, *shape) float32, normalised; int64 tokens
    labels: Tensor  # (N,) int64, or any other targets (N, ...)
    train: Sequence[Tensor]  # per client: rows of `inputs`, on the CPU
    test: Sequence[Tensor]
    samples: Tensor  # (N,) number of each row in the data set, training part first, then test part
    num_classes: int
    augment: bool = False
    newcomers: Tensor = NOBODY  # ids of clients that come after training
    owners: tuple[str, ...] = ()  # whose samples each client has, where they have an owner
    constants: Constants = field(default_factory=dict)  # the inputs are (value / scale - mean) / std
    claimed: Tensor | None = None  # (K,) training samples that clients say they have; None: those they have
    _ahead: dict[Drawing, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def present(self) -> Tensor:
        """The ids of all clients but the newcomers."""
        everyone = torch.arange(self.clients)
        return everyone[~torch.isin(everyone, self.newcomers)]

    @property
    def labelled(self) -> bool:
        """Whether every sample has one class."""
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    @cached_property
    def sizes(self) -> Tensor:
        """(K,) training samples of every client, as it claims."""
        return torch.tensor([len(rows) for rows in self.train]) if self.claimed is None else self.claimed

    @property
    def clients(self) -> int:
        """K."""
        return len(self.train)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.inputs.shape[1:])

    @property
    def described(self) -> Constants:
        """What a trained model must be told of its data."""
        told = {"shape": self.shape, "classes": self.num_classes, "samples": self.sizes.tolist()}
        return {**self.constants, **told, "newcomers": self.newcomers.tolist()}

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation with its samples on `device`."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def table(self) -> tuple[Tensor, Tensor]:
        """Samples of every label at every client, (K, C) each: training and test part; (K, 1) without labels."""
        labels = self.labels.cpu() if self.labelled else torch.zeros(len(self.labels), dtype=torch.int64)
        classes = self.num_classes if self.labelled else 1
        held = [torch.bincount(labels[rows], minlength=classes) for part in (self.train, self.test) for rows in part]
        return torch.stack(held[: self.clients]), torch.stack(held[self.clients :])

    def batches(self, ids: Tensor, round: int, seed: int, steps: int, batch: int) -> ClientBatches:
        """Mini-batches of the clients `ids`: row i depends on (seed, name, ids[i], round) only."""
        if steps < 1 or batch < 1:
            raise UserError(f"steps and batch must be at least 1, got {steps} and {batch}")
        clients = tuple(ids.tolist())

        def drawn(kind: str, name: str, count: int, only: Tensor | None = None) -> Tensor:
            drawing = (kind, name, clients, round, seed, count, batch)
            if only is not None or drawing not in self._ahead:
                return self._drawn(*drawing, only=only)
            return self._ahead[drawing]

        def samples(start: float = 0.0, stop: float = 1.0) -> Samples:
            longest = max(len(cut(torch.arange(size), start, stop)) for size in self._lengths[0])
            return self._each([cut(self.train[k], start, stop) for k in clients], longest)

        rows = cache(partial(drawn, "rows"))  # methods with two models take the same batches twice
        mirrored = partial(drawn, "flips") if self.augment else None
        return ClientBatches(self.inputs, self.labels, steps, rows, samples, mirrored)

    def foresee(self, ids: Tensor, round: int, seed: int, batch: int, names: Iterable[tuple[str, int]]) -> None:
        """Draw the rows of later batches now, names with numbers of steps; those of earlier rounds are forgotten."""
        for drawing in [one for one in self._ahead if one[3] < round - 1]:
            del self._ahead[drawing]
        for name, count in names:
            for kind in ("rows", "flips") if self.augment else ("rows",):
                drawing = (kind, name, tuple(ids.tolist()), round, seed, count, batch)
                self._ahead[drawing] = sent(self._drawn(*drawing), self.inputs.device)

    def _drawn(
        self,
        kind: str,
        name: str,
        clients: tuple[int, ...],
        round: int,
        seed: int,
        count: int,
        batch: int,
        only: Tensor | None = None,
    ) -> Tensor:
        """(count, S, batch) rows of `inputs`, or which of them are mirrored."""
        plain, _, share = name.partition(AT)
        keys = [(seed, plain if kind == "rows" else name, client, round) for client in clients]
        if kind == "flips":
            return torch.stack([flips(count, batch, key) for key in keys], dim=1)
        own = [cut(self.train[client], 0, float(share)) if share else self.train[client] for client in clients]
        if only is not None:
            own = [part[mask[: len(part)]] for part, mask in zip(own, only, strict=True)]
        return torch.stack([draw(part, count, batch, key) for part, key in zip(own, keys, strict=True)], dim=1)

    def tests(self, ids: Tensor, size: int = 256) -> Samples:
        """Test samples of the clients `ids`, at most `size` of each at a time: inputs (S, E, ...), labels, mask (S, E).

        A client with fewer samples than the largest one repeats its first; the mask is False there. The largest of all
        K, not of `ids`: products of other sizes would have other bits.
        """
        return self._each([self.test[k] for k in ids.tolist()], max(self._lengths[1]), size)

    def trained(self, ids: Tensor, size: int = 256) -> Samples:
        """The same of training samples."""
        return self._each([self.train[k] for k in ids.tolist()], max(self._lengths[0]), size)

    @cached_property
    def _lengths(self) -> tuple[set[int], set[int]]:
        """The different numbers of training and of test samples that clients have."""
        return {*map(len, self.train)}, {*map(len, self.test)}

    def _each(self, parts: Sequence[Tensor], longest: int, size: int = 256) -> Samples:
        """The samples in the rows of some clients, padded to the longest of all."""
        counts = torch.tensor([len(rows) for rows in parts])
        fill = [part[:1] if len(part) else part.new_zeros(1) for part in parts]
        rows = torch.stack(
            [torch.cat([part, one.expand(longest - len(part))]) for part, one in zip(parts, fill, strict=True)]
        )
        for start in range(0, longest, size):
            chunk = rows[:, start : start + size].to(self.inputs.device)
            mask = (torch.arange(start, start + chunk.shape[1]) < counts[:, None]).to(self.inputs.device)
            x = self.inputs.index_select(0, chunk.reshape(-1)).view(*chunk.shape, *self.shape)
            yield x, self.labels[chunk], mask
