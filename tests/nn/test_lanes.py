"""Clients side by side: each one's numbers are those it has alone."""

import torch
from torch import nn

from pfed1bs.core.rng import stream
from pfed1bs.nn.lanes import abreast, beside, client_by_client
from pfed1bs.nn.stacked import Pass, Places


def test_clients_side_by_side_have_the_outputs_and_gradients_of_autograd():
    layer = nn.Linear(3, 2)
    weight, bias = (torch.randn(4, *shape, generator=stream(0, *shape)) for shape in ((2, 3), (2,)))
    x, error = (torch.randn(4, 5, size, generator=stream(1, size)) for size in (3, 2))
    values = {"weight": weight, "bias": bias}
    out = {name: torch.full_like(value, 7.0) for name, value in values.items()}

    def one(own, x):
        y = torch.func.functional_call(layer, dict(own), (x,))
        return y, 2 * y

    outputs, now, back = client_by_client(one, Pass(layer, 4, values, Places(out, keep=0.5, scale=-2.0)), x)
    now.to_features = torch.ones_like(outputs)
    back(error)
    assert torch.allclose(outputs, x @ weight.mT + bias[:, None])
    assert torch.equal(now.features, 2 * outputs)
    assert torch.allclose(out["weight"], 3.5 - 2 * (error + 2).mT @ x, atol=1e-5)
    assert torch.allclose(out["bias"], 3.5 - 2 * (error + 2).sum(1), atol=1e-5)
    assert now.places.done == {"weight", "bias"}


def test_work_on_the_cpu_is_done_in_order():
    assert abreast(lambda i: i * i, 5, torch.device("cpu")) == [0, 1, 4, 9, 16]


def test_two_works_on_the_cpu_are_done_one_after_the_other():
    done = []
    assert beside(lambda: done.append(1) or "first", lambda: done.append(2) or 7, torch.zeros(2, 3)) == ("first", 7)
    assert done == [1, 2]
