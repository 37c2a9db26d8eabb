"""Client-steps per second of FedAvg on 20 MLP or CNN clients: our simulator, our Task, and what others would write.

    python benchmarks/simulator.py --repeats 9 --out results/simulator.json
    python benchmarks/simulator.py --repeats 9 --flower flower/bin/python --out results/simulator.json
    OMP_WAIT_POLICY=passive python benchmarks/simulator.py --model cnn --busy --out results/simulator-cnn.json

All ways run in turns on the same number of threads, Flower's simulation on Ray (flower_ray.py, in an environment of its
own, MLP alone) in processes of its own, the others in this one; ratios are of best times, those of medians are printed
too. Two-thread torch slows down several times when another job takes a core: the load is recorded, quiet cores are
needed. Where there are none, `--busy` counts the time of the processor instead, waiting left out: that is kind to ways
whose threads wait for each other after every product.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from peers import (
    LR,
    Work,
    by_hand,
    by_hand_in_place,
    channels_last,
    cnn,
    plain_loop,
    race,
    record,
    task_steps,
    unfolded,
    vmap_grad,
)

from pfed1bs.algorithms import make
from pfed1bs.engine.rounds import Progress, simulate

Way = Callable[[Work], torch.Tensor]
WAYS: dict[str, Sequence[Way]] = {
    "mlp": (plain_loop, vmap_grad, by_hand, by_hand_in_place, task_steps),
    "cnn": (plain_loop, channels_last, vmap_grad, unfolded, task_steps),  # vmap makes grouped convolutions
}
WARM = 2  # first rounds of flower_ray.py, which do not count
OFFLINE = os.environ | {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


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


class Flower:
    """One round of FedAvg in Flower's simulation on Ray at every call."""

    def __init__(self, python: str, batch: int, rounds: int) -> None:
        script = str(Path(__file__).with_name("flower_ray.py"))
        command = [python, script, "--wait", "--batch", str(batch), "--rounds", str(rounds + WARM)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=OFFLINE
        )

    def __call__(self) -> None:
        print(file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("round seconds"):
                return
        raise RuntimeError("Flower's simulation ended before its last round; run benchmarks/flower_ray.py to see why")

    def end(self) -> None:
        """Wait until Ray has stopped."""
        self.process.communicate(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--model", choices=list(WAYS), default="mlp")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--busy", action="store_true", help="count the processor's time")
    parser.add_argument("--flower", metavar="PYTHON", help="interpreter of an environment with Flower and Ray")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.busy else time.perf_counter
    more = (WAYS[options.model], options.repeats, options.flower, clock)
    results = [row for batch in options.batch for row in measured(worked(options.model, batch), *more)]
    record(options.out, " ".join(["python", *sys.argv]), results)


def worked(model: str, batch: int) -> Work:
    """The work of the MLP, or that of the CNN, which takes longer, for fewer steps."""
    if model == "mlp":
        return Work(batch=batch)
    return Work(batch=batch, samples=200, steps=3, model=cnn((3, 32, 32), 10), shape=(3, 32, 32))


def measured(
    work: Work, peers: Sequence[Way], repeats: int, flower: str | None, clock: Callable[[], float]
) -> list[dict[str, object]]:
    """All ways of one work."""
    ways = {way.__name__: partial(way, work) for way in peers}
    expected = plain_loop(work)
    for name, way in ways.items():
        error = float((way() - expected).abs().max())
        assert error < 1e-5, f"{name} differs from the plain loop by {error}"
    ways["simulate"] = simulator(work)
    if flower:
        ways["flower_on_ray"] = Flower(flower, work.batch, repeats + 1)
    seconds = race(ways, repeats, clock)
    if flower:
        ways["flower_on_ray"].end()
    print(f"\nbatch {work.batch}: {work.clients} clients x {work.steps} steps, {torch.get_num_threads()} threads")
    print(f"{'':18}{'client-steps/s':>15}{'(median)':>10}{'x plain loop':>14}{'(median)':>10}{'simulate is':>13}")
    return [row(work, name, seconds) for name in ways]


def row(work: Work, name: str, seconds: dict[str, list[float]]) -> dict[str, object]:
    """The rates of one way, printed too."""
    best, middle = ({way: pick(values) for way, values in seconds.items()} for pick in (min, statistics.median))
    done = work.clients * work.steps
    numbers = {
        "client_steps_per_second": done / best[name],
        "median": done / middle[name],
        "ratio": best["plain_loop"] / best[name],
        "median_ratio": middle["plain_loop"] / middle[name],
        "simulate_ratio": best[name] / best["simulate"],
        "simulate_median_ratio": middle[name] / middle["simulate"],
    }
    first, *rest = numbers.values()
    print(f"{name:18}{first:15.0f}{rest[0]:10.0f}{rest[1]:14.2f}{rest[2]:10.2f}{rest[3]:12.2f}x")
    return {"batch": work.batch, "way": name, **numbers}


if __name__ == "__main__":
    main()
