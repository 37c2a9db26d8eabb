"""Which weights of a sparse model exist: how many in each tensor, the first ones, and how they change."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pfed1bs.rng import stream
from pfed1bs.task import Part


def kept(parts: Sequence[Part], density: float) -> list[int]:
    """Weights that exist in each tensor, round(density n) in all: the Erdos-Renyi kernel rule, normalisation dense.

    A tensor of shape s gets a number proportional to sum(s), and all it has if that is less: biases and small layers
    stay dense, the big ones pay for them.
    """
    sizes, reach = [part.slice.stop - part.slice.start for part in parts], [sum(part.shape) for part in parts]
    budget = round(density * sum(sizes))
    dense = {i for i, part in enumerate(parts) if part.kind == "norm"}
    if not 0 < density <= 1 or budget < sum(sizes[i] for i in dense):
        raise ValueError(
            f"algorithm.density must be in (0, 1] and cover normalisation layers, which stay dense, got {density}"
        )
    while True:
        rest, sparse = budget - sum(sizes[i] for i in dense), [i for i in range(len(parts)) if i not in dense]
        total = sum(reach[i] for i in sparse)
        full = {i for i in sparse if rest * reach[i] > total * sizes[i]}
        if not full:
            break
        dense |= full
    counts = [size if i in dense else rest * reach[i] // total for i, size in enumerate(sizes)]
    by_remainder = sorted(sparse, key=lambda i: -(rest * reach[i] % total))
    for i in by_remainder[: budget - sum(counts)]:
        counts[i] += 1
    return counts


def drawn(parts: Sequence[Part], counts: Sequence[int], seed: int, client: int) -> Tensor:
    """The first mask (n,) of a client, uniform among those with these counts."""
    scores = torch.rand(parts[-1].slice.stop, generator=stream(seed, "mask", client))
    pieces = [scores[part.slice] for part in parts]
    return torch.cat([_chosen(piece, count) for piece, count in zip(pieces, counts, strict=True)])


def evolved(
    mask: Tensor, w: Tensor, scores: Tensor, parts: Sequence[Part], counts: Sequence[int], share: float
) -> Tensor:
    """Masks (S, n) after a share of every sparse tensor's weights is replaced.

    The smallest |w| go, as many of those that do not exist then come, the highest scores (S, n) first.
    """
    mask = mask.clone()
    for part, count in zip(parts, counts, strict=True):
        number, here = int(share * count), mask[:, part.slice]
        if number and count < here.shape[1]:
            here &= ~_chosen((-w[:, part.slice].abs()).masked_fill(~here, -torch.inf), number)
            here |= _chosen(scores[:, part.slice].masked_fill(here, -torch.inf), number)
    return mask


def _chosen(scores: Tensor, count: int) -> Tensor:
    """True at the `count` highest scores of every row."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(
        -1, scores.topk(count, dim=-1, sorted=False).indices, True
    )
