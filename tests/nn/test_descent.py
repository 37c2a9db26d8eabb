"""Steps of stacked weights that are held near others."""

import pytest
import torch
from torch import nn

from pfed1bs.core.rng import stream
from pfed1bs.nn.descent import Descent, Near, Walk
from pfed1bs.nn.task import Task

TASK = Task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)))


def walked(lam, momentum=0.0, steps=4):
    """Two clients after some steps."""
    random = stream(0, "near")
    descent = Descent(TASK, lr=0.1, mu=0.01, momentum=momentum)
    theta, w = (torch.randn(2, TASK.n, generator=random) for _ in range(2))
    before, near = (theta.clone(), w.clone()), Near(theta, lam)
    walk = Walk(w, None, {}, torch.zeros(2))
    for _ in range(steps):
        x, y = torch.randn(2, 5, 1, 4, 4, generator=random), torch.randint(3, (2, 5), generator=random)
        walk = descent.approach(walk, x, y, near)
    assert torch.equal(theta, before[0]) and torch.equal(w, before[1])  # others hold them
    return walk.w


@pytest.mark.parametrize("lam", [0.0, 0.3, torch.tensor([[0.3], [0.0]])])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_device_that_takes_the_pull_in_with_the_ridge_takes_the_same_steps_up_to_rounding(monkeypatch, lam, momentum):
    here = walked(lam, momentum)
    assert Near(here, 0.3).ridge(here) is None  # on the CPU bits stay
    assert not torch.equal(here, walked(0.1, momentum))
    monkeypatch.setattr(Near, "ridge", lambda self, w: None if isinstance(self.lam, torch.Tensor) else self.lam)
    torch.testing.assert_close(walked(lam, momentum), here)


def test_on_a_gpu_a_common_pull_is_a_part_of_the_ridge():
    elsewhere = torch.empty(2, 3, device="meta")
    assert Near(elsewhere, 0.3).ridge(elsewhere) == 0.3
    assert Near(elsewhere, torch.ones(2, 1)).ridge(elsewhere) is None
