"""Modules that draw from the global random state, which training must not touch, are found and refused."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.nn.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:Drawing is computed client by client")


class Drawing(nn.Module):
    """Draws in its forward, with or without a convolution."""

    def __init__(self, draw, convolves):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 1) if convolves else nn.Flatten()
        self.last, self.draw = nn.Linear(32, 3), draw

    def forward(self, x):
        return self.last(self.draw(self.first(x).flatten(1), self.training))


DRAWS = {
    "dropout": lambda x, training: F.dropout(x, 0.5, training),
    "noise": lambda x, training: x + torch.randn_like(x),
    "mask": lambda x, training: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "chance": lambda x, training: x * (torch.rand(()) < 0.5),
}


@pytest.mark.parametrize("draw", [np.random.rand, random.random])
@pytest.mark.parametrize("traced", [False, True])
def test_a_module_that_draws_with_numpy_or_python_is_refused(draw, traced):
    def scaled(x, training):
        return (x if traced else x.flip(1)) * draw()  # flip is none of the known layers

    before = random.getstate(), str(np.random.get_state())
    with pytest.raises(ValueError, match="Drawing draws from the global random state.*torch.nn.Dropout"):
        task = Task(Drawing(scaled, convolves=False))
        task.logits(torch.zeros(2, task.n), torch.ones(2, 3, 2, 4, 4), {})
    assert (random.getstate(), str(np.random.get_state())) == before


@pytest.mark.parametrize("stacked", [None, True, False])
@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_module_that_draws_from_the_global_random_state_is_refused(draw, convolves, stacked):
    module, x, y = Drawing(DRAWS[draw], convolves), torch.ones(2, 3, 2, 4, 4), torch.zeros(2, 3, dtype=torch.int64)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="Drawing draws from the global random state.*torch.nn.Dropout"):
        task = Task(module, stacked=stacked)
        task.gradient(torch.zeros(2, task.n), x, y, {})
    if draw != "dropout":
        with pytest.raises(ValueError, match="draws from the global random state"):
            task = Task(module, stacked=stacked)
            task.logits(torch.zeros(2, task.n), x, {})
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_is_not_traced_and_draws_nothing_runs_while_another_thread_draws_first_weights():
    task = Task(Drawing(lambda x, training: x.flip(1), convolves=True))
    w, x = torch.zeros(2, task.n), torch.ones(2, 3, 2, 4, 4)
    with ThreadPoolExecutor(1) as other:
        done = other.submit(lambda: [task.init(seed) for seed in range(200)])
        while not done.done():
            task.logits(w, x, {})
        done.result()
