"""What the rule of rest costs and saves: paired differences over seeds, with their 95 % intervals, from tables of runs.

    python benchmarks/rest.py --join RUNS/rest/table.json RUNS/fixed/table.json --out results/rest/mnist.json
    python benchmarks/rest.py results/rest/mnist.json results/rest/fmnist.json --out results/rest/differences.json

A table has runs of pfed1bs-delta at rest with both m / n, of ditto and fedavg-ft under the same rule, and of
pfed1bs-delta with rest = 0 and steps of 0.1, 0.3 and 1 (docs/reproduce.md). For each run at rest: how far its end
lies below its best evaluation; what it has less than the best fixed choice of step and rounds, which is made on the
test samples, for the mean over the seeds; what it has less than ditto and fedavg-ft, and with fewer bits less than with
more. `--join` makes such a table of those that `pfed1bs compare` wrote, with rest and without, or adds them to one. Of
tables that lack some of these, those of earlier rules (results/rest/earlier.json), what there is; of several data sets
each apart. Of the best evaluation also what is left of it if every seed's is chosen by the others: the highest of many
evaluations is too high by itself. And what a run would have less if the default number of rounds cut it off.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from statistics import fmean

from pfed1bs.report.records import table
from pfed1bs.report.statistics import Difference
from pfed1bs.runs.config import Config
from pfed1bs.runs.environment import environment

ROUNDS = Config().rounds
MORE, FEWER = "pfed1bs-delta ratio=0.1", "pfed1bs-delta ratio=0.01"  # bits


def by_label(runs):
    """Runs by label and seed."""
    found = {}
    for run in runs:
        found.setdefault(run["label"], {})[run["seed"]] = run
    return found


def sets(name):
    """The data sets of a table."""
    return {run["dataset"] for run in table(Path(name))}


def gap(first, second, ours, theirs):
    """The mean over common seeds of ours - theirs, values by seed, and its interval."""
    found = Difference(first, second, tuple(ours[seed] - theirs[seed] for seed in ours if seed in theirs))
    interval = found.interval() if len(found.values) > 1 else None
    ends = {"least": min(found.values), "most": max(found.values), "seeds": len(found.values)}
    return {"of": first, "minus": second, "mean": found.mean, "interval": interval, **ends}


def told(found):
    """A difference in words."""
    interval = "({:.2f} to {:.2f})".format(*found["interval"]) if found["interval"] else "(one seed)"
    return "{of} - {minus}: {mean:.2f} {interval}, {least:.2f} to {most:.2f} over {seeds} seeds".format(
        **found | {"interval": interval}
    )


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


def joined(names):
    """Tables as one, as text: of two runs with one label and seed the later; a label says whether models may rest."""
    runs, tables = {}, [json.loads(Path(name).read_text()) for name in names]
    for found in tables:
        for run in found["runs"]:
            label = run["label"] if "what" in found else labelled(run, found["recipe"]["rest"])
            runs[label, run["seed"]] = {**run, "label": label}
    what = "runs that end when all models are at rest, and fixed steps and rounds"
    order = [*dict.fromkeys(label for label, _ in runs)]
    lines = ",\n  ".join(json.dumps(run) for _, run in sorted(runs.items(), key=lambda item: order.index(item[0][0])))
    head = json.dumps({"what": what, "recipe": tables[0]["recipe"]}, indent=1)
    return f'{head[:-2]},\n "runs": [\n  {lines}\n ]\n}}\n'


def labelled(run, rest):
    """The method of a run with all its options."""
    options = [f"{key}={value:g}" for key, value in sorted(run["options"].items())]
    return " ".join([run["algorithm"], *([] if rest else ["rest=0"]), *options])


def chosen_by_others(runs):
    """The accuracy of each seed at the evaluation that is the best of the others' mean, at most at its own last one."""
    found = {}
    for seed, run in runs.items():
        others, own = [other for key, other in runs.items() if key != seed], run["curve"]
        rounds = [number for number, *_ in own]
        mean = {number: fmean(at(other["curve"], number) for other in others) for number in rounds}
        found[seed] = at(own, max(rounds, key=mean.__getitem__))
    return found


def at(curve, number):
    """The accuracy of a run after so many rounds, or its last one if it ended before."""
    return next((accuracy for done, _, accuracy in curve if done >= number), curve[-1][-1])


def gaps(methods):
    """All differences of a table."""
    found, fixed_name, fixed = [], "", {}
    if any("rest=0 " in f"{label} " for label in methods):
        (label, rounds), fixed = best_fixed(methods)
        fixed_name = f"[{label}, {rounds} rounds]"
    ends = {label: {seed: run["accuracy"] for seed, run in runs.items()} for label, runs in methods.items()}
    highest = {
        label: {seed: max(accuracy for *_, accuracy in run["curve"]) for seed, run in runs.items()}
        for label, runs in methods.items()
    }
    for label in [label for label in methods if "rest=0 " not in f"{label} " and label != "local"]:
        found.append(gap(label, "its best evaluation", ends[label], highest[label]))
        if len(methods[label]) > 1:
            others = chosen_by_others(methods[label])
            found.append(gap(label, "its best evaluation as the other seeds choose it", ends[label], others))
        early = {seed: at(run["curve"], ROUNDS) for seed, run in methods[label].items()}
        found.append(gap(f"{label} after {ROUNDS} rounds", "its end", early, ends[label]))
        if label.startswith("pfed1bs-delta"):
            found += [gap(label, fixed_name, ends[label], fixed)] if fixed else []
            bits = (MORE, FEWER) if label.split()[:2] == FEWER.split() else ()
            others = ("ditto", "fedavg-ft", *(other for other in bits if other != label))
            found += [gap(label, other, ends[label], ends[other]) for other in others if other in ends]
            if "ditto" in highest:
                found.append(gap(label, "ditto, each at its best evaluation", highest[label], highest["ditto"]))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*")
    parser.add_argument("--join", nargs="+", metavar="TABLE")
    parser.add_argument("--out", type=Path, help="with --join: for the table; else: for the differences")
    own = parser.parse_args()
    if own.join:
        own.out.write_text(joined(own.join))
        own.tables.append(str(own.out))
    differences = {}
    parts = [(path, data) for path in own.tables for data in sorted(sets(path))]
    for path, data in parts:
        methods = by_label(run for run in table(Path(path)) if run["dataset"] == data)
        name = path if len(sets(path)) == 1 else f"{path} {data}"
        print(name)
        for label, runs in methods.items():
            ends = [run["rounds"] for run in runs.values()]
            mean = fmean(run["accuracy"] for run in runs.values())
            print(f"  {label}: {mean:.2f} over {len(runs)} seeds, {min(ends)} to {max(ends)} rounds")
        differences[name] = gaps(methods)
        print(*(f"  {told(found)}" for found in differences[name]), sep="\n")
    if own.out and not own.join:
        about = {"command": shlex.join(["python", *sys.argv]), "commit": environment("cpu")["commit"]}
        own.out.write_text(json.dumps({**about, "differences": differences}, indent=1) + "\n")


if __name__ == "__main__":
    main()
