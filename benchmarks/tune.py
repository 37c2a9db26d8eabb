"""Chooses hyper-parameters of all methods on the same small grid, judged on a quarter of the clients' training samples.

The step size of the clients takes the same four values for every method, and one more option takes three in those
methods that have a knob of their own. The best mean over the seeds wins. Test samples are put away (data.validate) and
choose nothing. Prints [options.*] tables.

    python benchmarks/tune.py recipes/mnist-small.toml --root DATA --out results/tuning.json
"""

import argparse
import json
import sys
import tomllib
from itertools import product
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent))

from table import facts, federate, load, one  # noqa: E402

from pfed1bs.algorithms import REGISTRY  # noqa: E402
from pfed1bs.simulate import choose  # noqa: E402

STEPS = [0.005, 0.02, 0.05, 0.1]
KNOBS = {  # the option besides lr, three values each
    "pfed1bs": ("lam", [5e-5, 5e-4, 5e-2]),
    "pfed1bs-delta": ("lam", [0.03, 0.1, 0.3]),
    "obda": ("step", [0.002, 0.005, 0.01]),
    "signsgd": ("step", [0.002, 0.005, 0.01]),
    "zsign": ("sigma", [0.03, 0.1, 0.3]),
    "obcsaa": ("server_lr", [0.5, 1.0, 2.0]),
    "ditto": ("lam", [0.03, 0.1, 0.3]),
    "pfedme": ("lam", [5.0, 15.0, 30.0]),
    "fedprox": ("prox", [0.001, 0.01, 0.1]),
    "fedrep": ("head_share", [0.2, 0.5, 0.8]),
    "perfedavg": ("alpha", [0.01, 0.03, 0.1]),
    "apfl": ("alpha", [0.25, 0.5, 0.75]),
    "fedproto": ("lam", [0.3, 1.0, 3.0]),
    "dispfl": ("density", [0.3, 0.5, 0.8]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--root", default=None)
    parser.add_argument("--algorithms", default=",".join(REGISTRY))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    recipe = {"rounds": 100, "clients": 20, "steps": 10, "batch": 64, "model": {"name": "mlp"}, "evaluate_every": 1000}
    recipe |= tomllib.loads(Path(own.recipe).read_text())
    part, device, rows = recipe["data"], choose("auto"), []
    dataset = load(part["name"], own.root)
    split = {"cap": part.get("cap"), "validate": True}
    seeds = [int(seed) for seed in own.seeds.split(",")]
    federations = {s: federate(dataset, recipe["clients"], part["partition"], seed=s, **split) for s in seeds}
    for name in own.algorithms.split(","):
        knob, values = KNOBS.get(name, ("", [None]))
        plans = [{"lr": lr} | ({knob: value} if knob else {}) for lr, value in product(STEPS, values)]
        scores = []
        for options in plans:
            found = [
                attempt(recipe, data.to(device), name, options, seed, device) for seed, data in federations.items()
            ]
            scores.append(mean(row["accuracy_personal"] for row in found))
            rows += found
        best = max(scores)
        print(f"# validation accuracy {best:.2f}\n[options.{name}]", flush=True)
        for key, value in plans[scores.index(best)].items():
            print(f"{key} = {value}", flush=True)
        if own.out:
            text = json.dumps({**facts(device), "recipe": recipe, "runs": rows})
            Path(own.out).write_text(text.replace('{"algorithm"', '\n{"algorithm"') + "\n")


def attempt(recipe, data, name, options, seed, device):
    """The validation accuracy of one run; a step that diverges is a result, not an end."""
    try:
        row = one(recipe, data, name, options, seed, device)
    except (RuntimeError, ValueError) as error:
        row = {"algorithm": name, "options": options, "seed": seed, "accuracy_personal": 0.0, "error": str(error)[:100]}
    return {key: row[key] for key in ("algorithm", "options", "seed", "accuracy_personal", "error") if key in row}


if __name__ == "__main__":
    main()
