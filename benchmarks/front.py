"""Personalised accuracy against total bytes: measured over m / n and the steps of a round, and drawn.

python benchmarks/front.py measure --seeds 0,1,2 --parallel 8 --runs runs/front --out results/front.json
python benchmarks/front.py figure results/front.json --out results/front.svg
python benchmarks/front.py curves results/mnist-all-r.json --out results/accuracy-bytes.svg

`measure` runs pfed1bs-delta with every m / n and with 10, 20 and 40 local steps in a round at equal gradients, which is
a message every second or fourth round, beside training alone, ditto, fedavg-ft and decomfl; every data set is complete
at one seed before the next seed begins, and what is finished is in the file. Flags of the configuration may follow.
`curves` draws all methods of a table, in the style of the reports, for light and dark pages.
"""

import argparse
import json
import re
import shlex
import sys
from collections import defaultdict
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path
from statistics import mean, stdev

from pfed1bs.report.drawn import PICTURES
from pfed1bs.report.groups import groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.records import RunRecord, table
from pfed1bs.report.style import DARK
from pfed1bs.runs.config import load
from pfed1bs.runs.environment import environment
from pfed1bs.studies.comparison import Entry, entries, side_by_side, variant

RECIPES = ("mnist-delta", "fmnist-delta", "cifar10-small", "svhn-small", "cifar100-small")
RATIOS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
STEPS = (10, 20, 40)
BESIDE = ("local", "fedavg-ft", "ditto", "decomfl")
COLOURS = {10: "#0072b2", 20: "#009e73", 40: "#cc79a7"}
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # 95 % interval of a mean over so many seeds, in standard errors


def planned(recipe, seed, own, flags):
    """The runs of a data set and a seed: methods at full precision, then every m / n with every number of steps."""
    config, found = load(f"recipes/{recipe}.toml", flags), []
    for steps in own.steps:
        part = replace(config, steps=steps, rounds=ceil(config.rounds * config.steps / steps))
        part = replace(part, evaluate_every=part.rounds, checkpoint_every=0)
        names = [*(BESIDE if steps == own.steps[0] else ()), *(f"pfed1bs-delta ratio={ratio}" for ratio in own.ratios)]
        for entry in entries(part, [variant(name) for name in names], [seed]):
            found.append(Entry(f"{recipe}-r{steps}-{entry.name}", entry.config))
    return found


def measured(entry, folder):
    """What a finished run came to; bytes beside those of fedavg with the recipe's steps."""
    summary, config = json.loads((folder / entry.name / "summary.json").read_text()), entry.config
    kept = (
        "rounds",
        "rested",
        "accuracy",
        "accuracy_global",
        "total_mib",
        "catch_up_mib",
        "ratio_to_fedavg",
        "seconds",
        "commit",
    )
    told = {"data": config.data.name, "model": config.model.name, "algorithm": config.method, "seed": config.seed}
    told |= {"steps": config.steps, "rounds": config.rounds, "ratio": config.algorithm.get("ratio")}
    return {**told, **{key: summary[key] for key in kept if key in summary}}


def measure(own, flags):
    folder, runs = Path(own.runs), []
    plan = [entry for seed in own.seeds for recipe in own.recipes for entry in planned(recipe, seed, own, flags)]
    order = {entry.name: place for place, entry in enumerate(plan)}
    for entry in side_by_side(plan, folder, own.parallel):
        runs.append((order[entry.name], measured(entry, folder)))
        found = environment()
        about = {"command": shlex.join(["python", "benchmarks/front.py", *sys.argv[1:]]), "environment": found}
        lines = [json.dumps(run) for _, run in sorted(runs, key=lambda item: item[0])]
        text = json.dumps(about, indent=1)[:-2] + ',\n "runs": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
        Path(own.out).write_text(text)
        print(f"{len(runs)} of {len(plan)}: {entry.name} {runs[-1][1]['accuracy']:.2f}", flush=True)


def interval(values):
    """Half of the 95 % interval of a mean; 0 for one value."""
    return STUDENT.get(len(values), 2.0) * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def figure(own, flags):
    """A panel for every data set: accuracy against bytes, a line for every number of local steps."""
    from matplotlib import rcParams  # here, so that `measure` runs without
    from matplotlib.figure import Figure

    groups = defaultdict(list)
    for run in json.loads(Path(own.results).read_text())["runs"]:
        groups[run["data"], run["algorithm"], run["steps"], run["ratio"]].append(run)
    names = list(dict.fromkeys(data for data, *_ in groups))
    rcParams["svg.hashsalt"] = "pfed1bs"
    picture = Figure(figsize=(4.2 * min(3, len(names)), 3.6 * ceil(len(names) / 3)), layout="constrained")
    for place, data in enumerate(names, 1):
        panel(picture.add_subplot(ceil(len(names) / 3), min(3, len(names)), place), data, groups)
    picture.savefig(own.out, metadata={"Date": None})


def panel(axes, data, groups):
    for steps, colour in COLOURS.items():
        points = sorted(
            (mean(run["total_mib"] for run in runs), [run["accuracy"] for run in runs], ratio)
            for (name, method, own, ratio), runs in groups.items()
            if (name, method, own) == (data, "pfed1bs-delta", steps)
        )
        if not points:
            continue
        x, values, ratios = zip(*points, strict=True)
        y, error = [mean(value) for value in values], [interval(value) for value in values]
        axes.errorbar(x, y, error, color=colour, marker="o", markersize=3, linewidth=1.2, label=f"R = {steps}")
        for i, ratio in enumerate(ratios if steps == min(COLOURS) else ()):
            axes.annotate(
                f"{ratio:g}", (x[i], y[i]), xytext=(0, 5), textcoords="offset points", fontsize=7, ha="center"
            )
    for (name, method, _, _), runs in groups.items():
        if name == data and method != "pfed1bs-delta":
            sent, y = mean(run["total_mib"] for run in runs), mean(run["accuracy"] for run in runs)
            if sent:
                axes.plot([sent], [y], "s", markersize=4, color="#d55e00")
                axes.annotate(method, (sent, y), xytext=(-4, 4), textcoords="offset points", fontsize=7, ha="right")
            else:
                axes.axhline(y, color="gray", linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_title(data, fontsize=10)
    axes.set_xlabel("total MiB, headers included")
    axes.set_ylabel("personalised accuracy, percent")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")


def curves(own, flags):
    """All methods of a table.json as the reports draw them, on white and on a dark page."""
    runs = table(Path(own.table))
    recipe = {
        key: value for key, value in json.loads(Path(own.table).read_text())["recipe"].items() if key != "compare"
    }
    picture = PICTURES["accuracy-bytes"](shown_of(groups([recorded(run, recipe) for run in runs])))
    title = f"MNIST, Dirichlet 0.3, 100 samples a client, {runs[0]['rounds']} rounds, tuned options, ten seeds"
    light = picture.svg.replace("<defs>", f"<title>{title}</title>\n <defs>", 1)
    dark = re.sub("|".join(DARK), lambda colour: DARK[colour[0]], light)
    Path(own.out).write_text(light)
    Path(own.out).with_suffix(".dark.svg").write_text(dark)


def recorded(run, recipe):
    """A run of a table.json as the report knows it; bytes stand at the rounds that were judged."""
    lines, before = [{"round": number, "up_bytes": 0, "down_bytes": 0} for number in range(run["rounds"])], 0
    for number, sent, accuracy in run["curve"]:
        lines[number - 1] |= {"up_bytes": sent - before, "accuracy": accuracy}
        before = sent
    config = {**recipe, "algorithm": {"name": run["algorithm"], **run["options"]}}
    return RunRecord(Path(run["label"]), config, {}, lines, [], run)


def words(kind):
    return lambda text: [kind(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("measure", help="run everything that is not finished in --runs")
    part.add_argument("--recipes", type=words(str), default=[*RECIPES])
    part.add_argument("--ratios", type=words(float), default=[*RATIOS])
    part.add_argument("--steps", type=words(int), default=[*STEPS])
    part.add_argument("--seeds", type=words(int), default=[0, 1, 2])
    part.add_argument("--parallel", type=int, default=1, help="runs at a time, each in a process of its own")
    part.add_argument("--runs", required=True, help="folder of the runs")
    part.add_argument("--out", required=True, help="file for the results")
    part.set_defaults(work=measure)
    part = parts.add_parser("figure", help="one picture of all data sets")
    part.add_argument("results")
    part.add_argument("--out", required=True)
    part.set_defaults(work=figure)
    part = parts.add_parser("curves", help="all methods of a table.json")
    part.add_argument("table")
    part.add_argument("--out", required=True)
    part.set_defaults(work=curves)
    own, flags = parser.parse_known_args()
    own.work(own, flags)


if __name__ == "__main__":
    main()
