"""The program of known layers, vmap and one client after the other give the same numbers."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core.rng import stream
from pfed1bs.nn.models import build
from pfed1bs.nn.stacked import Pass, Places, Program
from pfed1bs.nn.task import Task
from pfed1bs.nn.tracing import program


class Net(nn.Module):
    """Two linear layers and a forward function, as most people write them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.square = nn.Linear(5, 5, bias=False)
        self.spare = nn.Linear(5, 5)
        self.last = nn.Linear(5, 3)


class Functions(Net):
    def forward(self, x):
        h = F.relu(self.first(x.view(x.size(0), -1)))
        return self.last(torch.tanh(torch.flatten(h, 1)) + h.reshape(-1, 5))


class Repeated(Net):
    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h + self.square(F.relu(self.square(h))))


class Shared(Net):
    def forward(self, x):
        h = self.first(x.flatten(1)).relu()
        return self.last(self.square(h) + F.linear(h, self.square.weight.T))


class Unused(Net):
    def forward(self, x):
        h = self.first(x.flatten(1))
        self.spare(h)
        return self.last(h)


class Sequence(Net):
    def forward(self, x):
        return self.last(torch.tanh(self.first(x))).flatten(1)


class MixesSamples(Net):
    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h - h.mean(0))


class CountsSamples(Net):
    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h * x.size(0))


class Centred(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))

    def forward(self, x):
        return self.last(self.first(x.flatten(1) - self.centre))


def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 3))


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))


def tied():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))
    layers[3].weight = layers[1].weight
    return layers


KNOWN = [Functions, Repeated, Unused, normalised, convolutional]
UNKNOWN = [Shared, MixesSamples, CountsSamples, Centred, tied]


def problem(model, clients=3, batch=4):
    task = Task(model)
    w = torch.stack([task.init(seed) for seed in range(clients)])
    x = torch.randn(clients, batch, 1, 2, 3, generator=stream(0, "x"))
    y = torch.randint(3, (clients, batch), generator=stream(0, "y"))
    return w, x, y, task.buffers(clients)


def names(model):
    return [name for name, _ in (*model.named_parameters(), *model.named_buffers())]


@pytest.mark.parametrize("make", KNOWN + UNKNOWN)
def test_all_at_once_equals_one_after_the_other(make):
    model = make()
    w, x, y, buffers = problem(model)
    once, loop = Task(model, stacked=True), Task(model, stacked=False)
    a, b = once.gradient(w, x, y, buffers), loop.gradient(w, x, y, buffers)
    own = w.clone()
    stepped = once.descend(own, x, y, buffers, 0.5, 0.1, out=own)[0]
    torch.testing.assert_close(stepped, w - 0.5 * (b[0] + 0.1 * w), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a[:2], b[:2], rtol=1e-4, atol=1e-5)  # float32, sums in another order
    assert a[2].keys() == b[2].keys()
    for name in a[2]:
        torch.testing.assert_close(a[2][name], b[2][name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(once.logits(w, x, a[2]), loop.logits(w, x, b[2]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(once.features(w, x, a[2]), loop.features(w, x, b[2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", KNOWN)
def test_known_layers_have_a_plan(make):
    model = make()
    assert isinstance(program(model, names(model), None), Program)


@pytest.mark.parametrize("make", UNKNOWN)
def test_what_is_not_known_to_treat_samples_one_by_one_has_no_plan(make):
    model = make()
    assert "is not known to treat samples one by one" in program(model, names(model), None)


def test_layers_with_hooks_have_no_plan():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    assert program(model, names(model), None) == "it has hooks"


def test_linear_layers_apply_to_the_last_axis():
    model = Sequence()
    task = Task(model)
    w = torch.stack([task.init(seed) for seed in range(2)])
    x = torch.randn(2, 3, 4, 6, generator=stream(0, "x"))
    run = program(model, names(model), "last")
    values = {part.name: w[:, part.slice].view(2, *part.shape) for part in task.parts}
    now = Pass(model, 2, values, None)
    with torch.no_grad():
        expected = Task(model, stacked=False).logits(w, x, {})
        torch.testing.assert_close(run(now, x)[0], expected, rtol=1e-5, atol=1e-6)
    assert now.features.shape == (2, 3, 4, 5)


def test_gradient_of_an_unused_layer_is_zero():
    w, x, y, buffers = problem(Unused())
    task = Task(Unused())
    grad = task.gradient(w, x, y, buffers)[0]
    zero = {part.name: bool((grad[:, part.slice] == 0).all()) for part in task.parts}
    unused = {"square.weight", "spare.weight", "spare.bias"}
    assert {name for name in zero if zero[name]} == unused


def test_nothing_of_a_step_stays_in_memory():
    w, x, y, buffers = problem(Functions())
    Task(Functions()).gradient(w, x, y, buffers)
    assert [kind for kind in map(type, gc.get_objects()) if kind in (Pass, Places)] == []


@pytest.mark.parametrize("stacked", [True, False])
def test_threads_do_not_disturb_each_other(stacked):
    model = build("mlp", (1, 2, 3), 3)
    w, x, y, _ = problem(model, clients=6)
    task = Task(model, stacked=stacked)
    alone = [task.gradient(w[k : k + 1], x[k : k + 1], y[k : k + 1], {})[0] for k in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(20):
            together = pool.map(lambda k: task.gradient(w[k : k + 1], x[k : k + 1], y[k : k + 1], {})[0], range(6))
            torch.testing.assert_close(torch.cat(list(together)), torch.cat(alone), rtol=1e-5, atol=1e-6)
