"""The samples of all clients in one tensor, each client's training and test part, and who holds what."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.data.batches import AT, ClientBatches, Samples, cut, draw, flips
from pfed1bs.data.dataset import Dataset, Inputs
from pfed1bs.data.partitions import Indices, generator, partition

Drawing = tuple[str, str, tuple[int, ...], int, int, int, int]  # kind, name, clients, round, seed, steps, batch

SPLITS = ("pooled", "official")


@dataclass(frozen=True)
class Federation:
    """K clients and their samples, held once; a client's samples lie together, training part first."""

    inputs: Tensor  # (N, *shape) float32, normalised
    labels: Tensor  # (N,) int64
    train: tuple[Tensor, ...]  # per client: rows of `inputs`, on the CPU
    test: tuple[Tensor, ...]
    samples: Tensor  # (N,) number of each row in the data set, training part first, then test part
    num_classes: int
    augment: bool = False
    _ahead: dict[Drawing, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def sizes(self) -> Tensor:
        """(K,) training samples of every client."""
        return torch.tensor([len(rows) for rows in self.train])

    @property
    def clients(self) -> int:
        """K."""
        return len(self.train)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.inputs.shape[1:])

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation with its samples on `device`."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def table(self) -> tuple[Tensor, Tensor]:
        """Samples of every label at every client, (K, C) each: training and test part."""
        labels = self.labels.cpu()
        train, test = (
            torch.stack([torch.bincount(labels[rows], minlength=self.num_classes) for rows in part])
            for part in (self.train, self.test)
        )
        return train, test

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
            return self._each([cut(own, start, stop) for own in self.train], clients)

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
                self._ahead[drawing] = self._drawn(*drawing)

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
        own = [cut(self.train[client], 0, float(share or 1)) for client in clients]
        if only is not None:
            own = [part[mask[: len(part)]] for part, mask in zip(own, only, strict=True)]
        return torch.stack([draw(part, count, batch, key) for part, key in zip(own, keys, strict=True)], dim=1)

    def tests(self, ids: Tensor, size: int = 256) -> Samples:
        """Test samples of the clients `ids`, at most `size` of each at a time: inputs (S, E, ...), labels, mask (S, E).

        A client with fewer samples than the largest one repeats its first; the mask is False there. The largest of all
        K, not of `ids`: products of other sizes would have other bits.
        """
        return self._each(self.test, ids.tolist(), size)

    def _each(self, every: Sequence[Tensor], clients: Sequence[int], size: int = 256) -> Samples:
        """The samples in these rows of every client, of some clients; padded to the longest of all."""
        parts = [every[k] for k in clients]
        counts = torch.tensor([len(rows) for rows in parts])
        longest = max(len(rows) for rows in every)
        fill = [part[:1] if len(part) else part.new_zeros(1) for part in parts]
        rows = torch.stack(
            [torch.cat([part, one.expand(longest - len(part))]) for part, one in zip(parts, fill, strict=True)]
        )
        for start in range(0, longest, size):
            chunk = rows[:, start : start + size].to(self.inputs.device)
            mask = (torch.arange(start, start + chunk.shape[1]) < counts[:, None]).to(self.inputs.device)
            x = self.inputs.index_select(0, chunk.reshape(-1)).view(*chunk.shape, *self.shape)
            yield x, self.labels[chunk], mask


def federate(
    dataset: Dataset,
    clients: int,
    scheme: str = "labels:2",
    split: str = "pooled",
    cap: int | None = None,
    seed: int = 0,
    min_size: int = 10,
    augment: bool = False,
    validate: bool = False,
) -> Federation:
    """Give the samples of a data set to `clients` clients (ALGORITHMS 4.4).

    pooled: training and test samples together are partitioned by `scheme`; of every client's shuffled samples three
    quarters (rounded down) are for training, the rest for test.
    official: the training samples are partitioned by `scheme`; the shuffled test samples of every label are cut among
    the clients in proportion to their training samples of that label (ends of the pieces rounded to the nearest
    integer), so a client is tested on its own mixture of labels. Test samples of labels nobody holds are left out.
    `cap` then bounds the training samples of every client; `augment` mirrors training images at random. `validate`
    puts the test samples away and judges on the last quarter of the training samples: for choosing hyper-parameters.
    """
    _check(dataset, split, cap, min_size, augment)
    if split == "pooled":
        train, test = _pooled(dataset, clients, scheme, seed, min_size)
    else:
        train, test = _official(dataset, clients, scheme, seed, min_size)
    for client, (own, held_out) in enumerate(zip(train, test, strict=True)):
        if len(own) < min_size or len(held_out) == 0:
            raise UserError(
                f"client {client} is left with {len(own)} training and {len(held_out)} test samples, but needs "
                f"{min_size} and 1",
                "use fewer clients, another partition or seed, or a lower min_size",
            )
    train = [rows[:cap] for rows in train]
    if validate:
        train, test = [rows[: len(rows) * 3 // 4] for rows in train], [rows[len(rows) * 3 // 4 :] for rows in train]
    return _federation(dataset, train, test, augment)


def _check(dataset: Dataset, split: str, cap: int | None, min_size: int, augment: bool) -> None:
    if split not in SPLITS:
        raise UserError(f"split must be pooled or official, got {split!r}")
    if min_size < 1:
        raise UserError(f"min_size must be at least 1, got {min_size}", "a client cannot train on nothing")
    if cap is not None and cap < min_size:
        raise UserError(
            f"cap must leave every client min_size = {min_size} samples, got {cap}", "raise cap or lower min_size"
        )
    if augment and (len(dataset.shape) != 3 or dataset.shape[0] != 3):
        raise UserError(
            f"augment mirrors colour images (3, height, width), but samples of {dataset.name} have shape "
            f"{dataset.shape}",
            "leave it off",
        )


def _pooled(
    dataset: Dataset, clients: int, scheme: str, seed: int, min_size: int
) -> tuple[list[Indices], list[Indices]]:
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    enough = max(2, -(-min_size * 4 // 3))  # samples whose three quarters are min_size
    parts = [
        generator(seed, "split", client).permutation(part)
        for client, part in enumerate(partition(labels, clients, scheme, seed, enough))
    ]
    return [part[: len(part) * 3 // 4] for part in parts], [part[len(part) * 3 // 4 :] for part in parts]


def _official(
    dataset: Dataset, clients: int, scheme: str, seed: int, min_size: int
) -> tuple[list[Indices], list[Indices]]:
    parts = partition(dataset.train_labels, clients, scheme, seed, min_size)
    train = [generator(seed, "split", client).permutation(part) for client, part in enumerate(parts)]
    rng = generator(seed, "test")
    test: list[list[Indices]] = [[] for _ in range(clients)]
    held = np.stack([np.bincount(dataset.train_labels[part], minlength=dataset.num_classes) for part in parts])
    for label, counts in enumerate(held.T):
        samples = rng.permutation(np.flatnonzero(dataset.test_labels == label))
        if counts.sum() == 0:
            continue
        ends = np.rint(np.cumsum(counts) * (len(samples) / counts.sum())).astype(np.int64)
        for client, piece in enumerate(np.split(samples, ends[:-1])):
            test[client].append(piece)
    return train, [np.concatenate(pieces) + len(dataset.train_labels) for pieces in test]


def _federation(dataset: Dataset, train: list[Indices], test: list[Indices], augment: bool) -> Federation:
    """Copy the samples in use, client after client, into one normalised tensor."""
    order = np.concatenate([rows for pair in zip(train, test, strict=True) for rows in pair])
    ends = np.cumsum([len(rows) for pair in zip(train, test, strict=True) for rows in pair])
    starts = np.concatenate([[0], ends[:-1]])
    ranges = [torch.arange(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])[order]
    return Federation(
        inputs=torch.from_numpy(_normalised(dataset, order)),
        labels=torch.from_numpy(labels),
        train=tuple(ranges[::2]),
        test=tuple(ranges[1::2]),
        samples=torch.from_numpy(order),
        num_classes=dataset.num_classes,
        augment=augment,
    )


def _normalised(dataset: Dataset, order: Indices) -> NDArray[np.float32]:
    """(value - mean) / std of the samples `order`, a piece at a time so that no second copy is needed."""
    scale = 255.0 if dataset.train_inputs.dtype == np.uint8 else 1.0
    broadcast = (-1, *(1 for _ in dataset.shape[1:]))
    mean = (np.asarray(dataset.mean) * scale).astype(np.float32).reshape(broadcast)
    std = (np.asarray(dataset.std) * scale).astype(np.float32).reshape(broadcast)
    result = np.empty((len(order), *dataset.shape), np.float32)
    for start in range(0, len(order), 4096):
        rows = order[start : start + 4096]
        result[start : start + len(rows)] = _samples(dataset, rows)
        result[start : start + len(rows)] -= mean
        result[start : start + len(rows)] /= std
    return result


def _samples(dataset: Dataset, rows: Indices) -> Inputs:
    """Inputs by their number in the whole data set: training part first, then test part."""
    border = len(dataset.train_inputs)
    values = np.empty((len(rows), *dataset.shape), dataset.train_inputs.dtype)
    values[rows < border] = dataset.train_inputs[rows[rows < border]]
    values[rows >= border] = dataset.test_inputs[rows[rows >= border] - border]
    return values
