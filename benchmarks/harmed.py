"""Whom sharing harms: pfed1bs-delta with keep = prox and best against training alone, on MNIST.

    python benchmarks/harmed.py --seeds 0,1,2,3,4,5,6,7,8,9 --device cuda --parallel 6 --out results/harmed.json

One client of 20 whose labels are permuted, in training and test samples alike, with 20 and with 100 samples each and
lambda 0.1 and 1; and four partitions with 100 samples a client, where nobody's labels are. `--validate` judges on
training samples, for choosing options (`--options '{"margin": 2}'`). `--rest 0.02` lets models rest, as runs do.
"""

import argparse
import json
import shlex
import sys
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import torch
from spare import spared

from pfed1bs import Task, build, evaluate, federate, load, make, resting, simulate, stream
from pfed1bs.report.statistics import Difference
from pfed1bs.runs.environment import environment

ODD = 0  # whose labels are permuted
KEEPS = ("prox", "best")
HARMED = [("dirichlet:0.3", cap, lam, True) for cap, lam in product((20, 100), (0.1, 1.0))]
OTHERS = [(partition, 100, 0.1, False) for partition in ("labels:2", "dirichlet:0.1", "dirichlet:0.3", "iid")]
mnist = cache(partial(load, "mnist"))


def federation(partition, cap, permuted, seed, validate):
    """Twenty clients; the first one's labels move along a random cycle of all ten."""
    limits = {"cap": None, "min_size": 40} if validate else {"cap": cap, "min_size": 20}
    data = federate(mnist(), 20, partition, "official", seed=seed, **limits)
    if validate:  # training samples that the cap leaves over
        data = spared(data, cap, 20)
    if not permuted:
        return data
    cycle, names, labels = torch.randperm(10, generator=stream(seed, "cycle")), torch.arange(10), data.labels.clone()
    names[cycle] = cycle.roll(1)
    own = torch.cat([data.train[ODD], data.test[ODD]])
    labels[own] = names[labels[own]]
    return replace(data, labels=labels)


def run(job):
    """One run: accuracy of all clients, of the permuted one, and what was chosen."""
    (partition, cap, lam, permuted), name, seed, own = job
    torch.set_num_threads(1)
    data = federation(partition, cap, permuted, seed, own.validate)
    options = {"lr": 0.05} if name == "local" else {"lr": 0.05, "keep": name, "lam": lam}
    options |= own.options if name == "best" else {}
    task = Task(build("mlp", data.shape, data.num_classes))
    method = resting(make("local" if name == "local" else "pfed1bs-delta", task, seed, **options), own.rest)
    [done] = deque(simulate(method, data, rounds=own.rounds, batch=64, seed=seed, device=own.device), maxlen=1)
    score = evaluate(method, data, done.progress, seed=seed)["personal"]
    row = {"partition": partition, "cap": cap, "lam": lam, "permuted": permuted, "seed": seed, "model": name}
    row |= {"accuracy": round(score.micro, 3), "odd": round(float(score.clients[ODD]), 3)}
    return row | ({"choice": done.progress.clients["choice"].tolist()} if name == "best" else {})


def summary(rows):
    """Mean of `best` minus that of alone (permuted client) or of the better of alone and prox, by setting."""
    found = []
    for partition, cap, lam, permuted in [*HARMED, *OTHERS]:
        setting = {"partition": partition, "cap": cap, "permuted": permuted}
        here = [row for row in rows if setting.items() <= row.items() and row["lam"] in (lam, None)]
        kind = "odd" if permuted else "accuracy"
        scores = {name: {r["seed"]: r[kind] for r in here if r["model"] == name} for name in ("local", *KEEPS)}
        if not all(scores.values()):
            continue
        means = {name: fmean(values.values()) for name, values in scores.items()}
        bar = "local" if permuted else max(("local", "prox"), key=means.get)
        line = {**setting, "lam": lam, "judged": kind, **{name: round(mean, 2) for name, mean in means.items()}}
        line |= {"against": bar, **apart(scores["best"], scores[bar])}
        found.append({**line, "prox_minus_local": apart(scores["prox"], scores["local"])})
    return found


def apart(ours, theirs):
    """The mean difference seed by seed, and its interval."""
    gap = Difference("", "", tuple(ours[seed] - theirs[seed] for seed in ours))
    return {"difference": round(gap.mean, 3), "interval": [*gap.interval()] if len(ours) > 1 else [None, None]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rest", type=float, default=0.0, help="level of the rule of rest")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parallel", type=int, default=1, help="processes side by side")
    parser.add_argument("--only", default="", help="part of a setting's name, dirichlet:0.3/20 for instance")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--options", type=json.loads, default={}, help="of keep = best, as JSON")
    parser.add_argument("--out")
    own = parser.parse_args()
    jobs = []
    for seed, setting in product(map(int, own.seeds.split(",")), [*HARMED, *OTHERS]):
        partition, cap, lam, permuted = setting
        if own.only in f"{partition}/{cap}/{'permuted' if permuted else 'plain'}/{lam}":
            alone = [] if permuted and lam != HARMED[0][2] else [((partition, cap, None, permuted), "local", seed, own)]
            jobs += [*alone, *((setting, name, seed, own) for name in KEEPS)]
    rows, about = [], {**environment(own.device), "command": shlex.join(["python", *sys.argv])}
    with ProcessPoolExecutor(own.parallel, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, jobs):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            result = {**about, "summary": summary(rows), "runs": rows}
            if own.out:  # row by row: what is cut off keeps what it has
                Path(own.out).write_text(json.dumps(result, indent=1) + "\n")
    for line in summary(rows):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
