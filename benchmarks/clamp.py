"""What the bounds of the server cost honest clients, on digits: accuracy with and without, and whom they touch.

`bounded` is `max_weight = 2` and `max_norm = 2`, as in a generated Flower app; `unclamped` is pfed1bs-delta without
its own bound on scales, which it has with and without these.

    python benchmarks/clamp.py --out results/clamp.json
"""

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from told import tell

from pfed1bs import Task, build, evaluate, federate, load, make, simulate
from pfed1bs.engine import trust
from pfed1bs.flower.settings import BELIEVED

METHODS = ("pfed1bs", "pfed1bs-delta", "fedavg")
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
        **({"accuracy_global": round(scores["global"].micro, 2)} if "global" in scores else {}),
        "bounded": round(cut / sent, 4),
    }


def compared(partition, sampled, seed, rounds):
    """The same runs with and without bounds."""
    torch.set_num_threads(1)
    data = federate(load("digits"), 20, partition, seed=seed)
    row = {"partition": partition, "sampled": sampled or 20, "seed": seed, "rounds": rounds}
    for name in METHODS:
        row[name] = accuracy(name, data, sampled, seed, rounds)
        row[f"{name} bounded"] = accuracy(name, data, sampled, seed, rounds, trust=trust.Trust(**BELIEVED))
    trust.TWICE, believed = math.inf, trust.TWICE
    row["pfed1bs-delta unclamped"] = accuracy("pfed1bs-delta", data, sampled, seed, rounds)
    trust.TWICE = believed
    return row


def lost(rows):
    """Points lost by bounds: mean over all runs with its 95 % interval, and most; the share of clients they touch."""
    pairs = [(name, f"{name} bounded") for name in METHODS] + [("pfed1bs-delta unclamped", "pfed1bs-delta")]
    found = {}
    for free, bound in pairs:
        kinds = [kind for kind in ("accuracy", "accuracy_global") if kind in rows[0][free]]
        for kind in kinds:
            away = torch.tensor([row[free][kind] - row[bound][kind] for row in rows], dtype=torch.float64)
            error = 1.96 * float(away.std()) / math.sqrt(len(away)) if len(away) > 1 else math.nan
            found[f"{bound}, {kind}"] = {
                "lost": round(float(away.mean()), 3),
                "plus_minus": round(error, 3),
                "most": float(away.max()),
                "touched": round(sum(row[bound]["bounded"] for row in rows) / len(rows), 4),
            }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--parallel", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    jobs = [(*setting, int(seed), own.rounds) for setting in SETTINGS for seed in own.seeds.split(",")]
    with ProcessPoolExecutor(own.parallel, get_context("spawn")) as pool:
        rows = list(pool.map(compared, *zip(*jobs, strict=True)))
    tell({"lost": lost(rows), "runs": rows}, own.out)


if __name__ == "__main__":
    main()
