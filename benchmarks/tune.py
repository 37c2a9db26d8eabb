"""Chooses hyper-parameters of all methods on the same small grid, judged on a quarter of the clients' training samples.

The step size of the clients takes the same three values for every method, and so does one more option of those methods
that have a knob of their own. Test samples are put away (data.validate) and choose nothing. Prints [options.*] tables.

    python benchmarks/tune.py recipes/mnist-small.toml --root DATA --out results/tuning.json
"""

import argparse
import json
import sys
import tomllib
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from table import federate, load, one  # noqa: E402

from pfed1bs.algorithms import REGISTRY  # noqa: E402
from pfed1bs.simulate import choose  # noqa: E402

STEPS = [0.02, 0.05, 0.1]
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    recipe = {"rounds": 100, "clients": 20, "steps": 10, "batch": 64, "model": {"name": "mlp"}, "evaluate_every": 1000}
    recipe |= tomllib.loads(Path(own.recipe).read_text())
    part, device, rows = recipe["data"], choose("auto"), []
    dataset = load(part["name"], own.root)
    data = federate(
        dataset, recipe["clients"], part["partition"], cap=part.get("cap"), seed=own.seed, validate=True
    ).to(device)
    for name in own.algorithms.split(","):
        knob, values = KNOBS.get(name, ("", [None]))
        for lr, value in product(STEPS, values):
            options = {"lr": lr} | ({knob: value} if knob else {})
            try:
                row = one(recipe, data, name, options, own.seed, device)
            except (RuntimeError, ValueError) as error:  # a step that diverges is a result, not an end
                row = {"algorithm": name, "options": options, "accuracy_personal": 0.0, "error": str(error)[:100]}
            rows.append({key: row[key] for key in ("algorithm", "options", "accuracy_personal", "error") if key in row})
        best = max((row for row in rows if row["algorithm"] == name), key=lambda row: row["accuracy_personal"])
        print(f"# validation accuracy {best['accuracy_personal']:.2f}\n[options.{name}]", flush=True)
        for key, value in best["options"].items():
            print(f"{key} = {value}", flush=True)
    if own.out:
        facts = {"command": "python " + " ".join(sys.argv), "torch": torch.__version__, "device": str(device)}
        Path(own.out).write_text(json.dumps({**facts, "runs": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main()
