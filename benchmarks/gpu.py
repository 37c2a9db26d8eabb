"""How well a GPU is used: kernels against a copy of the same bytes, local steps, rounds of methods.

    python benchmarks/gpu.py --out results/gpu.json
    python benchmarks/gpu.py --parts rounds --out results/gpu-slow-host.json

Kernels are timed inside a CUDA graph, so that only the device counts; the median of seven replays. A copy is
`y.copy_(x)` outside of one: as a node of a graph the same copy takes half as long again above 1 GB. Rounds are the
medians of whole rounds of `simulate`, messages included: 20 clients with random samples, 10 steps of batch 64, those
before the graphs are recorded left out. tf32 is off where a row does not say that it is on. `loop_ms` is what Python
takes for a million additions: rounds of small models wait for it, and hosts of one name differ.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch
from peers import Work, cpu
from torch import Tensor, nn

from pfed1bs.algorithms import make
from pfed1bs.core import graphs, nvrtc
from pfed1bs.core.origin import commit
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import butterfly, hadamard, kernel
from pfed1bs.core.votes import pack, sign, unpack
from pfed1bs.data import Federation
from pfed1bs.engine.rounds import simulate
from pfed1bs.facts.bench_gpu import python_ms
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.precision import multiply

SHAPES = [(20, 24), (1, 24), (20, 22), (20, 20), (20, 18), (20, 12)]  # rows, log2 of their length
WEIGHTS = {"MLP": 203_530, "VGG16": 15_299_748}
CLASSES = {"VGG8": 10, "VGG16": 100}
METHODS = ("pfed1bs", "pfed1bs-delta", "fedavg", "local", "ditto", "zsign")
Row = dict[str, object]


def elapsed(work: Callable[[], object], times: int) -> float:
    """Milliseconds of the device for one of them."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def replayed(work: Callable[[], object], times: int) -> float:
    """Milliseconds of the device, in a graph of `times` calls."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    graph.replay()
    return statistics.median(elapsed(graph.replay, 1) for _ in range(7)) / times


def kernels() -> Iterator[Row]:
    for rows, log2 in SHAPES:
        x = torch.randn(rows, 1 << log2, device="cuda")
        y, times = torch.empty_like(x), max(2, (1 << 27) // x.numel())
        copy = min(elapsed(lambda x=x, y=y: y.copy_(x), times) for _ in range(3))
        same = torch.equal(hadamard(x[:1]), butterfly(x[:1], x.shape[1] ** -0.5))
        taken = replayed(lambda x=x, y=y: hadamard(x, out=y), times)
        yield row("hadamard", f"{rows} x 2^{log2}", taken, copy, same_bits=same)
        if (rows, log2) in ((20, 18), (20, 24)):
            yield row("butterfly in torch", f"{rows} x 2^{log2}", replayed(lambda x=x: butterfly(x, 1.0), 1), copy)
    for model, n in WEIGHTS.items():
        w, phi = torch.randn(20, n, device="cuda"), srht(n, n // 10, 0)
        v, other, times = sign(torch.randn(phi.m, device="cuda")), torch.empty_like(w), max(2, (1 << 27) // w.numel())
        copy = min(elapsed(lambda w=w, other=other: other.copy_(w), times) for _ in range(3))
        del other
        u, bits = phi.forward(w), pack(phi.forward(w))
        calls = {
            "forward": lambda w=w, phi=phi: phi.forward(w),
            "adjoint": lambda u=u, phi=phi: phi.adjoint(u),
            "pull": lambda w=w, phi=phi, v=v: phi.pull(w, v, 1e4),
            "unpack": lambda bits=bits, phi=phi: unpack(bits, phi.m),
        }
        for name, call in calls.items():
            yield row(name, f"20 x {n} ({model})", replayed(call, times), copy)


def row(operation: str, shape: str, taken: float, copy: float, **more: object) -> Row:
    print(f"{operation:20} {shape:24} {taken:9.4f} ms {taken / copy:7.2f} copies", flush=True)
    return {"operation": operation, "shape": shape, "ms": taken, "copy_ms": copy, "copies": taken / copy, **more}


def steps(work: Work) -> Iterator[Row]:
    """One local step of all clients, recorded and not; with convolutions also the ways that were measured."""
    cases = {
        "MLP": (work.model, work.x[:, :64], 10),
        **{name: (vgg(name), pictures(64), 10) for name in ("VGG8", "VGG16")},
    }
    for (model, (module, inputs, classes)), tf32, on in product(cases.items(), (False, True), (False, True)):
        if (model == "MLP" and tf32) or (model == "VGG16" and not on):
            continue
        multiply(torch.device("cuda"), tf32)
        graphs.enabled = on
        task, x, y = Task(module), inputs.cuda(), (work.y[:, :64] % classes).cuda()
        w, buffers = task.init(0).repeat(20, 1).cuda(), {k: b.cuda() for k, b in task.buffers(20).items()}
        step = lambda task=task, w=w, x=x, y=y, b=buffers: task.descend(w, x, y, b, 1e-3, 1e-5, out=w)  # noqa: E731
        elapsed(step, 5)
        began = time.perf_counter()
        elapsed(step, 10)
        taken = 1e2 * (time.perf_counter() - began)
        way = next(iter(task._network._ways._fastest.values()), "stacked")
        print(f"step of {model}, tf32 {tf32}, graphs {on}: {taken:.3f} ms ({way})", flush=True)
        yield {"model": model, "tf32": tf32, "graphs": on, "way": way, "ms": taken}
        del task, w, buffers, step
        torch.cuda.empty_cache()


def vgg(name: str) -> nn.Module:
    return build(name.lower(), (3, 32, 32), CLASSES[name])


def pictures(count: int) -> Tensor:
    """(20, count, 3, 32, 32)."""
    return torch.randn(20, count, 3, 32, 32, generator=stream(0, "pictures"))


def rounds(work: Work, cores: int) -> Iterator[Row]:
    """Rounds with graphs and without; for MLPs on all threads of the processor and on four."""
    few = min(4, cores)
    for name, threads, on in product(METHODS, dict.fromkeys((cores, few)), (False, True)):
        if on or threads == cores:
            yield medians(name, "MLP", work.model, work.federation(), threads, on)
    samples = torch.arange(20 * 200)
    own = tuple(samples.view(20, 200))
    for model, methods in (("VGG8", ("pfed1bs", "pfed1bs-delta", "fedavg")), ("VGG16", ("fedavg", "pfed1bs-delta"))):
        labels = torch.randint(CLASSES[model], (len(samples),), generator=stream(0, "labels"))
        images = Federation(pictures(200).flatten(0, 1), labels, own, own, samples, CLASSES[model])
        for name, tf32 in product(methods, (False, True)):
            yield medians(name, model, vgg(model), images, cores, True, tf32)
            torch.cuda.empty_cache()


def medians(
    name: str, model: str, module: nn.Module, data: Federation, threads: int, on: bool, tf32: bool = False
) -> Row:
    graphs.enabled = on
    torch.set_num_threads(threads)
    multiply(torch.device("cuda"), tf32)
    count, skipped = {"MLP": (40, 8), "VGG8": (14, 6), "VGG16": (8, 4)}[model]
    lr = 0.05 if model == "MLP" else 1e-3
    run = simulate(make(name, Task(module), lr=lr), data, rounds=count, steps=10, batch=64, device="cuda")
    seconds = [one.seconds for one in run][skipped:]
    taken, best = 1e3 * statistics.median(seconds), 1e3 * min(seconds)
    facts = {"algorithm": name, "model": model, "threads": threads, "graphs": on, "tf32": tf32}
    print(
        "round of",
        *(f"{key} {value!s:6}" for key, value in facts.items()),
        f"{taken:8.2f} ms, best {best:.2f}",
        flush=True,
    )
    return {**facts, "ms": taken, "best_ms": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the results")
    parser.add_argument(
        "--parts", nargs="+", choices=("kernels", "steps", "rounds"), default=("kernels", "rounds", "steps")
    )
    options = parser.parse_args()
    if not nvrtc.available():
        sys.exit("error: no CUDA device, or one without kernels")
    work, cores = Work(batch=64, steps=10), torch.get_num_threads()
    parts = {"kernels": kernels, "steps": lambda: steps(work), "rounds": lambda: rounds(work, cores)}
    multiply(torch.device("cuda"), False)
    facts = {
        "command": shlex.join(["python", *sys.argv]),
        "gpu": torch.cuda.get_device_name(),
        "cpu": cpu(),
        "loop_ms": python_ms(),
        "cpu_kernel": kernel(),
        "torch": torch.__version__,
    }
    before = json.loads(Path(options.out).read_text()) if options.out and Path(options.out).exists() else {}
    facts = {**before, **facts, "commits": before.get("commits", {})}  # parts that are not measured now stay
    for name in options.parts:
        facts[name], facts["commits"][name] = [], commit()
        for found in parts[name]():
            facts[name].append(found)
            if options.out:  # row by row: device time may be over at any moment
                Path(options.out).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
