"""What a round of every method costs per gradient evaluation, against FedAvg's: 20 MLP clients, 10 steps of batch 64.

    python benchmarks/rounds.py --repeats 15 --out results/rounds.json

All methods with their defaults go on by one round of `simulate` in turns, in one process; everything of a round counts,
messages included. Gradient evaluations are counted where they are made: Ditto takes two per step, pFedMe five. Ratios
are of best times, those of medians are printed too; quiet cores are needed.
"""

import argparse
import statistics
import sys
from collections.abc import Callable

import torch
from peers import Work, race, record

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.engine.rounds import Progress, simulate
from pfed1bs.nn.task import Task


class Counted(Task):
    """A task that counts gradient evaluations, one for every client and batch."""

    evaluations = 0

    def gradient(self, w, *arguments, **named):
        Counted.evaluations += len(w)
        return super().gradient(w, *arguments, **named)

    def descend(self, w, *arguments, **named):
        Counted.evaluations += len(w)
        return super().descend(w, *arguments, **named)


def rounds(work: Work, name: str) -> Callable[[], None]:
    """The next round of a method at every call."""
    algorithm, data = make(name, Counted(work.model)), work.federation()
    options = {"steps": work.steps, "batch": work.batch, "device": "cpu"}
    progress: list[Progress | None] = [None]

    def next_round() -> None:
        number = progress[0].round if progress[0] else 0
        progress[0] = next(iter(simulate(algorithm, data, rounds=number + 1, resume=progress[0], **options))).progress

    return next_round


def evaluations(next_round: Callable[[], None]) -> int:
    """Gradient evaluations of one round."""
    Counted.evaluations = 0
    next_round()
    return Counted.evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--algorithms", nargs="+", default=list(REGISTRY), choices=list(REGISTRY))
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = Work(batch=options.batch, steps=options.steps)
    ways = {name: rounds(work, name) for name in dict.fromkeys(["fedavg", *options.algorithms])}
    counts = {name: evaluations(way) for name, way in ways.items()}
    seconds = race(ways, options.repeats)
    best, middle = (
        {name: 1e6 * pick(values) / counts[name] for name, values in seconds.items()}
        for pick in (min, statistics.median)
    )
    print(f"batch {options.batch}, {work.clients} clients, {options.steps} steps, {options.threads} threads")
    print(f"{'':16}{'gradients':>10}{'us each':>10}{'(median)':>10}{'x fedavg':>10}{'(median)':>10}")
    results = []
    for name in sorted(ways, key=lambda name: best[name]):
        row = {
            "algorithm": name,
            "gradients_per_round": counts[name],
            "us_per_gradient": best[name],
            "median": middle[name],
            "ratio": best[name] / best["fedavg"],
            "median_ratio": middle[name] / middle["fedavg"],
        }
        results.append(row)
        numbers = list(row.values())[2:]
        print(f"{name:16}{counts[name]:10}{numbers[0]:10.0f}{numbers[1]:10.0f}{numbers[2]:10.2f}{numbers[3]:10.2f}")
    record(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
