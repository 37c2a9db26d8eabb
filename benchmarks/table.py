"""Runs methods and seeds of a recipe with torch and numpy alone, on any device, and writes one JSON table.

`pfed1bs compare` does the same with checkpoints and reports; this script is for machines where only torch is installed,
and for sweeps: every --set adds a variant of the options of a method.

    python benchmarks/table.py recipes/mnist-small.toml --algorithms pfed1bs,local --seeds 0,1,2 --out results/x.json
    python benchmarks/table.py recipes/mnist-small.toml --runs 'pfed1bs lam=0' 'pfed1bs lam=5e-2' 'fedavg'
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from statistics import mean, stdev

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a bare checkout too

from pfed1bs.algorithms import REGISTRY, make  # noqa: E402
from pfed1bs.data import federate, load  # noqa: E402
from pfed1bs.evaluate import evaluate  # noqa: E402
from pfed1bs.models import build  # noqa: E402
from pfed1bs.simulate import choose, simulate  # noqa: E402
from pfed1bs.task import Task  # noqa: E402


def value(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def one(recipe, data, name, options, seed, device):
    """The row of one run: accuracies after the last round, and measured bytes."""
    task = Task(build(recipe["model"]["name"], data.shape, data.num_classes))
    algorithm = make(name, task, seed, **options)
    size = {"steps": recipe["steps"], "batch": recipe["batch"], "seed": seed, "chunk": recipe.get("chunk")}
    began, sent, curve, catch_up = time.perf_counter(), 0, [], 0
    every = recipe.get("evaluate_every", 10)
    for done in simulate(
        algorithm, data, rounds=recipe["rounds"], sampled=recipe.get("sampled"), device=device, **size
    ):
        sent += done.traffic.up + done.traffic.down
        catch_up += done.traffic.catch_up
        if (done.number + 1) % every == 0 or done.number + 1 == recipe["rounds"]:
            scores = evaluate(algorithm, data, done.progress, **size)
            curve.append([done.number + 1, sent, round(scores["personal"].micro, 3)])
    return {
        "algorithm": name,
        "options": options,
        "seed": seed,
        **{f"accuracy_{kind}": round(score.micro, 3) for kind, score in scores.items()},
        "accuracy_macro": round(scores["personal"].macro, 3),
        "total_mib": sent / 2**20,
        "mib_per_round": sent / 2**20 / recipe["rounds"],
        "catch_up_mib": catch_up / 2**20,
        "ratio_to_fedavg": sent / recipe["rounds"] / (8 * task.n * (recipe.get("sampled") or recipe["clients"])),
        "seconds": round(time.perf_counter() - began, 2),
        "log": {key: round(float(v.double().mean()), 6) for key, v in done.log.items()},
        "curve": curve,
    }


def written(path, recipe, device, rows):
    """All runs so far, with what made them; a run per line."""
    if not path:
        return
    text = json.dumps({**facts(device), "recipe": recipe, "runs": rows})
    Path(path).write_text(text.replace('{"algorithm"', '\n{"algorithm"') + "\n")


def facts(device):
    """What made a result; PFED1BS_COMMIT names the commit where the code has travelled without its history."""
    git = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": os.environ.get("PFED1BS_COMMIT") or git.stdout.strip(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--algorithms", default="")
    parser.add_argument("--runs", nargs="*", default=[], metavar="'NAME key=value ...'")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--root", default=None, help="folder with the data sets")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="key=value", help="recipe keys, e.g. rounds=200 data.cap=100"
    )
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    if own.threads:
        torch.set_num_threads(own.threads)
    recipe = {"rounds": 100, "clients": 20, "steps": 10, "batch": 64, "data": {}, "model": {"name": "mlp"}}
    recipe |= tomllib.loads(Path(own.recipe).read_text())
    for item in own.set:
        *tables, key = item.partition("=")[0].split(".")
        (recipe[tables[0]] if tables else recipe)[key] = value(item.partition("=")[2])
    names = list(REGISTRY) if own.algorithms == "all" else [name for name in own.algorithms.split(",") if name]
    shared = {key: recipe["algorithm"][key] for key in ("lr", "mu", "momentum") if key in recipe.get("algorithm", {})}
    plans = [(name, shared | recipe.get("options", {}).get(name, {})) for name in names]
    for text in own.runs:
        name, *pairs = text.split()
        plans.append((name, shared | {pair.partition("=")[0]: value(pair.partition("=")[2]) for pair in pairs}))
    part, device, rows = recipe["data"], choose(own.device), []
    dataset = load(part["name"], own.root)
    for seed in map(int, own.seeds.split(",")):
        keys = {"split": "pooled", "cap": None, "seed": seed, "min_size": 10, "augment": False, "validate": False}
        split = {key: seed if key == "seed" else part.get(key, default) for key, default in keys.items()}
        data = federate(dataset, recipe["clients"], part["partition"], **split).to(device)
        for name, options in plans:
            rows.append(one(recipe, data, name, options, seed, device))
            print(json.dumps({key: v for key, v in rows[-1].items() if key != "curve"}), flush=True)
            written(own.out, recipe, device, rows)
    print(f"{'method':44} {'personal':>16} {'global':>8} {'tuned':>8} {'MiB/round':>10} {'1/ratio':>8} {'s':>7}")
    for name, options in plans:
        mine = [row for row in rows if row["algorithm"] == name and row["options"] == options]
        accuracy = [row["accuracy_personal"] for row in mine]
        spread = f"{mean(accuracy):.2f} +- {stdev(accuracy):.2f}" if len(accuracy) > 1 else f"{accuracy[0]:.2f}"
        other = [
            f"{mean(r[f'accuracy_{k}'] for r in mine):.2f}" if f"accuracy_{k}" in mine[0] else ""
            for k in ("global", "tuned")
        ]
        label = " ".join([name, *(f"{k}={v}" for k, v in options.items() if k not in shared)])
        ratio = mine[0]["ratio_to_fedavg"]
        cost = (
            f"{mine[0]['mib_per_round']:10.4f} {1 / ratio if ratio else 0:8.1f} {mean(r['seconds'] for r in mine):7.1f}"
        )
        print(f"{label:44} {spread:>16} {other[0]:>8} {other[1]:>8} {cost}")


if __name__ == "__main__":
    main()
