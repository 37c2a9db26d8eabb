"""What the bounds of the server cost honest clients: pfed1bs-delta on digits with and without the clamp on scales.

Also how often `max_norm = 10` and `max_weight = 10`, as in a generated Flower app, touch honest clients of fedavg.

    python benchmarks/clamp.py --out results/clamp.json
"""

import argparse
import json
import math
import shlex
import sys
from pathlib import Path

import torch

from pfed1bs import Task, build, evaluate, federate, load, make, simulate
from pfed1bs.engine import trust
from pfed1bs.runs.environment import environment

SETTINGS = [("dirichlet:0.3", None), ("dirichlet:0.3", 5), ("labels:2", None)]  # partition, clients of 20 in a round


def accuracy(name, data, sampled, seed, rounds, **options):
    """Personal and shared accuracy after the rounds, and the share of messages that were bounded."""
    method, cut, sent = make(name, Task(build("mlp", data.shape, data.num_classes)), seed), 0, 0
    for done in simulate(method, data, rounds=rounds, sampled=sampled, seed=seed, device="cpu", **options):
        cut += sum(int(done.log.get(key, 0)) for key in ("clamped", "clipped", "capped"))
        sent += len(done.uplinks)
    scores = evaluate(method, data, done.progress, seed=seed)
    return {
        "accuracy": round(scores["personal"].micro, 2),
        "accuracy_global": round(scores["global"].micro, 2),
        "bounded": round(cut / sent, 4),
    }


def compared(dataset, partition, sampled, seed, rounds):
    """The same runs with and without bounds."""
    data = federate(dataset, 20, partition, seed=seed)
    row = {"partition": partition, "sampled": sampled or 20, "seed": seed, "rounds": rounds}
    row["delta"] = accuracy("pfed1bs-delta", data, sampled, seed, rounds)
    trust.TWICE, believed = math.inf, trust.TWICE
    row["delta_unclamped"] = accuracy("pfed1bs-delta", data, sampled, seed, rounds)
    trust.TWICE = believed
    row["fedavg_bounded"] = accuracy("fedavg", data, sampled, seed, rounds, trust=trust.Trust(10, 10))
    row["fedavg"] = accuracy("fedavg", data, sampled, seed, rounds)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    torch.set_num_threads(1)
    dataset, rows = load("digits"), []
    for setting in SETTINGS:
        for seed in map(int, own.seeds.split(",")):
            rows.append(compared(dataset, *setting, seed, own.rounds))
            print(json.dumps(rows[-1]), file=sys.stderr)
    text = json.dumps({**environment("cpu"), "command": shlex.join(["python", *sys.argv]), "runs": rows}, indent=1)
    print(text)
    if own.out:
        Path(own.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
