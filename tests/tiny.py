"""Problems small enough to compute by hand: one weight per class, one sample per batch, two clients."""

from dataclasses import dataclass
from math import exp

import torch
from torch import nn

from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.task import Task

SAMPLES = {"train": [((1.0, 0), (2.0, 1)), ((-0.5, 0), (1.0, 1))]}  # name: per step, (x, y) of the two clients
SIZES = (1, 3)  # training samples of the two clients, so their shares are 1/4 and 3/4
SHARES = (0.25, 0.75)


def linear():
    """Logits (a x, b x) of one input, weights (a, b)."""
    return Task(nn.Linear(1, 2, bias=False))


def chain():
    """Logits (b a x, c a x), weights (a, b, c): a body and a head."""
    return Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))


@dataclass(frozen=True)
class Given:
    """The batches that a test writes down."""

    samples: dict[str, list[tuple[tuple[float, int], ...]]]
    steps: int

    def __call__(self, name="train", steps=None, only=None):
        for pairs in self.samples[name][: self.steps if steps is None else steps]:
            yield torch.tensor([[[x]] for x, _ in pairs]), torch.tensor([[y] for _, y in pairs])


def given(**samples):
    """Batches by name; "train" says how many steps a round has."""
    samples = samples or SAMPLES
    return Given(samples, len(next(iter(samples.values()))))


def cohort(round=0):
    return Cohort(0, round, torch.tensor([0, 1]), torch.tensor(SIZES), torch.tensor([-1, -1]))


def softmax(a, b):
    return exp(a) / (exp(a) + exp(b)), exp(b) / (exp(a) + exp(b))


def slope(w, sample):
    """Gradient of the cross-entropy of `linear` at w = (a, b)."""
    x, y = sample
    p = softmax(w[0] * x, w[1] * x)
    return [(p[c] - (c == y)) * x for c in (0, 1)]


def chain_slope(w, sample):
    """Gradient of the cross-entropy of `chain` at w = (a, b, c)."""
    (a, b, c), (x, y) = w, sample
    p, q = softmax(b * a * x, c * a * x)
    e = (p - (y == 0), q - (y == 1))
    return [(e[0] * b + e[1] * c) * x, e[0] * a * x, e[1] * a * x]


def plus(w, *terms):
    """w + factor * vector for every (factor, vector)."""
    return [value + sum(factor * vector[i] for factor, vector in terms) for i, value in enumerate(w)]


def minus(v, w):
    return plus(v, (-1, w))


def aggregated(algorithm, server, said, round=0):
    """The server after both clients' messages."""
    messages = [{name: field[i] for name, field in said.items()} for i in (0, 1)]
    return algorithm.aggregate(server, messages, cohort(round))


def mean(models):
    """Both clients' weights, averaged by their shares."""
    return [SHARES[0] * a + SHARES[1] * b for a, b in zip(*models, strict=True)]


def close(tensor, expected):
    """Equal up to the rounding of a few float32 operations."""
    torch.testing.assert_close(tensor, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    return True
