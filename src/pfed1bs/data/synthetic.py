"""Clients without a data set: each draws its samples from a stream of its own, when they are needed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.data.batches import ClientBatches, Samples
from pfed1bs.data.federation import NOBODY, Federation
from pfed1bs.data.partitions import Indices, generator, parse

NAME, SHAPE, CLASSES = "synthetic", (1, 28, 28), 10
TRAIN, TEST = 30, 10  # samples of a client
APART = 4.0  # standard deviations between the means of two classes


@dataclass(frozen=True)
class Synthetic(Federation):
    """K clients whose samples are normal around the mean of their class; nothing is held but what is asked for.

    The classes of a client follow the partition: c of them in turn, shares from a Dirichlet distribution, or all.
    """

    count: int = 0  # K
    cap: int = TRAIN  # training samples of each client
    scheme: str = "iid"
    seed: int = 0

    @property
    def clients(self) -> int:
        """K."""
        return self.count

    @cached_property
    def sizes(self) -> Tensor:
        """(K,) training samples of every client, the same for all."""
        return torch.full((self.count,), self.cap)

    @cached_property
    def _lengths(self) -> tuple[set[int], set[int]]:
        return {self.cap}, {TEST}

    @cached_property
    def means(self) -> NDArray[np.float32]:
        """The mean of every class."""
        drawn = generator(self.seed, NAME).standard_normal((CLASSES, *self.shape), np.float32)
        return np.float32(APART / sqrt(2 * prod(self.shape))) * drawn

    def classes_of(self, client: int) -> Indices:
        """The classes of a client's samples, training part first."""
        rng, (kind, value) = generator(self.seed, NAME, "classes", client), parse(self.scheme)
        if kind == "labels":
            own = (client * int(value) + np.arange(int(value))) % CLASSES
            return own[rng.integers(len(own), size=self.cap + TEST)]
        shares = rng.dirichlet(np.full(CLASSES, value)) if kind == "dirichlet" else None
        return rng.choice(CLASSES, self.cap + TEST, p=shares)

    def table(self) -> tuple[Tensor, Tensor]:
        """Samples of every class at every client, (K, C) each: training and test part."""
        parts = [np.split(self.classes_of(client), [self.cap]) for client in range(self.count)]
        train, test = (
            torch.from_numpy(np.stack([np.bincount(part[i], minlength=CLASSES) for part in parts])) for i in (0, 1)
        )
        return train, test

    def some(self, ids: Tensor) -> "Synthetic":
        """The same federation with the samples of some clients in it."""
        clients, each = ids.tolist(), self.cap + TEST
        labels = [self.classes_of(client) for client in clients]
        noise = [
            generator(self.seed, NAME, "inputs", client).standard_normal((each, *self.shape), np.float32)
            for client in clients
        ]
        inputs = torch.from_numpy(np.concatenate([self.means[own] + x for own, x in zip(labels, noise, strict=True)]))
        rows = torch.arange(len(clients) * each).view(-1, each)
        place = {client: row for row, client in enumerate(clients)}
        return replace(
            self,
            inputs=inputs.to(self.inputs.device),
            labels=torch.from_numpy(np.concatenate(labels)).to(self.inputs.device),
            train=cast(Sequence[Tensor], {client: rows[row, : self.cap] for client, row in place.items()}),
            test=cast(Sequence[Tensor], {client: rows[row, self.cap :] for client, row in place.items()}),
        )

    def batches(self, ids: Tensor, round: int, seed: int, steps: int, batch: int) -> ClientBatches:
        """Mini-batches of the clients `ids`."""
        return Federation.batches(self.some(ids), ids, round, seed, steps, batch)

    def foresee(self, ids: Tensor, round: int, seed: int, batch: int, names: Iterable[tuple[str, int]]) -> None:
        """Draw the rows of later batches now."""
        Federation.foresee(self.some(ids), ids, round, seed, batch, names)

    def tests(self, ids: Tensor, size: int = 256) -> Samples:
        """Test samples of the clients `ids`."""
        return Federation.tests(self.some(ids), ids, size)

    def trained(self, ids: Tensor, size: int = 256) -> Samples:
        """Training samples of the clients `ids`."""
        return Federation.trained(self.some(ids), ids, size)


def synthetic(
    name: str, clients: int, scheme: str = "iid", cap: int | None = None, seed: int = 0, newcomers: float = 0.0
) -> Synthetic:
    """The federation that a name such as synthetic or synthetic:3x32x32 stands for; labels are dealt by the scheme."""
    if parse(scheme)[0] == "natural":
        raise UserError("synthetic samples have no owners", "use data.partition = iid, labels:c or dirichlet:a")
    shape = shape_of(name)
    late = generator(seed, "newcomers").permutation(clients)[: int(newcomers * clients)]
    return Synthetic(
        inputs=torch.empty(0, *shape),
        labels=torch.empty(0, dtype=torch.int64),
        train=(),
        test=(),
        samples=NOBODY,
        num_classes=CLASSES,
        newcomers=torch.from_numpy(np.sort(late)),
        count=clients,
        cap=min(cap or TRAIN, TRAIN),
        scheme=scheme,
        seed=seed,
    )


def shape_of(name: str) -> tuple[int, ...]:
    """The shape of a sample, out of the name."""
    _, _, told = name.partition(":")
    if told and not all(part.isdecimal() and int(part) for part in told.split("x")):
        raise UserError(f"{name} names no shape of samples", "write synthetic, or for example synthetic:3x32x32")
    return tuple(map(int, told.split("x"))) if told else SHAPE


def is_synthetic(name: str) -> bool:
    """Whether a data set of this name is drawn and not read."""
    return name.partition(":")[0] == NAME
