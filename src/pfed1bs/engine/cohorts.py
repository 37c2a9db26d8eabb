"""Who takes part in a round, and what is random about each of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import MASK, sequence, signed, stream, words


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, ascending by id, as both sides know them."""

    seed: int
    round: int
    ids: Tensor  # (S,)
    sizes: Tensor  # (S,) training samples
    seen: Tensor  # (S,) round of the last broadcast held, -1: none

    @cached_property
    def weights(self) -> Tensor:
        """(S,) shares N_k / sum N in float64, on the CPU."""
        sizes = self.sizes.cpu().double()
        return sizes / sizes.sum()

    def shares(self, weights: Literal["samples", "equal"]) -> Tensor:
        """(S,) shares by samples, or 1 / S each, in float64, on the CPU."""
        return self.weights if weights == "samples" else torch.ones_like(self.weights) / len(self.ids)

    def uniform(self, name: str, *shape: int, device: torch.device | str = "cpu") -> Tensor:
        """(S, *shape) numbers in [0, 1), multiples of 2^-24; row i from client ids[i]'s own stream, on any device."""
        drawn = torch.empty(len(self.ids), prod(shape), device=device)
        for row, whole in zip(drawn, self.integers(name, prod(shape), device), strict=True):
            row.copy_(whole.bitwise_right_shift_(8).bitwise_and_(2**24 - 1)).mul_(2**-24)
        return drawn.view(-1, *shape)

    def integers(self, name: str, count: int, device: torch.device | str = "cpu") -> Iterator[Tensor]:
        """`count` numbers of 32 bits with a sign for one client after the other, each from the client's own stream.

        On a GPU they are computed there: of large models a processor draws slower than all else is done.
        """
        for client in self.ids.tolist():
            own, pairs = stream(self.seed, name, client, self.round).initial_seed() & MASK, (count + 1) // 2
            if torch.device(device).type == "cpu":
                drawn = torch.from_numpy(words(own, pairs).view(np.int64))
            else:
                drawn = sequence(torch.tensor(signed(own), device=device), pairs)
            yield drawn.view(torch.int32)[:count]

    def rows(self, at: Tensor | slice) -> "Cohort":
        """The same round for some of its clients."""
        return Cohort(self.seed, self.round, self.ids[at], self.sizes[at], self.seen[at])


def sample(
    seed: int, round: int, sizes: Tensor, seen: Tensor, sampled: int | None, among: Tensor | None = None
) -> Cohort:
    """The clients of a round: uniform without replacement, the same for every method."""
    among = torch.arange(len(sizes)) if among is None else among
    clients = len(among)
    if sampled is not None and not 1 <= sampled <= clients:
        few = " without the newcomers" if clients < len(sizes) else ""
        raise UserError(f"sampled must be in 1 .. clients = {clients}{few}, got {sampled}")
    ids = among[_order(seed, round, clients)[: sampled or clients]].sort().values
    return Cohort(seed, round, ids, sizes.cpu()[ids], seen[ids])


@lru_cache(maxsize=2)
def _order(seed: int, round: int, clients: int) -> Tensor:
    """The order in which clients are taken; on a GPU the next round's is known before it begins."""
    return torch.randperm(clients, generator=stream(seed, "cohort", round))


def working(trains: Literal["sampled", "all"], cohort: Cohort, sizes: Tensor, seen: Tensor, among: Tensor) -> Cohort:
    """Who does local work in the round of this cohort: its clients, or everyone `among` whom it was drawn."""
    if trains == "sampled":
        return cohort
    return Cohort(cohort.seed, cohort.round, among, sizes.cpu()[among], seen[among])
