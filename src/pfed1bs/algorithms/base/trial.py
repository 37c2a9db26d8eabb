"""Which model suits a client: a trial on samples that no candidate has trained on, without a byte.

A client begins alone. In a trial it trains a scout of every candidate, with statistics of its own, on one half of its
samples and scores them on the other half. The held half is chosen by the samples' places in the client's training set
and is the same in every trial. What the client sends leaves it out too: during a trial, and if it is alone also for
some rounds before the next one, so that the shared models that it will judge have forgotten its held samples. One with
few samples leaves it out until it is no longer alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Cohort, State, buffers_of
from pfed1bs.nn.task import Task

ALONE, FT, PROX = range(3)  # candidates: own training, the shared model fine-tuned, an own model held near the shared
HELD = 0.5  # share of the samples that no scout sees
APART = 40  # rounds before a trial in which those who are alone leave them out of what they send
# One with fewer samples leaves them out as long as it is alone: a handful of held samples that the shared model still
# remembers decides a trial, forty rounds do not undo that, and so few weigh little in the mean (docs/log.md).
FEW = 50


@dataclass(frozen=True)
class Trial:
    """When a client is on trial, which of its samples are held, and what comes of it."""

    rounds: int  # that a client takes part in during a trial
    again: int  # that it takes part in from the end of a trial to the next one; 0: there is one trial
    margin: float  # standard errors
    seed: int

    def turn(self, clients: State) -> Tensor:
        """(S,) in which round of a trial a client is; `rounds` or more: in none."""
        return clients["turns"] % (self.rounds + self.again) if self.again else clients["turns"]

    def held(self, cohort: Cohort) -> Tensor:
        """(S, N) half of each client's samples, by their place in its training set, on the CPU."""
        mask = torch.zeros(len(cohort.sizes), int(cohort.sizes.max()), dtype=torch.bool)
        for row, client, size in zip(mask, cohort.ids.tolist(), cohort.sizes.tolist(), strict=True):
            row[torch.randperm(size, generator=stream(self.seed, "held", client))[: int(HELD * size)]] = True
        return mask

    def seen(self, clients: State, cohort: Cohort) -> Tensor:
        """(S, N) the samples that an update may come from: all, unless a trial is on or near to one alone."""
        turn, alone = self.turn(clients).cpu(), clients["choice"].cpu() == ALONE
        waits = (turn >= self.rounds + self.again - APART) | (cohort.sizes.cpu() < FEW)
        free = (turn >= self.rounds) & ~(waits & alone & bool(self.again))
        return ~self.held(cohort) | free[:, None]

    def verdict(self, sums: Tensor, sizes: Tensor, choice: Tensor) -> Tensor:
        """(S,) the choice, or the best of those that beat it by `margin` standard errors of the difference.

        The same held samples come back in every round, so that only HELD N_k of the scores count as independent.
        """
        means = sums / sums[:, -1:, -1:].clamp(min=1)  # of products of two scores; the last score is 1
        own = torch.arange(len(sums), device=sums.device), choice
        gain = means[:, :3, 3] - means[:, :3, 3][own][:, None]
        square = means.diagonal(dim1=1, dim2=2)[:, :3]
        apart = (square + square[own][:, None] - 2 * means[own][:, :3]).clamp(min=0)  # mean square of the difference
        error = (apart / (HELD * sizes).floor()[:, None]).sqrt()  # infinite where nothing is held
        won = (gain > 0) & (gain >= self.margin * error)
        return torch.where(won.any(1), torch.where(won, gain, 0.0).argmax(1), choice)


def scores(task: Task, models: list[State], batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """(S, 4, 4) sums of the products of two scores: those of three models, and 1.

    A model's score on a sample is the probability that it gives to the right label: right answers tell less.
    """
    total = torch.zeros(1, 4, 4)
    for x, y in batches:
        given = [task.logits(model["w"], x, buffers_of(model)).softmax(-1) for model in models]
        right = [values.gather(-1, y[..., None])[..., 0] for values in given]
        score = torch.stack([*right, torch.ones_like(right[0])], 1)  # (S, 4, B)
        total = total.to(score) + (score[:, :, None] * score[:, None]).sum(-1)
    return total
