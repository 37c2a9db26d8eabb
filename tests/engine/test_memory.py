"""How many clients are computed at once where nobody says it."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.core import gpu
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine import memory
from pfed1bs.engine.memory import fitting
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MIB = 1 << 20


def federation(clients=20, shape=(8,)):
    samples = torch.arange(4 * clients)
    own = tuple(samples.view(clients, 4))
    x = torch.randn(len(samples), *shape, generator=stream(0, "x"))
    return Federation(x, samples % 3, own, own, samples, 3)


def linear(inputs=8):
    return make("fedavg", Task(nn.Linear(inputs, 3)))


def chosen(method, data, device=CPU, sampled=None, batch=4):
    return fitting(method, method.init(1)[1], data, batch, sampled, device)


def test_small_models_go_all_at_once_and_large_ones_one_for_each_thread(threads):
    threads(2)
    assert chosen(linear(), federation()) == 20
    large = linear(inputs=3 * MIB)  # 36 MiB of weights
    assert chosen(large, federation(shape=(3 * MIB,), clients=3), batch=1) == 2


def test_a_thread_gets_what_its_caches_hold_in_turns_of_equal_length(threads, monkeypatch):
    threads(1)
    method, data = linear(), federation()
    each = 4 * method.task.n + method.task.held((8,), 4, CPU)
    monkeypatch.setattr(memory, "CACHE", 8 * each)
    assert chosen(method, data) == 7  # three turns
    assert chosen(method, data, sampled=9) == 5
    threads(2)
    assert chosen(method, data) == 10


def test_a_gpu_is_asked_for_its_memory(monkeypatch):
    method, data = make("pfed1bs", Task(build("vgg16", (3, 32, 32), 10))), federation(shape=(3, 32, 32))
    for free, expected in ((100 << 30, 20), (12 << 30, 10), (1, 1)):
        monkeypatch.setattr(memory, "free", lambda device, free=free: free)
        assert chosen(method, data, GPU, batch=64) == expected


def test_free_memory_is_the_devices_and_what_torch_keeps_for_later(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert memory.free(GPU) == 140
    monkeypatch.setattr(gpu, "sharers", 10)
    assert memory.free(GPU) == 100


def test_methods_that_train_everyone_count_everyone(monkeypatch):
    method = make("pfed1bs", Task(nn.Linear(8, 3)))
    monkeypatch.setattr(memory, "free", lambda device: 1 << 40)
    assert chosen(method, federation(), GPU, sampled=4) == (20 if method.trains == "all" else 4)


def test_what_a_step_holds_is_what_autograd_saves():
    task = Task(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)))
    assert task.held((8,), 5, GPU) == 4 * 5 * (8 + 16)  # inputs, and outputs of tanh, which are the inputs of the last
    convolutions = Task(build("vgg8", (3, 32, 32), 10))
    assert convolutions.held((3, 32, 32), 64, CPU) == 0  # one client after the other
    assert convolutions.held((3, 32, 32), 64, GPU) > 10 * MIB


class Branches(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def test_a_module_that_cannot_go_without_numbers_is_held_to_hold_nothing():
    assert Task(Branches(8, 3)).held((8,), 4, GPU) == 0


@pytest.mark.parametrize("sampled", [None, 7])
def test_the_choice_changes_no_bit(sampled, monkeypatch):
    method, data, ends = linear(), federation(), []
    for cache in (1, memory.CACHE):
        monkeypatch.setattr(memory, "CACHE", cache)
        [*_, last] = simulate(method, data, rounds=3, sampled=sampled, steps=2, batch=3, device="cpu")
        ends.append(last)
    assert ends[0].uplinks == ends[1].uplinks
    assert all(torch.equal(ends[0].progress.clients[key], value) for key, value in ends[1].progress.clients.items())
