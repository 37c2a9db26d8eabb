"""Personalised accuracy against total bytes: measured over m / n and the steps of a round, and drawn.

python benchmarks/front.py measure --seeds 0,1,2 --parallel 8 --runs runs/front --out results/front.json
python benchmarks/front.py join results/front.json runs/front.json results/rest/svhn.json --out results/front.json
python benchmarks/front.py figure results/front.json --out results/front.svg
python benchmarks/front.py ends results/mnist-all-r.json --out results/accuracy-bytes.svg

`measure` runs pfed1bs-delta with every m / n and with 10, 20 and 40 local steps in a round at equal gradients, which is
a message every second or fourth round, beside training alone, ditto, fedavg-ft and decomfl; every data set is complete
at one seed before the next seed begins, and what is finished is in the file. Flags of the configuration may follow.
`join` puts files together, and takes runs at rest of tables (results/rest) over; of two runs of one setting the later.
`figure` draws accuracy minus that of ditto with the same seed, on white and on a dark page.
`ends` draws all methods of a table, a row each, in the style of the reports, for light and dark pages.
"""

import argparse
import json
import re
import shlex
import sys
from collections import defaultdict
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import fmean

from pfed1bs.report.groups import Spread, groups
from pfed1bs.report.leading import worth
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.records import RunRecord, table
from pfed1bs.report.style import COLOURS, DARK, MARKERS, MUTED, byte_axis, canvas, legend, look, svg
from pfed1bs.runs.config import load
from pfed1bs.runs.environment import environment
from pfed1bs.studies.comparison import Entry, entries, side_by_side, variant

RECIPES = ("mnist-delta", "fmnist-delta", "cifar10-delta", "svhn-delta", "cifar100-small")
RATIOS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
STEPS = (10, 20, 40)
NAMED = (0.1, 0.01, 0.001)  # m / n that have room for their number
ROW = 0.165  # inches for a method
BESIDE = ("local", "fedavg-ft", "ditto", "decomfl")
KEPT = "rounds rested accuracy accuracy_global total_mib catch_up_mib ratio_to_fedavg seconds commit device".split()
NAMES = {
    "mnist": "MNIST",
    "fmnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN, a subset",
    "cifar100": "CIFAR-100, a subset",
}
FREE = {
    "ditto": ((0, 6), "center"),
    "fedavg-ft": ((0, -13), "center"),
    "decomfl": ((6, -3), "left"),
}  # where a name may stand


def planned(recipe, seed, own, flags):
    """The runs of a data set and a seed: methods at full precision, then every m / n with every number of steps."""
    config, found = load(f"recipes/{recipe}.toml", flags), []
    for steps in own.steps:
        part = replace(config, steps=steps, rounds=ceil(config.rounds * config.steps / steps))
        part = replace(part, evaluate_every=part.rounds, checkpoint_every=0)
        beside = own.beside if steps == own.steps[0] else ()
        names = [*beside, *(f"pfed1bs-delta ratio={ratio}" for ratio in own.ratios)]
        for entry in entries(part, [variant(name) for name in names], [seed]):
            found.append(Entry(f"{recipe}-r{steps}-{entry.name}", entry.config))
    return found


def measured(entry, folder):
    """What a finished run came to; bytes beside those of fedavg with the recipe's steps."""
    summary, config = json.loads((folder / entry.name / "summary.json").read_text()), entry.config
    told = {"data": config.data.name, "model": config.model.name, "algorithm": config.method, "seed": config.seed}
    told |= {"steps": config.steps, "rounds": config.rounds, "ratio": config.algorithm.get("ratio")}
    told |= {"step": step} if (step := config.algorithm.get("step")) else {}
    return {**told, **{key: summary[key] for key in KEPT if key in summary}}


def measure(own, flags):
    folder, runs = Path(own.runs), []
    plan = [entry for seed in own.seeds for recipe in own.recipes for entry in planned(recipe, seed, own, flags)]
    order = {entry.name: place for place, entry in enumerate(plan)}
    about = {"command": shlex.join(["python", "benchmarks/front.py", *sys.argv[1:]]), "environment": environment()}
    for entry in side_by_side(plan, folder, own.parallel):
        runs.append((order[entry.name], measured(entry, folder)))
        write(Path(own.out), about, [run for _, run in sorted(runs, key=lambda item: item[0])])
        print(f"{len(runs)} of {len(plan)}: {entry.name} {runs[-1][1]['accuracy']:.2f}", flush=True)


def join(own, flags):
    """The runs of several files as one."""
    runs = {}
    for path, _, names in (text.partition("=") for text in own.files):
        found = json.loads(Path(path).read_text())
        ours = found["runs"] if "summary" in found else (taken(run, found["recipe"]["steps"]) for run in found["runs"])
        for run in ours:
            if run and (not names or run["algorithm"] in names.split(",")):
                runs[tuple(run[key] for key in ("data", "algorithm", "steps", "ratio", "seed"))] = run
    order = [*NAMES]
    about = {"command": shlex.join(["python", "benchmarks/front.py", *sys.argv[1:]]), "environment": environment()}
    write(Path(own.out), about, sorted(runs.values(), key=lambda run: (order.index(run["data"]), run["seed"])))


def taken(run, steps):
    """A run of a table as one of ours; None for one with other settings or options, or of no method shown here."""
    told, others = run.get("settings", {}), [word for word in run["label"].split()[1:] if not word.startswith("ratio=")]
    if others or {*told} - {"steps"} or run["algorithm"] not in ("pfed1bs-delta", *BESIDE):
        return None
    steps = told.get("steps", steps)
    told = {"data": run["dataset"], "model": run["model"], "algorithm": run["algorithm"], "seed": run["seed"]}
    told |= {"steps": steps, "ratio": run["options"].get("ratio")}
    return told | {key: run[key] for key in KEPT if key in run}


def write(path, about, runs):
    """The file, a line for every setting and every run."""
    parts = {"summary": summary(runs), "runs": runs}
    lines = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, part)) + "\n ]" for name, part in parts.items()]
    path.write_text(json.dumps(about, indent=1)[:-2] + ",\n" + ",\n".join(lines) + "\n}\n")


def summary(runs):
    """Every setting over its seeds: means, and what its accuracy is above those of other methods with the same seed."""
    found, others = defaultdict(list), {(r["algorithm"], r["data"], r["seed"]): r["accuracy"] for r in runs}
    for run in runs:
        found[run["data"], run["algorithm"], run["steps"], run["ratio"]].append(run)
    lines = []
    for (data, algorithm, steps, ratio), own in found.items():
        line = {"data": data, "algorithm": algorithm, "steps": steps, "ratio": ratio, "seeds": len(own)}
        line |= {key: fmean(run[key] for run in own) for key in ("accuracy", "total_mib", "ratio_to_fedavg", "rounds")}
        for name, interval in (("ditto", "interval"), ("local", "interval_local"), ("decomfl", "interval_decomfl")):
            above = [run["accuracy"] - others[key] for run in own if (key := (name, data, run["seed"])) in others]
            line |= {f"above_{name}": Spread.of(above).mean, interval: Spread.of(above).interval} if above else {}
        lines.append(line | {"rested": sum(run["rested"] for run in own)})
    return lines


def figure(own, flags):
    """A panel for every data set, one below the other, which a telephone can show."""
    lines = summary(json.loads(Path(own.results).read_text())["runs"])
    names = list(dict.fromkeys(line["data"] for line in lines))
    with look():
        picture = canvas(2.7 * len(names))
        panels = picture.subplots(len(names), squeeze=False, sharex=True)[:, 0]
        for axes, data in zip(panels, names, strict=True):
            panel(axes, [line for line in lines if line["data"] == data])
            axes.set_title(NAMES[data], loc="left", fontsize=10)
        panels[-1].set_xlabel("total MiB, headers included; small numbers: m/n")
        legend(picture, panels[0])
    both(svg(picture), "personalised accuracy against total bytes", Path(own.out))


def panel(axes, lines):
    """Points above ditto with their 95 % intervals; a line for every number of local steps, m / n at the first."""
    delta = [line for line in lines if line["algorithm"] == "pfed1bs-delta"]
    numbers = sorted({line["steps"] for line in delta})
    for steps, colour, marker in zip(numbers, COLOURS, MARKERS, strict=False):
        points = sorted((line for line in delta if line["steps"] == steps), key=lambda line: line["ratio"])
        x, y = ([point[key] for point in points] for key in ("total_mib", "above_ditto"))
        known = [point["interval"] if point["seeds"] > 2 else None for point in points]  # of two it says nothing
        error = [ends[1] - point["above_ditto"] if ends else 0 for ends, point in zip(known, points, strict=True)]
        label = f"{steps} steps a round"
        axes.errorbar(x, y, error, color=colour, marker=marker, markersize=3.5, linewidth=1.2, label=label)
        for point in points if steps == numbers[0] else ():
            if point["ratio"] in NAMED:
                others_below = numbers[1:] and point["ratio"] > NAMED[-1]
                free = ((0, 6), "center") if others_below else ((4, -11), "left")
                write_at(axes, f"{point['ratio']:g}", point, colour, *free)
    for line in lines:
        if line["algorithm"] == "local":
            axes.axhline(line["above_ditto"], color=MUTED, linestyle="--", linewidth=1, label="alone")
        elif line not in delta:
            axes.plot([line["total_mib"]], [line["above_ditto"]], "s", markersize=4.5, color=MUTED)
            write_at(axes, line["algorithm"], line, MUTED, *FREE[line["algorithm"]])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.margins(x=0.14, y=0.1)
    axes.set_ylabel("points above ditto")


def write_at(axes, text, line, colour, shift, side):
    spot = line["total_mib"], line["above_ditto"]
    axes.annotate(text, spot, xytext=shift, textcoords="offset points", fontsize=7.5, ha=side, color=colour)


def both(light, title, out):
    """A picture on white, and beside it the same for dark pages."""
    light = light.replace("<defs>", f"<title>{title}</title>\n <defs>", 1)
    out.write_text(light)
    out.with_suffix(".dark.svg").write_text(re.sub("|".join(DARK), lambda colour: DARK[colour[0]], light))


def ends(own, flags):
    """All methods of a table.json, a row each and the best on top: what they come to, and all bytes they sent."""
    found = json.loads(Path(own.table).read_text())
    recipe = {key: value for key, value in found["recipe"].items() if key != "compare"}
    shown = shown_of(groups([recorded(run, recipe) for run in table(Path(own.table))]))
    shown.sort(key=lambda item: worth(item.group), reverse=True)
    with look():
        picture = canvas(0.55 + ROW * len(shown))
        left, right = picture.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for row, item in enumerate(shown):
            ended(left, right, row, item)
        left.set(
            yticks=range(len(shown)), yticklabels=[item.group.label for item in shown], ylim=(len(shown) - 0.4, -0.6)
        )
        for item, text in zip(shown, left.get_yticklabels(), strict=True):
            text.set(color=item.colour, fontweight="bold" if item.leads else "normal")
        left.locator_params(axis="x", integer=True)
        byte_axis(right)
        left.set_xlabel(f"personal {shown[0].group.metric.words}")
        right.set_xlabel("bytes in all (log)")
        for axes in (left, right):
            axes.tick_params(axis="y", length=0)
            axes.tick_params(axis="x", labelsize=8)
            axes.grid(axis="y", linewidth=0.3)
    data, seeds = recipe["data"], len(shown[0].group.records)
    about = [NAMES.get(data["name"], data["name"]), data["partition"], f"{data['cap']} samples a client"]
    both(svg(picture), ", ".join([*about, f"at most {recipe['rounds']} rounds, {seeds} seeds"]), Path(own.out))


def ended(left, right, row, item):
    """A method's accuracy with its 95 % interval, over the whole height for training alone, and its bytes."""
    value, thick = item.group.spread(item.group.metric.name), 1.8 if item.leads else 1.2
    if item.group.algorithm == "local":
        left.axvspan(*value.interval, color=item.colour, alpha=0.12, linewidth=0)
    left.plot(value.interval, [row] * 2, color=item.colour, linewidth=thick, solid_capstyle="butt")
    left.plot([value.mean], [row], "o", color=item.colour, markersize=4.5 if item.leads else 3.5)
    if sent := item.group.spread("total_mib").mean * 2**20:
        right.plot([sent], [row], "o", color=item.colour, markersize=4.5 if item.leads else 3.5)
    else:
        right.text(0.03, row, "none", color=item.colour, va="center", transform=right.get_yaxis_transform())


def recorded(run, recipe):
    """A run of a table.json as the report knows it; bytes stand at the rounds that were judged."""
    lines, before = [{"round": number, "up_bytes": 0, "down_bytes": 0} for number in range(run["rounds"])], 0
    for number, sent, accuracy in run["curve"]:
        lines[number - 1] |= {"up_bytes": sent - before, "accuracy": accuracy}
        before = sent
    config = {**recipe, "algorithm": {"name": run["algorithm"], **run["options"]}}
    return RunRecord(Path(run["label"]), config, {}, lines, [], run)


def words(kind):
    return lambda text: [kind(word) for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("measure", help="run everything that is not finished in --runs")
    part.add_argument("--recipes", type=words(str), default=[*RECIPES])
    part.add_argument("--ratios", type=words(float), default=[*RATIOS])
    part.add_argument("--steps", type=words(int), default=[*STEPS])
    part.add_argument("--seeds", type=words(int), default=[0, 1, 2])
    part.add_argument("--beside", type=words(str), default=[*BESIDE], help="methods at the first number of steps")
    part.add_argument("--parallel", type=int, default=1, help="runs at a time, each in a process of its own")
    part.add_argument("--runs", required=True, help="folder of the runs")
    part.add_argument("--out", required=True, help="file for the results")
    part.set_defaults(work=measure)
    part = parts.add_parser("join", help="one file of several")
    part.add_argument("files", nargs="+", help="FILE, or FILE=ALGORITHM,... for some of its runs")
    part.add_argument("--out", required=True)
    part.set_defaults(work=join)
    part = parts.add_parser("figure", help="one picture of all data sets")
    part.add_argument("results")
    part.add_argument("--out", required=True)
    part.set_defaults(work=figure)
    part = parts.add_parser("ends", help="all methods of a table.json")
    part.add_argument("table")
    part.add_argument("--out", required=True)
    part.set_defaults(work=ends)
    own, flags = parser.parse_known_args()
    own.work(own, flags)


if __name__ == "__main__":
    main()
