"""Convolutions by the library client by client, between normalisations of ours, beside torch's own layers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.rng import stream
from pfed1bs.nn import cuda_normalisations, lanes
from pfed1bs.nn.models import build
from pfed1bs.nn.network import Network
from pfed1bs.nn.stacked import Pass, Places
from pfed1bs.nn.tracing import program


@pytest.fixture
def taken(device, monkeypatch):
    """How many clients went abreast, and which normalisations were ours, in their order."""
    found, abreast, normalised = [], lanes.abreast, cuda_normalisations.normalised
    monkeypatch.setattr(cuda, "usable", lambda x, length=4: True)
    monkeypatch.setattr(nvrtc, "trouble", lambda *kernel: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default
    monkeypatch.setattr(lanes, "abreast", lambda work, count, on: found.append(count) or abreast(work, count, on))
    monkeypatch.setattr(cuda_normalisations, "normalised", lambda x, own: found.append("ours") or normalised(x, own))
    return found


def values_of(module, clients, device):
    """Different values of every client, parameters in flat rows at addresses that nothing is aligned to."""
    parts = {name: value.detach() for name, value in module.named_parameters()}
    flat = 0.3 * torch.randn(clients, 1 + sum(value.numel() for value in parts.values()), generator=stream(0, "w"))
    rows = flat.to(device)[:, 1:].split([value.numel() for value in parts.values()], 1)
    buffers = {name: torch.stack([value] * clients).to(device) for name, value in module.named_buffers()}
    return {name: row.unflatten(1, parts[name].shape) for name, row in zip(parts, rows, strict=True)} | buffers


def by_torch(module, values, x, error, moving):
    """Outputs, gradients and buffers afterwards of every client by torch's layers and autograd."""
    found = []
    for i in range(len(x)):
        own = {name: value[i].detach().clone() for name, value in values.items()}
        leaves = {name: own[name].requires_grad_() for name in moving}
        y = functional_call(module, own, (x[i],))
        gradients = torch.autograd.grad(y, list(leaves.values()), error[i])
        buffers = {f"after {name}": own[name] for name, _ in module.named_buffers()}
        found.append({"outputs": y.detach(), **dict(zip(leaves, gradients, strict=True)), **buffers})
    return {name: torch.stack([row[name] for row in found]) for name in found[0]}


def compare(module, shape, device, moving=None, training=True, over=False):
    """A step with keep = 0.5 and scale = -2, over the weights themselves or to places of its own, beside torch's."""
    module = module.train(training).to(device)
    values = values_of(module, shape[0], device)
    moving = [name for name, _ in module.named_parameters()] if moving is None else moving
    x = torch.randn(shape, generator=stream(1, "x")).to(device)
    with torch.no_grad():
        y = functional_call(module, {name: value[0].clone() for name, value in values.items()}, (x[0],))
    error = torch.randn(len(x), *y.shape, generator=stream(2, "g")).to(device)
    expected = by_torch(module, values, x, error, moving)
    out = {name: values[name] if over else torch.ones_like(values[name]) for name in moving}
    before = {name: value.clone() for name, value in out.items()}
    places = Places(out, keep=0.5, scale=-2.0)
    with torch.no_grad():
        outputs, back = program(module, values, None)(Pass(module, len(x), values, places, way="fanned"), x)
        back(error)
    assert places.done == {*moving}
    found = {"outputs": outputs, **{f"after {name}": values[name] for name, _ in module.named_buffers()}}
    found |= {name: (value - 0.5 * before[name]) / -2 for name, value in out.items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: name + text)


def network():
    """Convolutions of other sizes and steps than ours, with biases and without, each before a normalisation."""
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(5, 6, (3, 5), stride=(2, 1), padding=(1, 2)), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 2, dilation=2, groups=2)),
        *(nn.Flatten(), nn.Linear(4 * 1 * 3, 3)),
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("over", [True, False])
def test_convolutions_client_by_client_have_the_numbers_of_torchs_layers(device, taken, training, over):
    compare(network(), (3, 4, 2, 12, 10), device, training=training, over=over)
    back = [3] * 4
    assert taken == [3, "ours", 3, "ours", 3, 3, *back]


@pytest.mark.parametrize("moving, back", [(["0.weight"], 4), (["4.bias"], 3), (["1.weight", "7.weight"], 3)])
def test_weights_that_do_not_move_stay_and_cost_nothing_in_the_first_layer(device, taken, moving, back):
    compare(network(), (2, 3, 2, 12, 10), device, moving=moving)
    assert taken == [2, "ours", 2, "ours", 2, 2, *[2] * back]


@pytest.mark.parametrize("over", [True, False])
def test_a_convolution_that_is_called_twice_has_the_sum_of_both_gradients(device, taken, over):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2 * 12, 3)

        def forward(self, x):
            return self.last(torch.flatten(self.conv(F.relu(self.conv(x))), 1))

    compare(Twice(), (2, 3, 2, 4, 3), device, over=over)
    assert taken == [2] * 4


@pytest.mark.parametrize(
    "layer, shape, fans",
    [
        (nn.Conv1d(2, 3, 3, stride=2), (2, 4, 2, 9), True),
        (nn.Conv3d(2, 3, 2, padding=1), (2, 4, 2, 3, 4, 2), True),
        (nn.Conv2d(2, 3, 3, padding="same"), (2, 4, 2, 4, 5), False),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 2, 4, 5), False),
    ],
)
def test_other_convolutions_go_with_it_or_through_vmap(device, taken, layer, shape, fans):
    compare(nn.Sequential(layer, nn.ReLU()), shape, device)
    assert taken == [2, 2] * fans


@pytest.mark.gpu
def test_a_gpu_is_offered_every_way():
    module = build("vgg8", (3, 32, 32), 10)
    values = values_of(module, 2, torch.device("cuda"))
    network, offered = Network(module, values, None, None), []
    network._ways = lambda ways, now, x: offered.extend(ways)
    network(values, torch.zeros(2, 4, 3, 32, 32, device="cuda"), True, Places({}))
    assert offered == ["stacked", "lanes", "fanned", "kernels"]
