"""How well the server of obcsaa reconstructs: its mean update beside the true one, solved client by client or at once.

    python benchmarks/reconstruction.py --out results/reconstruction.json

Clients train from the models of a fedavg run on MNIST (MLP, 20 clients of 100 samples, Dirichlet 0.3, 10 steps of
batch 64, lr 0.1). `kept` is the mean of what clients kept: no reconstruction can be nearer than that. Then whole runs
with the options of recipes/mnist-all.toml, on training samples that were put aside.
"""

import argparse
import json
import shlex
import sys
from functools import cache
from pathlib import Path

import torch

from pfed1bs import Task, build, evaluate, federate, load, make, simulate
from pfed1bs.compressors.onebitcs import top
from pfed1bs.engine.answers import listen, say
from pfed1bs.engine.contract import Cohort
from pfed1bs.runs.environment import environment

BEFORE = {"decode": "sum", "iterations": 30}
WAYS = {  # what the server does
    "sum, 30 iterations": BEFORE,
    "sum, kappa entries": {**BEFORE, "support": "client"},
    "each, 1 iteration": {"iterations": 1},
    "each, 10 iterations": {},
    "each, 30 iterations": {"iterations": 30},
}
ROUNDS = (1, 6, 41)
CLIENTS, STEPS, BATCH = 20, 10, 64


@cache
def federation(seed, validate=False):
    return federate(load("mnist"), CLIENTS, "dirichlet:0.3", cap=100, seed=seed, validate=validate)


def task(data):
    return Task(build("mlp", data.shape, data.num_classes))


def compared(found, true):
    """The cosine, and how many times as long."""
    lengths = found.norm(), true.norm()
    return {
        "cosine": round(float(found @ true / lengths[0] / lengths[1]), 3),
        "length": round(float(lengths[0] / lengths[1]), 2),
    }


def reconstructed(seed):
    """Every way after some rounds: the mean that the server finds, against the true mean and against that of `kept`."""
    data, ids = federation(seed), torch.arange(CLIENTS)
    fedavg, rows = make("fedavg", task(data), seed, lr=0.1), []
    for done in simulate(fedavg, data, rounds=max(ROUNDS), steps=STEPS, batch=BATCH, seed=seed, device="cpu"):
        now = done.progress
        if now.round not in ROUNDS:
            continue
        cohort = Cohort(seed, now.round, ids, data.sizes, now.seen)
        batches = data.batches(ids, now.round, seed, STEPS, BATCH)
        _, said = fedavg.local(now.clients, fedavg.broadcast(now.server, cohort), cohort, batches)
        update, shares = said["update"], cohort.weights
        true = shares @ update.double()
        kappa = make("obcsaa", fedavg.task, seed).compressor.kappa
        kept = shares @ top(update, kappa).double()
        row = {"seed": seed, "round": now.round, "kept": compared(kept, true)}
        for name, options in WAYS.items():
            method = make("obcsaa", fedavg.task, seed, **options)
            sent = say(method, method.compressor.compress(update, cohort), cohort, {})
            mean = method.mean(listen(method, sent, cohort, {}), cohort).double()
            row[name] = {"true": compared(mean, true), "kept": compared(mean, kept)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def accuracy(seed, rounds, **options):
    """Validation accuracy of a run: the client's own, and of the shared model."""
    data = federation(seed, validate=True)
    method = make("obcsaa", task(data), seed, **options)
    *_, last = simulate(method, data, rounds=rounds, steps=STEPS, batch=BATCH, seed=seed, device="cpu")
    scores = evaluate(method, data, last.progress, steps=STEPS, batch=BATCH, seed=seed)
    row = {"seed": seed, "rounds": rounds, **options, **{name: round(score.micro, 2) for name, score in scores.items()}}
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=40, help="of the whole runs")
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(word) for word in own.seeds.split(",")]
    found = [row for seed in seeds for row in reconstructed(seed)]
    before, after = {"lr": 0.05, "server_lr": 0.5, **BEFORE}, {"lr": 0.05}
    runs = [accuracy(seed, own.rounds, **options) for seed in seeds for options in (before, after)]
    if own.out:
        told = {**environment("cpu"), "command": shlex.join(["python", *sys.argv])}
        Path(own.out).write_text(json.dumps({**told, "means": found, "validation": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
