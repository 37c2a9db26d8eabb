"""How well a GPU is used: kernels against a copy of the same bytes, local steps, rounds of methods.

    python benchmarks/gpu.py --out results/gpu.json

Kernels are timed inside a CUDA graph, so that only the device counts; the median of seven replays. A copy is
`y.copy_(x)` outside of one: as a node of a graph the same copy takes half as long again above 1 GB. Rounds are the
medians of whole rounds of `simulate`, messages included: 20 clients with random samples, 10 steps of batch 64.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import torch
from peers import Work, cpu
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.core import graphs, nvrtc
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import butterfly, hadamard, kernel
from pfed1bs.core.votes import pack, sign, unpack
from pfed1bs.data import Federation
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

SHAPES = [(20, 24), (1, 24), (20, 22), (20, 20), (20, 18), (20, 12)]  # rows, log2 of their length
WEIGHTS = {"MLP": 203_530, "VGG16": 15_299_748}
METHODS = ("local", "pfed1bs", "pfed1bs-delta", "fedavg", "ditto", "zsign")
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
    """One local step of all clients, with the steps recorded and without."""
    cases = {
        "MLP": (work.model, work.x[:, :64]),
        "VGG8": (build("vgg8", (3, 32, 32), 10), torch.randn(20, 64, 3, 32, 32)),
    }
    for model, (module, inputs) in cases.items():
        x, y = inputs.cuda(), work.y[:, :64].cuda()
        for graphs.enabled in (False, True):
            task = Task(module)
            w, buffers = task.init(0).repeat(20, 1).cuda(), {k: b.cuda() for k, b in task.buffers(20).items()}
            step = lambda task=task, w=w, x=x, y=y, b=buffers: task.descend(w, x, y, b, 0.05, 1e-5, out=w)  # noqa: E731
            elapsed(step, 5)
            began = time.perf_counter()
            elapsed(step, 20)
            taken = 1e3 * (time.perf_counter() - began) / 20
            print(f"step of {model}, graphs {graphs.enabled}: {taken:.3f} ms", flush=True)
            yield {"model": model, "graphs": graphs.enabled, "ms": taken}


def rounds(work: Work) -> Iterator[Row]:
    """Rounds with graphs and without; for MLPs on all threads of the processor and on four."""
    cores = torch.get_num_threads()
    few = min(4, cores)
    for name, threads, on in product(METHODS, dict.fromkeys((cores, few)), (False, True)):
        yield medians(name, "MLP", work.model, work.federation(), threads, on)
    vgg8, samples = build("vgg8", (3, 32, 32), 10), torch.arange(20 * 200)
    own = tuple(samples.view(20, 200))
    images = Federation(torch.randn(len(samples), 3, 32, 32), work.y.flatten()[: len(samples)], own, own, samples, 10)
    for name, on in product(("pfed1bs", "pfed1bs-delta", "fedavg"), (False, True)):
        yield medians(name, "VGG8", vgg8, images, few, on)
    torch.set_num_threads(cores)


def medians(name: str, model: str, module: nn.Module, data: Federation, threads: int, on: bool) -> Row:
    graphs.enabled = on
    torch.set_num_threads(threads)
    count = 30 if model == "MLP" else 12
    run = simulate(make(name, Task(module)), data, rounds=count, steps=10, batch=64, device="cuda")
    seconds = [one.seconds for one in run][6:]
    taken, best = 1e3 * statistics.median(seconds), 1e3 * min(seconds)
    print(
        f"round of {name:14} {model} threads {threads:2} graphs {on!s:5} {taken:8.2f} ms, best {best:.2f}", flush=True
    )
    return {"algorithm": name, "model": model, "threads": threads, "graphs": on, "ms": taken, "best_ms": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the results")
    parser.add_argument("--commit", help="of the code, where it is not in a repository")
    options = parser.parse_args()
    if not nvrtc.available():
        sys.exit("error: no CUDA device, or one without kernels")
    work = Work(batch=64, steps=10)
    ask = ["git", "rev-parse", "HEAD"]
    facts = {
        "command": "python benchmarks/gpu.py",
        "commit": options.commit or subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip(),
        "gpu": torch.cuda.get_device_name(),
        "cpu": cpu(),
        "cpu_kernel": kernel(),
        "torch": torch.__version__,
        "kernels": list(kernels()),
        "steps": list(steps(work)),
        "rounds": list(rounds(work)),
    }
    if options.out:
        Path(options.out).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
