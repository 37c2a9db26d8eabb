"""Convolutions of all clients in one launch beside torch's, by the kernels' C twin and on a GPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.rng import stream
from pfed1bs.nn import cuda_convolutions
from pfed1bs.nn.stacked import Pass, Places
from pfed1bs.nn.tracing import program


def weights(clients, out, channels, device):
    """Weights and biases of all clients among other numbers, at addresses that nothing is aligned to."""
    flat = torch.randn(clients, out * channels * 9 + out + 1, generator=stream(2, "weights")).to(device)
    return flat[:, 1 : 1 + out * channels * 9].unflatten(1, (out, channels, 3, 3)), flat[:, -out:]


@pytest.mark.parametrize(
    "clients, pictures, channels, out, height, width",
    [
        (2, 3, 3, 16, 6, 5),
        (1, 2, 5, 20, 4, 4),
        (2, 2, 4, 70, 2, 2),
        (1, 1, 1, 1, 1, 1),
        (3, 5, 9, 33, 3, 7),
        (2, 2, 2, 2, 12, 12),
        (1, 2, 3, 16, 32, 32),
        (1, 2, 17, 20, 16, 16),
        (1, 5, 6, 33, 8, 8),
        (2, 35, 10, 9, 4, 4),
        (1, 40, 9, 18, 2, 2),
        (1, 3, 2, 3, 5, 3),  # narrower than a patch, and taller
        (1, 1, 2, 2, 3, 140),  # bands side by side
        (1, 9, 2, 3, 7, 14),  # bands that begin within pictures
    ],
)
@pytest.mark.parametrize("blocks", [1, 396])
def test_all_clients_at_once_are_each_client_alone(
    device, monkeypatch, blocks, clients, pictures, channels, out, height, width
):
    monkeypatch.setattr(cuda_convolutions, "BLOCKS", blocks)  # much for a thread and one part, or little and many
    x = torch.randn(clients, pictures, channels, height, width, generator=stream(0, "x")).to(device)
    g = torch.randn(clients, pictures, out, height, width, generator=stream(1, "g")).to(device)
    w, bias = weights(clients, out, channels, device)
    found = (
        cuda_convolutions.convolved(x, w, bias),
        cuda_convolutions.convolved(g, w, back=True),
        cuda_convolutions.correlated(x, g),
    )
    for i in range(clients):
        y = F.conv2d(x[i].cpu(), w[i].cpu(), bias[i].cpu(), padding=1)
        to_x, to_w, _ = torch.ops.aten.convolution_backward(
            *(g[i].cpu(), x[i].cpu(), w[i].cpu(), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (True, True, False))
        )
        for ours, theirs in zip(found, (y, to_x, to_w), strict=True):
            torch.testing.assert_close(ours[i].cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels, out", [(5, 3), (3, 5), (6, 6)])
def test_what_is_not_a_number_stays_with_its_client(device, channels, out):
    x, g = (torch.ones(2, 2, count, 3, 3, device=device) for count in (channels, out))
    w, bias = weights(2, out, channels, device)
    for value in (x, g, w, bias):
        value[1] = torch.nan
    found = (
        cuda_convolutions.convolved(x, w, bias),
        cuda_convolutions.convolved(g, w, back=True),
        cuda_convolutions.correlated(x, g),
    )
    assert all(value[0].isfinite().all() and value[1].isnan().all() for value in found)


def test_no_pictures_have_no_outputs_and_no_gradient(device):
    x, g, w = (torch.zeros(shape, device=device) for shape in ((2, 0, 3, 4, 4), (2, 0, 5, 4, 4), (2, 5, 3, 3, 3)))
    assert cuda_convolutions.convolved(x, w).shape == g.shape
    assert cuda_convolutions.convolved(g, w, back=True).shape == x.shape
    assert torch.equal(cuda_convolutions.correlated(x, g), torch.zeros_like(w))


def network():
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(5, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 6, 4)),
    )


def test_a_network_has_the_same_outputs_and_gradients_with_our_kernels(device, monkeypatch):
    monkeypatch.setattr(cuda, "usable", lambda x, length=4: True)
    monkeypatch.setattr(nvrtc, "trouble", lambda *kernel: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default
    module, taken = network(), []
    names = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    steps = program(module.train(), names, None)
    values = {
        name: torch.stack([value.detach(), value.detach() + 0.1] if value.is_floating_point() else [value, value])
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }
    x, error = torch.randn(2, 3, 2, 4, 6, generator=stream(3, "x")), torch.randn(2, 3, 4, generator=stream(4, "g"))
    convolved = cuda_convolutions.convolved
    monkeypatch.setattr(cuda_convolutions, "convolved", lambda *args, **own: taken.append(1) or convolved(*args, **own))
    found = []
    for way in ("stacked", "kernels"):
        own = {name: value.clone().to(device) for name, value in values.items()}
        out = {name: torch.zeros_like(own[name]) for name, _ in module.named_parameters()}
        now = Pass(module.to(device), 2, own, Places(out), way=way)
        with torch.no_grad():
            outputs, back = steps(now, x.to(device))
            back(error.to(device))
        found.append({"outputs": outputs, **out, "mean": own["1.running_mean"]})
    assert len(taken) == 3  # two forward, and the gradient of the inputs of the second
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-4)
    assert found[0]["0.weight"].abs().sum() > 0


@pytest.mark.parametrize(
    "layer, taken",
    [
        (nn.Conv2d(2, 3, 3, padding=1), True),
        (nn.Conv2d(2, 3, 3, padding=1, stride=2), False),
        (nn.Conv2d(2, 3, 3), False),
        (nn.Conv2d(2, 3, 5, padding=1), False),
        (nn.Conv2d(2, 2, 3, padding=1, groups=2), False),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(2, 3, 3, padding="same"), False),
        (nn.Conv1d(2, 3, 3, padding=1), False),
        (nn.Linear(2, 3), False),
    ],
)
def test_only_plain_convolutions_are_known(layer, taken):
    assert cuda_convolutions.known(layer) == taken


def test_only_single_precision_pictures_of_a_gpu_are_taken(monkeypatch):
    x, w = torch.zeros(2, 3, 4, 5, 5), torch.zeros(2, 6, 4, 3, 3)
    assert not cuda_convolutions.usable(x, w)
    monkeypatch.setattr(cuda, "usable", lambda x: True)
    for bad in ("convolve", "correlate"):
        reasons = {bad: "it does not compile"}
        monkeypatch.setattr(nvrtc, "trouble", lambda source, kernel, options, found=reasons: found.get(kernel))
        assert not cuda_convolutions.usable(x, w)
    monkeypatch.setattr(nvrtc, "trouble", lambda *kernel: None)
    assert cuda_convolutions.usable(x, w) and cuda_convolutions.usable(x, w, torch.zeros(2, 9)[:, 3:])
    assert not cuda_convolutions.usable(x, w, torch.zeros(2, 6).double())
    assert not cuda_convolutions.usable(x, w, torch.zeros(6, 2).T)
    assert not cuda_convolutions.usable(x, w.double()) and not cuda_convolutions.usable(x.double(), w)
    assert not cuda_convolutions.usable(x[..., :0], w) and not cuda_convolutions.usable(x[..., :0, :], w)
    assert not cuda_convolutions.usable(x[0], w) and not cuda_convolutions.usable(x, w.transpose(3, 4))
    assert not cuda_convolutions.usable(torch.zeros(1).expand(1, 1 << 16, 4, 64, 128), w)
