"""Mini-batches of many clients at once, each client drawn from its own stream."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pfed1bs.core.rng import stream

Key = tuple[int, str, int, int]  # seed, name, client, round
Samples = Iterator[tuple[Tensor, Tensor, Tensor]]  # inputs (S, E, ...), labels (S, E), mask (S, E): False is padding
AT = "@"  # between a name and the share of the samples that its batches are drawn from


@dataclass(frozen=True)
class ClientBatches:
    """Stacked mini-batches of one round; the same name gives the same batches, fewer steps the first of them."""

    inputs: Tensor  # (N, *shape) samples of all clients
    labels: Tensor  # (N,)
    steps: int
    rows: Callable[..., Tensor]  # (steps, S, B) rows of `inputs` for a name or "name@share", steps, `only` if not None
    samples: Callable[..., Samples]  # all training samples between two shares, 0 and 1 unless told
    mirrored: Callable[[str, int], Tensor] | None = None  # (steps, S, B) which images to flip
    share: float = 1.0  # of every client's samples, that batches are drawn from

    def __call__(
        self, name: str = "train", steps: int | None = None, only: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of inputs (S, B, ...) and labels (S, B)."""
        count = self.steps if steps is None else steps
        name = name if self.share == 1 else f"{name}{AT}{self.share}"
        rows = (self.rows(name, count) if only is None else self.rows(name, count, only)).to(self.inputs.device)
        labels = self.labels[rows]
        mirrored = None if self.mirrored is None else self.mirrored(name, count).to(self.inputs.device)
        for step in range(count):
            x = self.inputs.index_select(0, rows[step].reshape(-1)).view(*rows.shape[1:], *self.inputs.shape[1:])
            if mirrored is not None:
                x = torch.where(mirrored[step][..., None, None, None], x.flip(-1), x)
            yield x, labels[step]

    def first(self, share: float) -> "ClientBatches":
        """Batches of the first `share` of every client's samples alone."""
        return replace(self, share=share)


def cut(rows: Tensor, start: float, stop: float) -> Tensor:
    """The rows between two shares of their number; those before any share but 0 are one at least."""
    low, high = (max(1, int(share * len(rows))) if share else 0 for share in (start, stop))
    return rows[low:high]


def draw(own: Tensor, steps: int, batch: int, key: Key) -> Tensor:
    """(steps, batch) of the rows `own` of one client.

    With at least `batch` rows an epoch is one permutation cut into full batches, then comes the next; with fewer, rows
    are drawn with replacement.
    """
    seed, name, client, round = key
    generator = stream(seed, "batches", name, client, round)
    size = len(own)
    if size < batch:
        return own[torch.randint(size, (steps, batch), generator=generator)]
    each = size // batch
    epochs = [torch.randperm(size, generator=generator)[: each * batch] for _ in range(-(-steps // each))]
    drawn = epochs[0] if len(epochs) == 1 else torch.cat(epochs)
    return own[drawn[: steps * batch]].view(steps, batch)


def flips(steps: int, batch: int, key: Key) -> Tensor:
    """(steps, batch) fair coins, from a stream beside the one of the batches, which augmentation leaves as it is."""
    seed, name, client, round = key
    return torch.rand(steps, batch, generator=stream(seed, "flips", name, client, round)) < 0.5
