"""How well a GPU is used: kernels against a copy of the same bytes and plain torch, local steps, rounds of methods.

Kernels are timed inside a CUDA graph, so that only the device counts; the median of seven replays; a vote by its calls,
which wait for the device. A copy is `y.copy_(x)` outside of one: as a node of a graph the same copy takes half as long
again above 1 GB. Rounds are whole rounds of `simulate`, messages included: 20 clients with random samples, 10 steps of
batch 64; those of a recipe have its method, model, clients, steps and batch, on random samples of the size of its data.
tf32 is off, as in runs. Rounds of small models wait for Python, and hosts of one name differ: hence `python_ms`.
"""

import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from pfed1bs.algorithms import make
from pfed1bs.core import gpu, graphs, native, nvrtc
from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import butterfly, hadamard
from pfed1bs.core.votes import pack, pack_signs, sign, tally, unpack
from pfed1bs.data import Federation
from pfed1bs.data.catalogue import CATALOGUE, Known
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.rounds import Schedule, simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import Config, load
from pfed1bs.runs.precision import multiply
from pfed1bs.runs.recipes import names
from pfed1bs.runs.run import method

Row = dict[str, str | int | float | bool]
Call = Callable[[], object]

CLIENTS, SAMPLES, STEPS, BATCH = 20, 200, 10, 64
LONG = 10.0  # seconds of rounds, after which a row has enough of them
SHAPES = ((20, 24), (1, 24), (20, 22), (20, 20), (20, 18), (20, 12))  # rows, log2 of their length
PLAIN = ((20, 18), (20, 24))  # where plain torch is measured too
MODELS = {"mlp": ((784,), 10), "vgg8": ((3, 32, 32), 10), "vgg16": ((3, 32, 32), 100)}  # inputs and labels
WEIGHTS = {"mlp": 203_530, "vgg16": 15_299_748}
METHODS = ("local", "fedavg", "pfed1bs", "pfed1bs-delta")
COLUMNS = {
    "kernels": ("operation", "shape", "ms", "copies", "x torch"),
    "steps": ("model", "ms", "ms without graphs"),
    "rounds": ("algorithm", "model", "ms", "best ms", "rounds/s"),
    "recipes": ("recipe", "algorithm", "model", "ms", "best ms", "rounds/s"),
}
WAY_OUT = "run it where torch with CUDA finds one; `pfed1bs bench kernels` measures this processor"


def measured(vgg16: bool = False, device: str = "cuda") -> Iterator[tuple[str, Row]]:
    """All that is measured, row by row, each with its kind; a GPU that cannot be used is refused at once."""
    if device != "cpu" and (reason := gpu.trouble()):
        raise UserError(f"`pfed1bs bench gpu` needs a GPU: {reason}", WAY_OUT)
    where, models = torch.device(device), [name for name in MODELS if vgg16 or name != "vgg16"]
    multiply(where, False)
    kinds = {
        "kernels": chain(transforms(where), sketches(where)),
        "steps": (step(name, where) for name in models),
        "rounds": (rounds(name, model, where) for model in models for name in METHODS),
        "recipes": recipes(where, vgg16),
    }
    return ((kind, row) for kind, rows in kinds.items() for row in rows)


def python_ms() -> float:
    """Milliseconds of Python for a million additions: how fast the host beside the GPU is."""
    return 1e3 * min(timeit.repeat("for i in range(1000000): n += i", "n = 0", number=1))


def lines(kind: str, rows: Sequence[Row]) -> list[list[str]]:
    """The rows of a kind as texts, in columns as COLUMNS has them."""
    cells = [[row.get(column, "") for column in COLUMNS[kind]] for row in rows]
    return [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]


def transforms(device: torch.device) -> Iterator[Row]:
    """The transform of several rows, and its butterfly in torch."""
    for rows, log2 in SHAPES:
        x = torch.randn(rows, 1 << log2, device=device)
        y, times = torch.empty_like(x), max(2, (1 << 27) // x.numel())
        taken, copy = _replayed(partial(hadamard, x, out=y), times, device), _copied(x, y, times)
        same = torch.equal(hadamard(x[:1]), butterfly(x[:1], x.shape[1] ** -0.5))
        row: Row = {"operation": "hadamard", "shape": f"{rows} x 2^{log2}", **_ratio(taken, copy), "same_bits": same}
        if (rows, log2) in PLAIN:
            plain = _replayed(partial(butterfly, x, 1.0), 1, device)
            row |= {"torch_ms": plain, "x torch": plain / taken}
        yield row


def sketches(device: torch.device) -> Iterator[Row]:
    """Sketch, adjoint, the penalty's gradient, packing and the vote at the sizes of models, and the same in torch."""
    for model, n in WEIGHTS.items():
        w, phi = torch.randn(CLIENTS, n, device=device), srht(n, n // 10, 0)
        v, times = sign(torch.randn(phi.m, device=device)), max(2, (1 << 27) // w.numel())
        u = phi.forward(w)
        bits = pack(u)
        copy = _copied(w, torch.empty_like(w), times)
        calls: dict[str, Call] = {
            "forward": partial(phi.forward, w),
            "adjoint": partial(phi.adjoint, u),
            "pull": partial(phi.pull, w, v, 1e4),
            "pack": partial(pack_signs, u),
            "unpack": partial(unpack, bits, phi.m),
            "vote": partial(tally, bits, [SAMPLES] * CLIENTS, bits[0], phi.m),
        }
        for name, call in calls.items():
            timed = _called if name == "vote" else _replayed  # it says how many ties there were, and so has to wait
            taken = timed(call, times, device)
            with _plain():
                plain = timed(call, 1, device)
            row: Row = {"operation": name, "shape": f"{CLIENTS} x {n} ({model})", **_ratio(taken, copy)}
            yield {**row, "torch_ms": plain, "x torch": plain / taken}


def step(model: str, device: torch.device) -> Row:
    """One local step of all clients, with the steps recorded and without."""
    data, found = federation(model).to(device), {}
    x, y = next(iter(data.batches(torch.arange(CLIENTS), 0, 0, 1, BATCH)()))
    before = graphs.enabled
    for graphs.enabled in (False, True):
        task = Task(build(model, *MODELS[model]))
        w, buffers = task.init(0).repeat(CLIENTS, 1).to(device), task.buffers(CLIENTS)
        own = {name: value.to(device) for name, value in buffers.items()}
        call = partial(task.descend, w, x, y, own, 0.05, 1e-5, out=w)
        _elapsed(call, 3, device)
        found[graphs.enabled] = _elapsed(call, 10, device)
    graphs.enabled = before
    return {"model": model, "ms": found[True], "ms without graphs": found[False]}


def rounds(name: str, model: str, device: torch.device) -> Row:
    """Whole rounds of a method."""
    algorithm, schedule = make(name, Task(build(model, *MODELS[model]))), Schedule(steps=STEPS, batch=BATCH)
    return {"algorithm": name, "model": model, **_rounds(algorithm, federation(model), schedule, model, device)}


def recipes(device: torch.device, vgg16: bool) -> Iterator[Row]:
    """Whole rounds of every recipe whose data have a known size; those that ask for the same work are one row."""
    alike: dict[str, tuple[str, Config]] = {}
    for name in names():
        config = load(name)
        if config.data.name in CATALOGUE and (vgg16 or config.model.name != "vgg16"):
            known = CATALOGUE[config.data.name]
            work = (known.shape, known.num_classes, config.model, config.clients, config.sampled, config.steps)
            key = repr((*work, config.batch, config.algorithm, config.rest))
            alike[key] = (", ".join([*([alike[key][0]] if key in alike else []), name]), config)
    for told, config in alike.values():
        known, model = CATALOGUE[config.data.name], config.model.name
        schedule = Schedule(sampled=config.sampled, steps=config.steps, batch=config.batch)
        algorithm, data = method(config, known.shape, known.num_classes), _random(known, config.clients)
        facts: Row = {"recipe": told, "algorithm": config.method, "model": model}
        yield {**facts, **_rounds(algorithm, data, schedule, model, device)}


def _random(known: Known, clients: int) -> Federation:
    """Random samples such as those of a data set: pictures with a label, or letters with the letters after them."""
    if known.mean:
        return _pictures(known.shape, known.num_classes, clients)
    found, classes = _pictures((), known.num_classes, clients), known.num_classes
    text = torch.randint(classes, (len(found.samples), *known.shape), generator=stream(0, "bench"))
    return replace(found, inputs=text, labels=text.roll(-1, 1))


def _rounds(
    algorithm: Algorithm, data: Federation, schedule: Schedule, model: str, device: torch.device
) -> dict[str, float | int]:
    """The median and the best of whole rounds, the first ones left out; fewer of them where they are long."""
    (count, first), seconds = (100, 20) if model == "mlp" else (12, 4), list[float]()
    for one in simulate(algorithm, data, schedule, rounds=count, device=device):
        seconds.append(one.seconds)
        if len(seconds) > first and sum(seconds) > LONG:
            break
    middle, best = statistics.median(seconds[first:]), min(seconds[first:])
    return {"threads": torch.get_num_threads(), "ms": 1e3 * middle, "best ms": 1e3 * best, "rounds/s": 1 / middle}


def federation(model: str) -> Federation:
    """Random samples for the inputs of a model."""
    return _pictures(*MODELS[model], CLIENTS)


def _pictures(shape: tuple[int, ...], classes: int, clients: int) -> Federation:
    """Random numbers of a shape, the labels one after the other."""
    every = torch.arange(clients * SAMPLES)
    x, own = torch.randn(len(every), *shape, generator=stream(0, "bench")), tuple(every.view(clients, SAMPLES))
    return Federation(x, every % classes, own, own, every, classes)


@contextmanager
def _plain() -> Iterator[None]:
    """Leave everything to torch."""
    before = native.enabled, nvrtc.enabled
    native.enabled = nvrtc.enabled = False
    try:
        yield
    finally:
        native.enabled, nvrtc.enabled = before


def _copied(x: Tensor, y: Tensor, times: int) -> float:
    return min(_elapsed(lambda: y.copy_(x), times, x.device) for _ in range(3))


def _ratio(taken: float, copy: float) -> Row:
    return {"ms": taken, "copy_ms": copy, "copies": taken / copy}


def _elapsed(work: Call, times: int, device: torch.device) -> float:
    """Milliseconds for one of them."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return 1e3 * (time.perf_counter() - began) / times


def _called(work: Call, times: int, device: torch.device) -> float:
    """Milliseconds of a call, after a first one."""
    work()
    return _elapsed(work, times, device)


def _replayed(work: Call, times: int, device: torch.device) -> float:
    """Milliseconds of the device, in a graph of `times` calls; on the CPU the calls themselves."""
    if device.type == "cpu":
        return _called(work, 1, device)
    work()
    _wait(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    graph.replay()
    return statistics.median(_elapsed(graph.replay, 1, device) for _ in range(7)) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
