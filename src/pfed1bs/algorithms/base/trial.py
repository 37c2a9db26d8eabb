"""Which model suits a client: a trial on samples that its scouts never train on, without a byte and without a loss.

For some rounds a client trains, beside its models, a scout of each candidate on three quarters of its samples and
counts the scouts' right answers on the other quarter. The models themselves train on everything. Which samples are
held back is a function of the sample, so it is the same in every round and costs no memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.algorithms.base.method import one_label
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Batches, State, buffers_of
from pfed1bs.nn.task import Task

ALONE, FT, PROX = range(3)  # candidates: own training, the shared model fine-tuned, an own model held near the shared
HELD = 0.25  # share of the samples that scouts do not see


@dataclass(frozen=True)
class Trial:
    """The scouts of one round: three models for every client, in one stack (3 S, n)."""

    task: Task
    lr: float
    lam: float
    seed: int

    def held(self, x: Tensor) -> Tensor:
        """Which samples of x (S, B, ...) are held back, (S, B): a quarter, by a random projection of the sample."""
        flat = x.flatten(2)
        direction = torch.rand(flat.shape[-1], generator=stream(self.seed, "held")).to(x)
        lengths = torch.stack([own @ direction for own in flat])  # so that no client's depend on the others
        return (lengths * 1000).frac().abs() < HELD

    def visible(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch with every held sample replaced by one that is not."""
        held = self.held(x)
        order = held.long().argsort(dim=1, stable=True)
        seen = (~held).sum(1, keepdim=True).clamp(min=1)
        places = order.gather(1, torch.arange(held.shape[1], device=x.device) % seen)
        index = places.view(*places.shape, *(1 for _ in x.shape[2:])).expand_as(x)
        return x.gather(1, index), y.gather(1, places)

    def run(self, clients: State, batches: Batches, late: Tensor) -> State:
        """Train the scouts for a round; where `late` (S,), count their answers in its second half."""
        theta, counts = clients["theta"], clients["counts"]
        scouts = torch.cat([clients["scout/alone"], theta, clients["scout/prox"]])
        buffers = tripled(buffers_of(clients))
        for step, (x, y) in enumerate(batches()):
            one_label("pfed1bs-delta with algorithm.keep = best", y)
            if 2 * step >= batches.steps:
                counts = counts + late[:, None] * self.score(scouts, x, y, buffers)
            scouts, buffers = self.step(scouts, theta, x, y, buffers)
        alone, _, prox = scouts.chunk(3)
        return {"scout/alone": alone, "scout/prox": prox, "counts": counts}

    def score(self, scouts: Tensor, x: Tensor, y: Tensor, buffers: State) -> Tensor:
        """Counts on the held samples, (S, 5): right answers of three scouts, samples, where ALONE and PROX differ."""
        held = self.held(x)
        logits = self.task.logits(scouts, torch.cat([x, x, x]), buffers)
        right = (logits.argmax(-1).view(3, *y.shape) == y) & held
        counts = [*right.sum(2), held.sum(1), (right[ALONE] != right[PROX]).sum(1)]
        return torch.stack(counts, 1).float()

    def step(self, scouts: Tensor, theta: Tensor, x: Tensor, y: Tensor, buffers: State) -> tuple[Tensor, State]:
        """One step of all scouts on the samples they may see."""
        seen, labels = self.visible(x, y)
        triple = torch.cat([seen, seen, seen]), torch.cat([labels, labels, labels])
        grad, _, buffers = self.task.gradient(scouts, *triple, buffers)
        grad[2 * len(theta) :] += self.lam * (scouts[2 * len(theta) :] - theta)
        return scouts - self.lr * grad, buffers


def tripled(buffers: State) -> State:
    """Buffers for three models of every client."""
    return {name: torch.cat([value, value, value]) for name, value in buffers.items()}


def verdict(counts: Tensor, sizes: Tensor, margin: float) -> Tensor:
    """(S,) choices from the counts of a trial: PROX, unless another is better by `margin` standard errors.

    The same held samples come back in every round, so that only HELD N_k of the answers count as independent.
    """
    right, samples, differ = counts[:, :3], counts[:, 3].clamp(min=1), counts[:, 4]
    rate = right / samples[:, None]
    independent = torch.minimum(samples, (HELD * sizes).clamp(min=1))
    error = (differ / samples / independent).clamp(min=1e-12).sqrt()
    best = rate.argmax(1)
    better = rate.gather(1, best[:, None])[:, 0] - rate[:, PROX] > margin * error
    return torch.where(better, best, torch.full_like(best, PROX))


def empty(w: Tensor) -> State:
    """What a client keeps for a trial, before it."""
    clients = len(w)
    return {
        "alone": w.clone(),
        "scout/alone": w.clone(),
        "scout/prox": w.clone(),
        "counts": torch.zeros(clients, 5),
        "turns": torch.zeros(clients, dtype=torch.int64),
        "choice": torch.full((clients,), PROX),
    }
