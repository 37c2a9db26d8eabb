"""ReLU after max-pooling instead of before: the same bits for less work."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs.core.rng import stream
from pfed1bs.nn import network
from pfed1bs.nn.task import Task
from pfed1bs.nn.tracing import pool_first


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.flatten(F.max_pool2d(F.relu(self.first(x)), 2), 1))


class TwoReaders(Functions):
    def forward(self, x):
        h = F.relu(self.first(x))
        return self.last(torch.flatten(F.max_pool2d(h, 2) + F.avg_pool2d(h, 2), 1))


class SpareLayer(Functions):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def layers():
    convolution = (nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(8, 3))


def order(module):
    """The layers and functions in the order of their calls."""
    return [str(node.target) for node in module.graph.nodes if node.op.startswith("call")]


def test_relu_follows_the_pooling():
    assert order(pool_first(layers())) == ["0", "1", "3", "2", "4", "5"]


@pytest.mark.parametrize("make", [TwoReaders, SpareLayer])
def test_a_module_whose_relu_has_other_readers_or_that_would_lose_a_layer_stays_as_it_is(make):
    module = make()
    assert pool_first(module) is module


@pytest.mark.parametrize("make", [Functions, layers])
def test_the_other_order_has_the_same_bits(make, monkeypatch):
    module, x = make(), torch.randn(3, 5, 1, 4, 4, generator=stream(0, "x")).round(decimals=1)  # ties among the largest
    y = torch.randint(3, (3, 5), generator=stream(0, "y"))

    def results():
        task = Task(module)
        w, buffers = task.init(0).repeat(3, 1), task.buffers(3)
        gradient, loss, after = task.gradient(w, x, y, buffers)
        return [gradient, loss, task.logits(w, x, after), *after.values()]

    swapped = results()
    monkeypatch.setattr(network, "pool_first", lambda module: module)
    assert all(map(torch.equal, swapped, results()))


def test_clients_that_go_one_by_one_hold_the_activations_of_one_at_a_time():
    held, most = [0], [0]

    def keep(value):
        held[0] += 1
        most[0] = max(most[0], held[0])
        return value

    def give_back(value):
        held[0] -= 1
        return value

    def peak(clients):
        held[0] = most[0] = 0
        task = Task(layers())
        x, y = torch.ones(clients, 2, 1, 4, 4), torch.zeros(clients, 2, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, give_back):
            task.gradient(task.init(0).repeat(clients, 1), x, y, task.buffers(clients))
        return most[0]

    assert peak(5) <= peak(1) + 1
