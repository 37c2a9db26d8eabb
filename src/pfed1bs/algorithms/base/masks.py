"""Which weights of a sparse model exist: how many in each tensor, the first ones, and how they change."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import stream
from pfed1bs.nn.parts import Part


def kept(parts: Sequence[Part], density: float) -> list[int]:
    """Weights that exist in each tensor, round(density n) in all: the Erdos-Renyi kernel rule, normalisation dense.

    A tensor of shape s gets a number proportional to sum(s), and all it has if that is less: biases and small layers
    stay dense, the big ones pay for them.
    """
    sizes, reach = [part.slice.stop - part.slice.start for part in parts], [sum(part.shape) for part in parts]
    budget = round(density * sum(sizes))
    dense = {i for i, part in enumerate(parts) if part.kind == "norm"}
    if not 0 < density <= 1 or budget < sum(sizes[i] for i in dense):
        raise UserError(
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
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for part, count in zip(parts, counts, strict=True):
        mask[part.slice].scatter_(0, scores[part.slice].topk(count, sorted=False).indices, True)
    return mask


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
            here ^= highest(w[:, part.slice].abs().neg_(), number, here)
            here |= highest(scores[:, part.slice], number, ~here)
    return mask


def highest(x: Tensor, count: int, among: Tensor) -> Tensor:
    """Where the `count` highest of every row of x (S, k) are among some places, of equal ones the first on a CPU."""
    if not x.is_cpu:
        best = x.masked_fill(~among, -torch.inf).topk(count, sorted=False).indices
        return torch.zeros_like(among).scatter_(1, best, True)
    chosen = torch.empty(among.shape, dtype=torch.bool)
    for row, some, out in zip(x.numpy(), among.numpy(), chosen.numpy(), strict=True):
        at = np.flatnonzero(some)
        able = row.take(at)
        limit = np.partition(able, -count)[-count]  # several times as fast as torch.topk
        np.logical_and(row > limit, some, out=out)
        out[at[able == limit][: count - np.count_nonzero(out)]] = True
    return chosen


def floats(mask: Tensor) -> Tensor:
    """1.0 where a mask is true, 0.0 elsewhere; bytes become float32 several times as fast as truth values do."""
    return mask.view(torch.uint8).float()


def places(mask: Tensor) -> Tensor:
    """The flat indices where a mask is true, ascending; with them values move faster than with the mask itself."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.is_cpu else mask.flatten().nonzero().flatten()
