"""What the rule of rest costs and saves: paired differences over seeds, with their 95 % intervals, from tables of runs.

    python benchmarks/rest.py results/rest/mnist.json results/rest/fmnist.json

A table has runs of pfed1bs-delta at rest with both m / n, of ditto and fedavg-ft under the same rule, and of
pfed1bs-delta with rest = 0 and steps of 0.1, 0.3 and 1 (docs/reproduce.md). For each run at rest: how far its end lies
below its best evaluation; what it has less than the best fixed choice of step and rounds, which is made on the test
samples, for the mean over the seeds; what it has less than ditto and fedavg-ft.
"""

import sys
from pathlib import Path
from statistics import fmean

from pfed1bs.report.records import table
from pfed1bs.report.statistics import Difference


def by_label(runs):
    """Runs by label and seed."""
    found = {}
    for run in runs:
        found.setdefault(run["label"], {})[run["seed"]] = run
    return found


def told(first, second, ours, theirs):
    """The mean over common seeds of ours - theirs, values by seed, and its interval."""
    gap = Difference(first, second, tuple(ours[seed] - theirs[seed] for seed in ours if seed in theirs))
    interval = "({:.2f} to {:.2f})".format(*gap.interval()) if len(gap.values) > 1 else "(one seed)"
    worst, best = min(gap.values), max(gap.values)
    return f"{first} - {second}: {gap.mean:.2f} {interval}, {worst:.2f} to {best:.2f} over {len(gap.values)} seeds"


def best_fixed(methods):
    """The step and the number of rounds that have the highest mean over seeds, and the accuracies by seed."""
    choices = {}
    for label, runs in methods.items():
        if "rest=0 " in f"{label} ":
            for seed, run in runs.items():
                for number, _, accuracy in run["curve"]:
                    choices.setdefault((label, number), {})[seed] = accuracy
    most = max(len(values) for values in choices.values())
    whole = {choice: values for choice, values in choices.items() if len(values) == most}
    return max(whole.items(), key=lambda item: fmean(item[1].values()))


def main():
    for name in sys.argv[1:]:
        methods = by_label(table(Path(name)))
        print(name)
        for label, runs in methods.items():
            ends = [run["rounds"] for run in runs.values()]
            mean = fmean(run["accuracy"] for run in runs.values())
            print(f"  {label}: {mean:.2f} over {len(runs)} seeds, {min(ends)} to {max(ends)} rounds")
        (label, rounds), fixed = best_fixed(methods)
        fixed_name = f"[{label}, {rounds} rounds]"
        for label, runs in methods.items():
            if label.startswith("pfed1bs-delta") and "rest=0 " not in f"{label} ":
                ends = {seed: run["accuracy"] for seed, run in runs.items()}
                highest = {seed: max(accuracy for *_, accuracy in run["curve"]) for seed, run in runs.items()}
                print("  " + told(label, "its best evaluation", ends, highest))
                print("  " + told(label, fixed_name, ends, fixed))
                for other in ("ditto", "fedavg-ft"):
                    theirs = {seed: run["accuracy"] for seed, run in methods[other].items()}
                    print("  " + told(label, other, ends, theirs))


if __name__ == "__main__":
    main()
