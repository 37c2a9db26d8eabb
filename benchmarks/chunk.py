"""What it costs to compute many clients at once, in time and in memory: rounds of pfed1bs with several chunks.

    python benchmarks/chunk.py --out results/chunk.json

Every measurement is a process of its own: the processor's time of its best round but the first, and its peak memory,
that of Python and torch among it. The chunks of a case take turns; "ratio" is the time of a turn to that of the chunk
that is chosen where none is given ("fits", engine/memory.py) in the same turn, the middle one and the range.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

import torch
from peers import record
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine.memory import fitting
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

# model: width of an MLP or its name, clients, local steps, rounds, threads; turns; chunks
CASES = [
    ((64, 20, 5, 4, 1), 5, (1, 5, 20)),
    ((256, 20, 5, 4, 1), 5, (1, 5, 20)),
    ((2560, 20, 3, 3, 1), 5, (1, 3, 5, 20)),
    (("vgg16", 20, 1, 2, 1), 2, (1, 2, 20)),
    (("vgg16", 20, 1, 2, 2), 2, (2, 20)),
]


def measured(model: str, clients: int, steps: int, rounds: int, threads: int, chunk: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    shape = (3, 32, 32) if model == "vgg16" else (784,)
    samples = torch.arange(64 * clients)
    own = tuple(samples.view(clients, 64))
    x = torch.randn(len(samples), *shape, generator=stream(0, "x"))
    data = Federation(x, samples % 10, own, own, samples, 10)
    layers = () if model == "vgg16" else (nn.Linear(784, int(model)), nn.ReLU(), nn.Linear(int(model), 10))
    method = make("pfed1bs", Task(nn.Sequential(*layers) if layers else build(model, shape, 10)))
    seconds, began = [], time.process_time()
    for _ in simulate(method, data, rounds=rounds, steps=steps, batch=64, chunk=chunk, device="cpu"):
        seconds.append(time.process_time() - began)
        began = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    fits = fitting(method, method.init(1)[1], data, 64)
    found = {"model": model, "n": method.task.n, "clients": clients, "steps": steps, "threads": threads}
    return {**found, "fits": fits, "chunk": chunk, "seconds": min(seconds[1:]), "peak_gib": peak}


def taken(case: tuple[int | str, ...], turns: int, chunks: tuple[int, ...]) -> list[dict[str, object]]:
    """Every chunk of a case, its best time and the ratios to the chosen one."""
    found = []
    for turn in range(turns):
        for chunk in chunks if turn % 2 else chunks[::-1]:
            words = [sys.executable, __file__, "--one", *map(str, case), str(chunk)]
            found.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
            print(found[-1], flush=True)
    times = {chunk: [own["seconds"] for own in found if own["chunk"] == chunk] for chunk in chunks}
    results = []
    for chunk in chunks:
        one = next(own for own in found if own["chunk"] == chunk)
        ratios = [own / chosen for own, chosen in zip(times[chunk], times[one["fits"]], strict=True)]
        ratio = {"ratio": median(ratios), "range": [min(ratios), max(ratios)], "turns": turns}
        results.append({**one, "seconds": min(times[chunk]), **ratio})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=6, help="model, clients, steps, rounds, threads, chunk: this alone")
    parser.add_argument("--model", help="the cases of this model alone")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one[0], *map(int, options.one[1:]))))
        return
    cases = [case for case in CASES if options.model in (None, str(case[0][0]))]
    results = [line for case in cases for line in taken(*case)]
    record(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
