"""Where the time of a round goes: its phases on the host, median milliseconds each.

    python benchmarks/phases.py --device cuda --model vgg16 --tf32 --out phases.json
    OMP_NUM_THREADS=1 python benchmarks/phases.py --steps 1 --batch 1

20 clients with random samples. As rounds run, a GPU computes while the host goes on, and `check` is where the host
waits for it; with `--apart` every phase waits for the device, so that each has its own time and the round takes longer.
`aggregate` is a part of `conclude`; `rest` is the round less the others.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from peers import record

from pfed1bs.algorithms import make
from pfed1bs.data import Federation
from pfed1bs.engine import rounds, turns
from pfed1bs.engine.recorder import Recorder
from pfed1bs.facts.bench_gpu import MODELS, federation
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.precision import multiply

PLACES = {  # what is timed, in the order of a round
    "prepare": (rounds, "prepare"),
    "hear": (turns, "hear"),
    "agreeing": (turns, "agreeing"),
    "alike": (turns, "alike"),
    "local": (Recorder, "__call__"),
    "ready": (turns, "ready"),
    "batches ahead": (Federation, "foresee"),
    "sketches ahead": (Recorder, "foresee"),
    "check": (turns, "check"),
    "say": (turns, "say"),
    "changed": (rounds, "changed"),
    "conclude": (rounds, "conclude"),
}


def timed(call: Callable[..., Any], spent: list[float], apart: bool) -> Callable[..., Any]:
    """The same call; what it takes is added to the last of `spent`."""

    def inner(*given: object, **named: object) -> object:
        began = time.perf_counter()
        found = call(*given, **named)
        if apart:
            torch.cuda.synchronize()
        spent[-1] += 1e3 * (time.perf_counter() - began)
        return found

    return inner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="pfed1bs-delta")
    parser.add_argument("--model", default="mlp", choices=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--skipped", type=int, default=6, help="first rounds that do not count")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--apart", action="store_true", help="wait for the device after every phase")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    multiply(rounds.choose(options.device), options.tf32)
    method, spent = make(options.method, Task(build(options.model, *MODELS[options.model]))), dict[str, list[float]]()
    places = {**PLACES, "aggregate": (type(method), "aggregate")}
    for name, (owner, attribute) in places.items():
        spent[name] = [0.0]
        setattr(owner, attribute, timed(getattr(owner, attribute), spent[name], options.apart))
    size = {"rounds": options.rounds, "steps": options.steps, "batch": options.batch}
    spent["round"] = []
    for one in rounds.simulate(method, federation(options.model), device=options.device, **size):
        spent["round"].append(1e3 * one.seconds)
        for name in places:
            spent[name].append(0.0)
    found = {name: statistics.median(taken[options.skipped : options.rounds]) for name, taken in spent.items()}
    found["rest"] = found["round"] - sum(found[name] for name in PLACES)
    for name, taken in found.items():
        print(f"{name:16} {taken:10.3f} ms")
    record(options.out, " ".join(["python", *sys.argv]), found)


if __name__ == "__main__":
    main()
