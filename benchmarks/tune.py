"""Prints [options.*] tables for a recipe, chosen by pfed1bs.studies.tuning; runs are kept in --out.

python benchmarks/tune.py recipes/mnist-small.toml --algorithms ditto,local --seeds 0,1 --out runs/tuning
"""

import argparse
import json
from pathlib import Path

from pfed1bs.algorithms import REGISTRY
from pfed1bs.runs.config import load
from pfed1bs.studies import tuning


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="its flags may follow: --data.root DATA")
    parser.add_argument("--algorithms", default=",".join(REGISTRY))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--out", required=True, help="folder of the runs")
    own, flags = parser.parse_known_args()
    names, folder, rows = own.algorithms.split(","), Path(own.out), []
    config = load(own.recipe, flags, names)
    for name in names:
        trials = tuning.trials(config, name, [int(seed) for seed in own.seeds.split(",")], folder)
        best = tuning.best(trials)
        print(f"# validation accuracy {best.mean:.2f}\n[options.{name}]", flush=True)
        for key, value in best.variant.options.items():
            print(f"{key} = {value}", flush=True)
        rows += [{"algorithm": name, "options": trial.variant.options, "scores": trial.scores} for trial in trials]
        (folder / "tuning.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
