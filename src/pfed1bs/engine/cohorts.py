"""Who takes part in a round."""

from functools import lru_cache

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Algorithm, Cohort


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


def working(algorithm: Algorithm, cohort: Cohort, sizes: Tensor, seen: Tensor, among: Tensor) -> Cohort:
    """Who does local work in the round of this cohort: its clients, or everyone `among` whom it was drawn."""
    if algorithm.trains == "sampled":
        return cohort
    return Cohort(cohort.seed, cohort.round, among, sizes.cpu()[among], seen[among])
