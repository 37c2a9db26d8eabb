"""How the cost of a round grows with weights n, clients K, sampled clients S and local steps R.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --out results/growth.json
    python benchmarks/growth.py --device cuda --out results/growth-gpu.json
    python benchmarks/growth.py --device cuda --curves S --out results/growth-gpu.json

An MLP on random samples of the size of MNIST, batch 64; one of the four is varied, the others stay at their base. Whole
rounds of `simulate`, messages included; the best of several after the first. On the CPU one thread, and its time on the
processor, which a busy machine disturbs less; on a GPU the time on the clock. `slope` is the exponent between the last
two points: 1 means that twice as much takes twice as long. Curves that are not asked for stay in the file, each with
its commit.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from peers import record
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.core.origin import commit
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine.rounds import choose, simulate
from pfed1bs.nn.task import Task

METHODS = ("local", "fedavg", "pfed1bs", "pfed1bs-delta")
BASE = {"width": 256, "K": 20, "S": None, "R": 5}
CURVES = {
    "n": [{"width": width} for width in (64, 256, 1024, 4096)],
    "K": [{"K": clients} for clients in (5, 10, 20, 40, 80)],
    "S": [{"K": 80, "S": sampled} for sampled in (5, 10, 20, 40, 80)],
    "R": [{"R": steps} for steps in (1, 5, 10, 20)],
}


def federation(clients: int) -> Federation:
    samples = torch.arange(64 * clients)
    own = tuple(samples.view(clients, 64))
    return Federation(torch.randn(len(samples), 784, generator=stream(0, "x")), samples % 10, own, own, samples, 10)


def best_round(name: str, device: str, repeats: int, width: int, K: int, S: int | None, R: int) -> tuple[int, float]:
    """Weights of the model, and the milliseconds of the best round."""
    task = Task(nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10)))
    clock, best = time.process_time if device == "cpu" else time.perf_counter, math.inf
    warm = 2 if device == "cpu" else 7  # nobody has voted yet; no graph is recorded yet
    run = simulate(make(name, task), federation(K), rounds=warm + repeats, sampled=S, steps=R, batch=64, device=device)
    for number in range(warm + repeats):
        began = clock()
        next(run)
        best = min(best, clock() - began) if number >= warm else best
    return task.n, 1e3 * best


def curves(device: str, repeats: int, letters: Sequence[str]) -> Iterator[dict[str, object]]:
    for letter, points in ((letter, CURVES[letter]) for letter in letters):
        for name in METHODS:
            values, times = [], []
            for point in points:
                n, taken = best_round(name, device, repeats, **(BASE | point))
                values.append(n if letter == "n" else point[letter])
                times.append(taken)
            slope = math.log(times[-1] / times[-2]) / math.log(values[-1] / values[-2])
            told = "  ".join(f"{value}: {taken:.1f}" for value, taken in zip(values, times, strict=True))
            print(f"{letter} {name:14} slope {slope:.2f}   ms a round: {told}", flush=True)
            facts = {"varied": letter, "algorithm": name, "commit": commit()}
            yield {**facts, "at": values, "ms": times, "slope": slope}


def earlier(out: Path, letters: Sequence[str]) -> list[dict[str, object]]:
    """The curves of a file that are not measured now."""
    if not out.exists():
        return []
    before = json.loads(out.read_text())
    rows = before["results"]["curves"]
    return [{"commit": before["commit"][:10], **row} for row in rows if row["varied"] not in letters]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=[*CURVES])
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    device = choose(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    found = earlier(Path(options.out), options.curves) if options.out else []
    for curve in curves(device.type, options.repeats, options.curves):
        found.append(curve)  # one by one: device time may be over at any moment
        record(options.out, " ".join(["python", *sys.argv]), {"device": where, "base": BASE, "curves": found})


if __name__ == "__main__":
    main()
