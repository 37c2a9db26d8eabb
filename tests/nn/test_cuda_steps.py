"""Steps of many parameters in one launch, on a GPU and by the kernel's C twin."""

import pytest
import torch

from pfed1bs.core import cuda
from pfed1bs.core.rng import stream
from pfed1bs.nn import cuda_steps


@pytest.mark.parametrize("sizes", [(), (1,), (1023, 1024, 1025), (5000, 1, 0, 3), (7,) * 130])
def test_steps_of_many_parameters_are_taken_in_one_launch(device, sizes):
    random, sizes = stream(0, "steps"), list(sizes)
    before, gradients = torch.randn(sum(sizes) + 3, generator=random), torch.randn(sum(sizes), generator=random)
    w = before.clone().to(device)
    cuda_steps.take(w[1:-2].split(sizes), gradients.to(device).split(sizes), 0.9, -0.1)  # at any address
    torch.testing.assert_close(w[1:-2].cpu(), 0.9 * before[1:-2] - 0.1 * gradients)
    assert torch.equal(w[:1].cpu(), before[:1]) and torch.equal(w[-2:].cpu(), before[-2:])


def test_only_contiguous_numbers_of_one_kind_are_stepped_together(monkeypatch):
    monkeypatch.setattr(cuda, "usable", lambda x: True)
    x = torch.zeros(4, 6)
    assert cuda_steps.usable(x, x.clone())
    assert not cuda_steps.usable(x[:, :3], x[:, :3].clone()) and not cuda_steps.usable(x, x.T.contiguous().T)
    assert not cuda_steps.usable(x, x.double()) and not cuda_steps.usable(x, x[0])
