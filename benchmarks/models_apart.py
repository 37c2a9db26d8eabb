"""How far the models of the clients are apart in weights, beside how many bits of their sketches agree.

    pfed1bs compare recipes/mnist-small.toml --rest 0 --algorithms '' --runs 'pfed1bs lam=0.0' 'pfed1bs lam=5e-4'
    python benchmarks/models_apart.py RUNS --out results/models-apart.json

For every finished run of pfed1bs below the folders: the mean distance of two clients' weights, their mean cosine, the
mean length of a model, and how far a client's model lies from its own in the run without a pull (lam = 0, same seed and
first weights). Then means over seeds, and the difference in distance to runs without a pull, with 95 % intervals.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import torch

from pfed1bs.report.groups import Spread
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import load
from pfed1bs.runs.folder import identity


def weights(folder):
    """The configuration of a run, and the weights of all clients (K, n)."""
    config = load(str(folder / "config.toml"))
    clients = checkpoint.load(folder / "checkpoint.safetensors", identity(config)).clients
    return config, clients["w"].double()


def knobs(config):
    """Lambda, and where first weights come from."""
    return float(config.algorithm["lam"]), config.algorithm.get("start", "common")


def measured(config, w, alone, folder):
    """One run; `alone` are the weights without a pull."""
    distances, lengths = torch.pdist(w), w.norm(dim=1)
    cosines = torch.nn.functional.normalize(w) @ torch.nn.functional.normalize(w).T
    pairs = torch.triu_indices(len(w), len(w), 1)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    env, found = (json.loads((folder / name).read_text()) for name in ("env.json", "summary.json"))
    return {
        **{"algorithm": "pfed1bs", "label": "lam={:g} start={}".format(*knobs(config))},
        **{"seed": config.seed, "accuracy": found["accuracy"], "agreement": last["agreement"]},
        **{"distance": float(distances.mean()), "cosine": float(cosines[*pairs].mean())},
        **{"length": float(lengths.mean()), "moved": float((w - alone).norm(dim=1).mean())},
        **{name: env[name] for name in ("command", "commit", "device")},
    }


def told(rows):
    """Means over seeds by label, and the difference in distance to the runs without a pull."""
    labels = {}
    for row in rows:
        labels.setdefault(row["label"], {})[row["seed"]] = row
    for label, own in labels.items():
        base = labels["lam=0 " + label.split()[1]]
        far = Spread.of([row["distance"] for row in own.values()])
        more = Spread.of([own[seed]["distance"] - base[seed]["distance"] for seed in own])
        yield {
            **{"label": label, "seeds": len(own), "distance": far.mean, "interval": far.interval},
            **{"more": more.mean, "more_interval": more.interval},
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = {path.parent: weights(path.parent) for top in args.folders for path in sorted(top.glob("**/summary.json"))}
    alone = {(knobs(config), config.seed): w for config, w in runs.values()}
    rows = [
        measured(config, w, alone[(0.0, knobs(config)[1]), config.seed], folder) for folder, (config, w) in runs.items()
    ]
    over = [*told(rows)]
    for line in over:
        print(json.dumps(line))
    if args.out:
        command = shlex.join(["python", *sys.argv])
        args.out.write_text(json.dumps({"command": command, "over_seeds": over, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
