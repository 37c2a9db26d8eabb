"""A client's bits depend on no other client, on no address and on no number of threads.

On some processors MKL gives other bits for another alignment, so that plain repetition on the processor at hand proves
nothing. Hence two kinds of tests: where operands really lie, and what must be on if they lie differently; and equality.
"""

from collections import Counter
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.core import reproducible
from pfed1bs.core.reproducible import OFF, Guarantee
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.engine.workers import alone, spread
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from promise import assert_alike, assert_messages, assert_same, short

pytestmark = pytest.mark.filterwarnings("ignore:Unknown is computed client by client")
CLIENTS, BATCH = 3, 20
STACKED = ("bmm", "baddbmm", "baddbmm_")
PRODUCTS = (*STACKED, "mm", "addmm", "mv", "dot", "convolution", "convolution_backward")


def small_vgg() -> nn.Module:
    """Convolutions, BatchNorm and a head with an odd number of weights."""
    first, second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 7, 5)
    layers = (first, nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(7 * 4 * 4, 3))


def behind(*layers: nn.Module) -> list[nn.Module]:
    """Each behind a linear layer, and a head."""
    return [part for layer in layers for part in (nn.Linear(31, 31), layer)] + [nn.Linear(31, 3)]


class Unknown(nn.Module):
    """A module of parts that Task does not know, so that its clients are computed one after the other."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(33, 31), nn.Linear(31, 3)

    def forward(self, x):
        return self.second(nn.functional.mish(self.first(x)).softmax(-1))


class Memory(nn.Module):
    """A recurrent layer, all of whose states are looked at."""

    def __init__(self, kind):
        super().__init__()
        self.memory, self.second = kind(7, 11, batch_first=True), nn.Linear(55, 3)

    def forward(self, x):
        return self.second(self.memory(x)[0].flatten(1))


MODELS = {
    "gru": (Memory(nn.GRU), (5, 7)),
    "lstm": (Memory(nn.LSTM), (5, 7)),
    "mlp": (build("mlp", (7, 7), 5), (7, 7)),
    "tanh": (nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 31), nn.Tanh(), nn.Linear(31, 3)), (33,)),
    "smooth": (nn.Sequential(*behind(nn.Sigmoid(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.GELU())), (31,)),
    "normed": (nn.Sequential(*behind(nn.BatchNorm1d(31), nn.LayerNorm(31), nn.PReLU())), (31,)),
    "unknown": (Unknown(), (33,)),
    "convolutions": (small_vgg(), (3, 16, 16)),
    "vgg8": (build("vgg8", (3, 32, 32), 3), (3, 32, 32)),
}
models = pytest.mark.parametrize("name", MODELS)


@cache
def problem(name):
    """A task and stacks of weights, inputs, labels and buffers."""
    model, shape = MODELS[name]
    task, generator = Task(model), torch.Generator().manual_seed(3)
    w = torch.stack([task.init(k) for k in range(CLIENTS)])
    x = torch.randn(CLIENTS, BATCH, *shape, generator=generator)
    return task, w, x, torch.randint(3, (CLIENTS, BATCH), generator=generator), task.buffers(CLIENTS)


def results(task, w, x, y, buffers):
    """Everything that a task computes, from one batch for each row of w."""
    grad, loss, after = task.gradient(w, x, y, buffers)
    stepped = task.descend(w, x, y, buffers, 0.1, 0.01)[0]
    return grad, loss, stepped, task.logits(w, x, after), task.features(w, x, after), *after.values()


def part(at, w, x, y, buffers):
    return w[at], x[at], y[at], {name: value[at] for name, value in buffers.items()}


def shifted(x, floats):
    """The same values so many floats after an address that is a multiple of 64."""
    room = torch.empty(x.numel() + 32)
    start = -(room.data_ptr() // 4) % 16 + floats
    return room[start : start + x.numel()].view(x.shape).copy_(x)


class Operands(TorchDispatchMode):
    """Every product and convolution of each client: its name, alignment of its operands, their strides."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in PRODUCTS:
            operands = [arg for arg in args if isinstance(arg, torch.Tensor)]
            rows = zip(*operands, strict=True) if name in STACKED else [operands]
            self.seen += [(name, *zip(*((x.data_ptr() % 64, x.stride()) for x in row), strict=True)) for row in rows]
        return function(*args, **(kwargs or {}))


@cache
def operands(name):
    """Those of the last client alone, in memory of its own, and those of all clients together."""
    task, *stacks = problem(name)
    w, x, y, buffers = part(slice(-1, None), *stacks)
    with alone(), Operands() as single:
        results(task, shifted(w, 0), shifted(x, 0), y, buffers)
    with alone(), Operands() as together:
        results(task, *stacks)
    return single.seen, together.seen


def unfounded(name):
    """Whether equal bits are promised although MKL may choose its code by where operands lie, which changes."""
    single, together = map(set, operands(name))
    return reproducible.guarantee().full and reproducible.branch() in (None, OFF) and together != single


@models
def test_operands_have_the_same_strides_alone_and_in_the_stack(name):
    """No mode of MKL promises equal bits for other calls: transposed operands, other leading dimensions."""
    single, together = (Counter((name, strides) for name, _, strides in seen) for seen in operands(name))
    assert together == Counter({call: CLIENTS * times for call, times in single.items()})


@models
def test_equal_bits_are_not_promised_without_a_reason(name):
    assert not unfounded(name)


@models
def test_a_promise_without_the_reproducible_mode_would_be_found_out_on_any_processor(name, monkeypatch):
    monkeypatch.setattr(reproducible, "branch", lambda: OFF)
    assert not unfounded(name)  # because nothing is promised then
    monkeypatch.setattr(reproducible, "guarantee", lambda: Guarantee(True, "equal bits were seen on one processor"))
    assert unfounded(name)


@models
def test_a_client_has_the_same_bits_at_every_address_as_a_view_and_as_a_clone_on_one_and_two_threads(name, threads):
    task, *stacks = problem(name)
    threads(1)
    expected = results(task, *part(slice(1, 2), *stacks))
    for floats in (1, 2, 5, 8, 16) if "conv" in name or "vgg" in name else range(1, 17):  # 4 to 64 bytes
        threads(1 + floats % 2)
        w, x, y, buffers = stacks
        stack = (shifted(w, floats), shifted(x, floats + 1), y, buffers)
        view = part(slice(1, 2), *stack)
        clone = (view[0].clone(), view[1].clone(), *view[2:])
        [whole] = spread(lambda some: results(task, *some), [stack])
        assert_alike([value[1:2] for value in whole], expected)
        assert_alike(*spread(lambda some: results(task, *some), [view, clone]), expected)
        assert_alike(*spread(lambda some: results(task, *some), [view]), expected)


def test_functions_of_single_numbers_have_the_same_bits_at_every_place_of_a_vector():
    """Vectors are computed in blocks, and what is left over at their end by other code."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, 101, generator=generator)
    functions = {
        "tanh": torch.tanh,
        "exp": torch.exp,
        "add": lambda a: a.add(b[: len(a)], alpha=-0.3),
        "addcmul": lambda a: torch.addcmul(a, b[: len(a)], c[: len(a)]),
        "lerp": lambda a: torch.lerp(a, b[: len(a)], 0.1),
    }
    for name, function in functions.items():
        whole = function(a)
        assert_same({name: torch.stack([function(a[: k + 1])[k] for k in range(len(a))])}, {name: whole})


@cache
def digits():
    """A few clients, and a model with so many weights that torch divides sums over them among its threads."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 10))
    return federate(load("digits"), 3, "dirichlet:1", cap=30), Task(model)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_run_with_one_sampled_client_does_not_depend_on_the_number_of_threads(name, threads):
    data, task = digits()
    method, runs, scores = short(name, task), [], []
    for number in (1, 2):
        threads(number)
        runs.append(list(simulate(method, data, rounds=2, sampled=1, steps=2, batch=8)))
        judged = evaluate(method, data, runs[-1][-1].progress, steps=1, batch=8, chunk=number)
        scores.append({f"{kind}/{key}": value for kind, found in judged.items() for key, value in found.sums.items()})
    assert_messages(*runs)
    for one, two in zip(*runs, strict=True):
        assert_same(one.log, two.log)
        assert_same(one.progress.server, two.progress.server)
        assert_same(one.progress.clients, two.progress.clients)
    assert_same(*scores)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pfed1bs-delta", {"keep": "best", "trial": 2}),
        ("pfed1bs-delta", {"keep": "mean"}),
        ("pfed1bs", {"projection": "gaussian"}),
    ],
)
def test_options_with_products_of_their_own_do_not_depend_on_the_number_of_clients_computed_at_once(name, options):
    data = federate(load("digits"), 10, "dirichlet:1", cap=30)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    method = make(name, Task(model), **options)
    runs = [list(simulate(method, data, rounds=3, steps=3, batch=7, chunk=chunk)) for chunk in (1, None)]
    assert_messages(*runs)
    assert_same(runs[0][-1].progress.clients, runs[1][-1].progress.clients)
