"""Batch normalisation with pooling and ReLU of all clients in one launch beside torch's, by a C twin and on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.rng import stream
from pfed1bs.nn import cuda_normalisations
from pfed1bs.nn.cuda_normalisations import Layer, differentiated, normalised
from pfed1bs.nn.models import _vgg, build
from pfed1bs.nn.stacked import Pass, Places
from pfed1bs.nn.tracing import pool_first, program

SHAPES = [(2, 3, 3, 6, 5), (1, 1, 5, 2, 2), (3, 2, 2, 7, 9), (2, 4, 7, 3, 2), (1, 5, 1, 31, 33)]


def layer(clients, channels, device, training, pool=1, relu=False):
    """Values of all clients among other numbers."""
    flat = torch.randn(clients, 4 * channels + 1, generator=stream(2, "values")).to(device)
    weight, bias, mean, var = flat[:, 1:].split(channels, 1)
    counts = torch.arange(3 * clients, device=device).view(clients, 3)[:, 1]
    return Layer(weight, bias, mean, var.abs_(), counts, 1e-5, 0.1, training, pool, relu)


def theirs(x, g, own, i):
    """Outputs, gradients and running statistics of a client by torch, in double precision."""
    leaves = [value.double().cpu().requires_grad_() for value in (x[i], own.weight[i], own.bias[i])]
    running = [value[i].double().cpu() for value in (own.running_mean, own.running_var)]
    y = F.batch_norm(leaves[0], *running, *leaves[1:], own.training, own.momentum, own.eps)
    y = F.max_pool2d(y, 2) if own.pool == 2 else y
    y = y.relu() if own.relu else y
    return y.detach(), *torch.autograd.grad(y, leaves, g[i].double().cpu()), *running


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 2, 1, 1), (1, 2, 3, 64, 32)])
@pytest.mark.parametrize("pool, relu", [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize("training", [True, False])
def test_all_clients_at_once_are_each_client_alone(device, shape, pool, relu, training):
    if min(shape[3:]) < pool:
        pytest.skip("nothing to pool")
    x = (3 * torch.randn(shape, generator=stream(0, "x")) + 7).to(device)
    g = torch.randn(*shape[:3], shape[3] // pool, shape[4] // pool, generator=stream(1, "g")).to(device)
    own = layer(shape[0], shape[2], device, training, pool, relu)
    expected = [theirs(x, g, own, i) for i in range(shape[0])]
    counts = own.batches.clone()
    y, kept = normalised(x, own)
    found = y, *differentiated(x, g, own, kept), own.running_mean, own.running_var
    for i, client in enumerate(expected):
        for ours, value in zip(found, client, strict=True):
            torch.testing.assert_close(ours[i].cpu().double(), value, rtol=1e-4, atol=1e-4)
    assert torch.equal(own.batches, counts + training)


def test_a_mean_far_from_zero_costs_no_more_digits_than_the_inputs_have(device):
    x = (1000 + torch.randn(1, 8, 2, 9, 9, generator=stream(0, "x"))).to(device)
    own = layer(1, 2, device, True)
    y, _ = normalised(x, own)
    exact = F.batch_norm(
        x[0].double().cpu(), None, None, own.weight[0].double().cpu(), own.bias[0].double().cpu(), True
    )
    torch.testing.assert_close(y[0].cpu().double(), exact, rtol=0, atol=5e-4)  # a float near 1000 has steps of 6e-5
    var = x[0].double().cpu().var((0, 2, 3))
    before = layer(1, 2, "cpu", True).running_var[0].double()
    torch.testing.assert_close(own.running_var[0].cpu().double(), 0.9 * before + 0.1 * var, rtol=1e-5, atol=0)


@pytest.mark.parametrize("relu", [False, True])
def test_of_equal_pixels_the_first_has_the_gradient_and_nothing_passes_at_zero(device, relu):
    x = torch.tensor([[1.0, 1.0, -1.0, 0.0], [1.0, 0.0, 0.0, -1.0]], device=device).view(1, 1, 1, 2, 4)
    ones = torch.ones(1, 1, device=device)
    own = Layer(ones, 0 * ones, 0 * ones, ones, ones[0].long(), 0.0, 0.1, False, 2, relu)
    y, kept = normalised(x, own)
    to_x, to_weight, to_bias = differentiated(x, torch.tensor([2.0, 3.0], device=device).view_as(y), own, kept)
    assert y.flatten().tolist() == [1.0, 0.0] and to_weight.item() == 2.0 and to_bias.item() == (2.0 if relu else 5.0)
    assert to_x.flatten().tolist() == [2.0, 0.0, 0.0, 0.0 if relu else 3.0, 0.0, 0.0, 0.0, 0.0]


def test_what_is_not_a_number_stays_none(device):
    x = torch.tensor([1.0, torch.nan, 2.0, 0.0], device=device).view(1, 1, 1, 2, 2)
    own = layer(1, 1, device, False, 2, True)
    assert normalised(x, own)[0].isnan().all()
    assert normalised(x, layer(1, 1, device, True, 1, True))[0].isnan().all()


def values_of(module, clients):
    """Different values of every client, by name."""
    whole = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: torch.stack(
            [value.detach() * (1 + 0.1 * i) if value.is_floating_point() else value for i in range(clients)]
        )
        for name, value in whole.items()
    }


def passes(module, x, error, device, training):
    """Outputs, gradients and buffers after a pass in the library's kernels and in ours."""
    module = pool_first(module.train(training))
    values = values_of(module, len(x))
    steps = program(module, values, None)
    for way in ("stacked", "kernels"):
        own = {name: value.clone().to(device) for name, value in values.items()}
        out = {name: torch.zeros_like(own[name]) for name, _ in module.named_parameters()}
        with torch.no_grad():
            outputs, back = steps(Pass(module.to(device), len(x), own, Places(out), way=way), x.to(device))
            back(error.to(device))
        yield {"outputs": outputs, **out, **{f"after {name}": own[name] for name, _ in module.named_buffers()}}


@pytest.fixture
def taken(monkeypatch):
    """Which normalisations went through our kernels, by what followed them."""
    found, call = [], cuda_normalisations.normalised
    monkeypatch.setattr(cuda, "usable", lambda x, length=4: True)
    monkeypatch.setattr(nvrtc, "trouble", lambda *kernel: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default
    monkeypatch.setattr(
        cuda_normalisations, "normalised", lambda x, own: found.append((own.pool, own.relu)) or call(x, own)
    )
    return found


def first():
    """Normalised inputs, and pooling, ReLU or nothing after a normalisation."""
    return nn.Sequential(
        *(nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()),
        *(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 4 * 3, 4)),
    )


@pytest.mark.parametrize("training", [True, False])
def test_a_network_has_the_same_outputs_gradients_and_statistics_with_our_kernels(device, taken, training):
    x, error = torch.randn(2, 3, 2, 9, 7, generator=stream(3, "x")), torch.randn(2, 3, 4, generator=stream(4, "g"))
    plain, ours = passes(first(), x, error, device, training)
    assert taken == [(2, False), (1, True), (1, False)]
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-4)
    assert plain["0.weight"].abs().sum() > 0


@pytest.mark.parametrize("training", [True, False])
def test_a_step_of_a_slim_vgg_is_the_same_with_our_kernels(device, taken, training):
    x, error = torch.randn(2, 2, 1, 8, 8, generator=stream(3, "x")), torch.randn(2, 2, 10, generator=stream(4, "g"))
    plain, ours = passes(_vgg("slim", ((5,), (6, 6), (7,)), 8, (1, 8, 8), 10), x, error, device, training)
    assert taken == [(2, True), (1, True), (2, True), (2, True)]
    same(plain, ours)


@pytest.mark.gpu
def test_a_step_of_vgg8_is_the_same_with_our_kernels(taken):
    x, error = torch.randn(5, 8, 3, 32, 32, generator=stream(3, "x")), torch.randn(5, 8, 10, generator=stream(4, "g"))
    plain, ours = passes(build("vgg8", (3, 32, 32), 10), x, error, "cuda", True)
    assert taken == [(2, True)] * 5
    same(plain, ours)


def same(plain, ours):
    for name, value in plain.items():
        # Biases in front of a normalisation have no gradient but that of rounding.
        assert (ours[name] - value).double().norm() <= 1e-3 * value.double().norm() + 1e-5, name


@pytest.mark.parametrize(
    "layer, taken",
    [
        (nn.BatchNorm2d(2), True),
        (nn.BatchNorm2d(2, affine=False), False),
        (nn.BatchNorm2d(2, track_running_stats=False), False),
        (nn.BatchNorm2d(2, momentum=None), False),
        (nn.BatchNorm1d(2), False),
        (nn.GroupNorm(1, 2), False),
    ],
)
def test_only_usual_normalisations_are_known(layer, taken):
    assert cuda_normalisations.known(layer) == taken


@pytest.mark.parametrize(
    "layer, taken",
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=2), True),
        (nn.MaxPool2d(3), False),
        (nn.MaxPool2d((2, 1)), False),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, return_indices=True), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_only_pooling_of_two_by_two_is_taken_along(layer, taken):
    assert cuda_normalisations.halves(layer) == taken


def test_only_single_precision_of_a_gpu_with_enough_pixels_is_taken(monkeypatch):
    usable, x, own = cuda_normalisations.usable, torch.zeros(2, 3, 4, 5, 5), layer(2, 4, "cpu", True, 2)
    assert not usable(x, own)
    monkeypatch.setattr(cuda, "usable", lambda x: True)
    for bad in ("normalise", "normalise_back"):
        reasons = {bad: "it does not compile"}
        monkeypatch.setattr(nvrtc, "trouble", lambda source, kernel, options, found=reasons: found.get(kernel))
        assert not usable(x, own)
    monkeypatch.setattr(nvrtc, "trouble", lambda *kernel: None)
    assert usable(x, own)
    assert not usable(x.double(), own) and not usable(x[0], own) and not usable(x.transpose(3, 4), own)
    assert not usable(x, replace(own, weight=own.weight.double()))
    assert not usable(x, replace(own, running_var=torch.zeros(4, 2).T))
    assert not usable(x, replace(own, batches=own.batches.float()))
    assert not usable(x[:, :1, :, :1, :1], replace(own, pool=1)) and not usable(x[:, :0], own)  # no variance
    assert usable(x[:, :1, :, :1, :1].contiguous(), replace(own, pool=1, training=False))
    assert not usable(x[:, :, :, :1].contiguous(), own)  # nothing to pool
    assert not usable(torch.empty(1, 1 << 16, 4, 64, 128, device="meta"), own)
    assert not usable(x[:1].expand(2, -1, -1, -1, -1), own)


class Twice(nn.Module):
    """A normalisation that two others read."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(2), nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(x)
        return self.last(torch.flatten(F.relu(h) + h, 1))


def test_what_others_read_too_is_not_taken_along(device, taken):
    x, error = torch.randn(2, 3, 2, 2, 4, generator=stream(3, "x")), torch.randn(2, 3, 3, generator=stream(4, "g"))
    plain, ours = passes(Twice(), x, error, device, True)
    assert taken == [(1, False)]
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-4)
