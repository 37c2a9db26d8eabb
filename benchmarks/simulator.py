"""Client-steps per second of FedAvg on 20 MLP clients: our simulator, our Task, and what others would write.

    python benchmarks/simulator.py --repeats 9 --out results/simulator.json

All ways run in turns in one process on the same number of threads; ratios are of best times, the median is printed too.
Two-thread torch slows down several times when another job takes a core: the load is recorded, quiet cores are needed.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from peers import LR, Work, by_hand, by_hand_in_place, plain_loop, race, record, task_steps, vmap_grad

from pfed1bs.algorithms import make
from pfed1bs.simulate import Progress, simulate


def simulator(work: Work) -> Callable[[], None]:
    """One round of `fedavg` through `simulate`, messages encoded and decoded; no ridge, as in the other ways."""
    data = work.federation()
    algorithm = make("fedavg", work.task, lr=LR, mu=0.0)
    progress: list[Progress | None] = [None]

    def round() -> None:
        number = progress[0].round if progress[0] else 0
        options = {"rounds": number + 1, "steps": work.steps, "batch": work.batch, "device": "cpu"}
        progress[0] = next(iter(simulate(algorithm, data, resume=progress[0], **options))).progress

    return round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = []
    for batch in options.batch:
        work = Work(batch=batch)
        peers = (plain_loop, vmap_grad, by_hand, by_hand_in_place, task_steps)
        ways = {way.__name__: partial(way, work) for way in peers}
        expected = plain_loop(work)
        for name, way in ways.items():
            error = float((way() - expected).abs().max())
            assert error < 1e-5, f"{name} differs from the plain loop by {error}"
        ways["simulate"] = simulator(work)
        seconds = race(ways, options.repeats)
        best = {name: min(values) for name, values in seconds.items()}
        print(f"\nbatch {batch}: {work.clients} clients x {work.steps} steps, {options.threads} threads")
        print(f"{'':18}{'client-steps/s':>15}{'(median)':>10}{'x plain loop':>14}{'(median)':>10}")
        for name, values in seconds.items():
            middle = statistics.median(values)
            row = {
                "batch": batch,
                "way": name,
                "client_steps_per_second": work.clients * work.steps / best[name],
                "median": work.clients * work.steps / middle,
                "ratio": best["plain_loop"] / best[name],
                "median_ratio": statistics.median(seconds["plain_loop"]) / middle,
            }
            results.append(row)
            numbers = list(row.values())[2:]
            print(f"{name:18}{numbers[0]:15.0f}{numbers[1]:10.0f}{numbers[2]:14.2f}{numbers[3]:10.2f}")
    record(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
