"""Who gets what: the samples of a data set, given to clients for training and for test."""

from dataclasses import replace

import numpy as np
import torch

from pfed1bs.core.errors import UserError
from pfed1bs.data.dataset import Dataset
from pfed1bs.data.federation import Federation
from pfed1bs.data.normalise import Constants, constants_of, normalised
from pfed1bs.data.partitions import Indices, chosen, generator, partition

SPLITS = ("pooled", "official")


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
    normalise: str = "shared",
    newcomers: float = 0.0,
) -> Federation:
    """Give the samples of a data set to `clients` clients (ALGORITHMS 4.4).

    pooled: training and test samples together are partitioned by `scheme`; of every client's shuffled samples three
    quarters (rounded down) are for training, the rest for test.
    official: the training samples are partitioned by `scheme`; the shuffled test samples of every label are cut among
    the clients in proportion to their training samples of that label (ends of the pieces rounded to the nearest
    integer), so a client is tested on its own mixture of labels. Test samples of labels nobody holds are left out.
    natural: every client has the samples of one owner.
    `cap` then bounds the training samples of every client; `augment` mirrors training images at random. `validate`
    puts the test samples away and judges on the last quarter of the training samples: for choosing hyper-parameters.
    `normalise` says by whose mean and deviation inputs are standardised: nobody's, each client's own, or those of all
    training samples. The share `newcomers` of the clients, drawn, comes after training.
    """
    _check(dataset, split, cap, min_size, augment)
    owners: tuple[str, ...] = ()
    if scheme == "natural" and dataset.owners is not None:
        train, test, owners = _natural(dataset, clients, split, seed, min_size)
    else:
        deal = _pooled if split == "pooled" else _official
        train, test = deal(dataset, clients, scheme, seed, min_size)
    _check_sizes(train, test, min_size)
    train = [rows[:cap] for rows in train]
    if validate:
        train, test = [rows[: len(rows) * 3 // 4] for rows in train], [rows[len(rows) * 3 // 4 :] for rows in train]
    late = torch.from_numpy(np.sort(generator(seed, "newcomers").permutation(clients)[: int(newcomers * clients)]))
    found = _federation(dataset, train, test, augment, constants_of(dataset, train, normalise))
    return replace(found, owners=owners, newcomers=late)


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


def _check_sizes(train: list[Indices], test: list[Indices], min_size: int) -> None:
    for client, (own, held_out) in enumerate(zip(train, test, strict=True)):
        if len(own) < min_size or len(held_out) == 0:
            raise UserError(
                f"client {client} is left with {len(own)} training and {len(held_out)} test samples, but needs "
                f"{min_size} and 1",
                "use fewer clients, another partition or seed, or a lower min_size",
            )


def _natural(
    dataset: Dataset, clients: int, split: str, seed: int, min_size: int
) -> tuple[list[Indices], list[Indices], tuple[str, ...]]:
    """Every owner's samples; pooled: three quarters of them, shuffled, for training, as for other partitions."""
    assert dataset.owners is not None
    border, enough = len(dataset.train_labels), max(2, -(-min_size * 4 // 3))
    held = dataset.owners if split == "pooled" else dataset.owners[:border]
    names = chosen(held, clients, seed, enough if split == "pooled" else min_size)
    own = [np.flatnonzero(dataset.owners == name) for name in names]
    if split == "pooled":
        train, test = _cut(own, seed)
    else:
        train = [generator(seed, "split", k).permutation(rows[rows < border]) for k, rows in enumerate(own)]
        test = [rows[rows >= border] for rows in own]
    return train, test, tuple(map(str, names))


def _pooled(
    dataset: Dataset, clients: int, scheme: str, seed: int, min_size: int
) -> tuple[list[Indices], list[Indices]]:
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    enough = max(2, -(-min_size * 4 // 3))  # samples whose three quarters are min_size
    return _cut(partition(labels, clients, scheme, seed, enough), seed)


def _cut(parts: list[Indices], seed: int) -> tuple[list[Indices], list[Indices]]:
    """The samples of every client, shuffled: three quarters, and the rest."""
    parts = [generator(seed, "split", client).permutation(part) for client, part in enumerate(parts)]
    return [part[: len(part) * 3 // 4] for part in parts], [part[len(part) * 3 // 4 :] for part in parts]


def _official(
    dataset: Dataset, clients: int, scheme: str, seed: int, min_size: int
) -> tuple[list[Indices], list[Indices]]:
    parts = partition(dataset.train_labels, clients, scheme, seed, min_size)
    train = [generator(seed, "split", client).permutation(part) for client, part in enumerate(parts)]
    rng = generator(seed, "test")
    test: list[list[Indices]] = [[] for _ in range(clients)]
    ours, theirs = (
        labels.astype(np.int64) if dataset.labelled else np.zeros(len(labels), np.int64)
        for labels in (dataset.train_labels, dataset.test_labels)
    )
    held = np.stack([np.bincount(ours[part], minlength=dataset.num_classes) for part in parts])
    for label, counts in enumerate(held.T):
        samples = rng.permutation(np.flatnonzero(theirs == label))
        if counts.sum() == 0:
            continue
        ends = np.rint(np.cumsum(counts) * (len(samples) / counts.sum())).astype(np.int64)
        for client, piece in enumerate(np.split(samples, ends[:-1])):
            test[client].append(piece)
    return train, [np.concatenate(pieces) + len(dataset.train_labels) for pieces in test]


def _federation(
    dataset: Dataset, train: list[Indices], test: list[Indices], augment: bool, constants: Constants
) -> Federation:
    """Copy the samples in use, client after client, into one normalised tensor."""
    order = np.concatenate([rows for pair in zip(train, test, strict=True) for rows in pair])
    ends = np.cumsum([len(rows) for pair in zip(train, test, strict=True) for rows in pair])
    starts = np.concatenate([[0], ends[:-1]])
    ranges = [torch.arange(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])[order]
    return Federation(
        inputs=torch.from_numpy(normalised(dataset, order, [*zip(starts[::2], ends[1::2], strict=True)], constants)),
        labels=torch.from_numpy(labels),
        train=tuple(ranges[::2]),
        test=tuple(ranges[1::2]),
        samples=torch.from_numpy(order),
        num_classes=dataset.num_classes,
        augment=augment,
        constants=constants,
    )
