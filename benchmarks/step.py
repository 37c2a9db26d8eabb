"""One local step of pFed1BS against one SGD step by vmap(grad) and by hand: 20 MLP clients, batch 64.

    python benchmarks/step.py --repeats 30 --out results/step.json

All ways run in turns in one process on the same number of threads; ratios are of best times, the median is printed too.
"pfed1bs" is one call for all clients; "pfed1bs, simulated" gives every thread clients of its own, as `simulate` does.
"""

import argparse
import statistics
import sys

import torch
from peers import LR, Work, race, record, vmap_gradient, written_step, written_step_in_place

from pfed1bs.algorithms import make
from pfed1bs.core.native import kernel
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.workers import portions, spread


class Repeated:
    """The same batch again and again."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        self.x, self.y, self.steps = x, y, steps

    def __call__(self, name: str = "train", steps: int | None = None):
        return ((self.x, self.y) for _ in range(steps or self.steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps timed together")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = Work(batch=options.batch, steps=options.steps)
    x, y = next(iter(work.batches()))
    batches = Repeated(x, y, options.steps)
    ids = torch.arange(work.clients)
    cohort = Cohort(0, 1, ids, torch.full_like(ids, work.samples), torch.zeros_like(ids))
    methods = {name: make(name, work.task, lr=LR) for name in ("pfed1bs", "local")}
    m = methods["pfed1bs"].sketch.m
    consensus = torch.randint(2, (m,), generator=stream(0, "consensus")).mul(2).sub(1).float()
    gradient = vmap_gradient(work)

    def by_vmap() -> None:
        values = dict(zip((part.name for part in work.task.parts), work.tensors(), strict=True))
        for x, y in batches():
            grads = gradient(values, x, y)
            values = {name: value - LR * grads[name] for name, value in values.items()}

    def by_hand() -> None:
        weights = work.tensors()
        for x, y in batches():
            weights = written_step(weights, x, y)

    def in_place() -> None:
        weights = work.tensors()
        for x, y in batches():
            written_step_in_place(weights, x, y)

    w = work.stack()
    received = {"consensus": consensus}

    def apart(at: torch.Tensor) -> None:
        some = Repeated(x[at], y[at], options.steps)
        methods["pfed1bs"].local({"w": w[at[0] : at[-1] + 1]}, received, cohort.rows(at), some)

    halves = portions(work.clients, None)
    ways = {
        "vmap(grad)": by_vmap,
        "by hand": by_hand,
        "by hand in place": in_place,
        "local": lambda: methods["local"].local({"w": w}, {}, cohort, batches),
        "pfed1bs": lambda: methods["pfed1bs"].local({"w": w}, received, cohort, batches),
        "pfed1bs, simulated": lambda: spread(apart, halves),
    }
    seconds = race(ways, options.repeats)
    best = {name: min(values) for name, values in seconds.items()}
    print(f"batch {options.batch}, {work.clients} clients, {options.threads} threads, {kernel()} transform")
    print(f"{'':20}{'ms per step':>12}{'(median)':>10}{'x vmap(grad)':>14}{'x by hand':>11}")
    results = []
    for name, values in seconds.items():
        row = {
            "way": name,
            "ms_per_step": 1e3 * best[name] / options.steps,
            "median": 1e3 * statistics.median(values) / options.steps,
            "to_vmap": best[name] / best["vmap(grad)"],
            "to_hand": best[name] / best["by hand"],
        }
        results.append(row)
        numbers = list(row.values())[1:]
        print(f"{name:20}{numbers[0]:12.2f}{numbers[1]:10.2f}{numbers[2]:14.2f}{numbers[3]:11.2f}")
    record(options.out, " ".join(["python", *sys.argv]), {"kernel": kernel(), "ways": results})


if __name__ == "__main__":
    main()
