"""A table of `pfed1bs compare --against NAME` for a document: what table.json holds, one line for every method.

python tools/sheet.py results/mnist-all-r.json                  writes results/mnist-all-r.md
python tools/sheet.py --late results/mnist-all-r.json ...       carries the last score of runs at rest to the end
python tools/sheet.py --join results/mnist-all-r.json MORE      takes over runs of another, in place of its own or new

`--late` mends files from before a run that rested kept its last score in the mean of the last evaluations, from their
curves: tables of `pfed1bs compare` with their differences, and rows of `pfed1bs reproduce`.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from pfed1bs.report.groups import Spread, groups, settings
from pfed1bs.report.records import table
from pfed1bs.report.results import apart, over_seeds, significant
from pfed1bs.report.saved import saved
from pfed1bs.report.statistics import TAIL, Against, chance, scores
from pfed1bs.runs.late import last_scores

HEADS = "method", "accuracy, %", "last five, %", "minus `{}`", "last five, minus it", "p (Holm)", "MiB in all", "rounds"


def sheet(path: Path) -> str:
    """Last round, mean of the last five evaluations, and the paired differences of both with 95 % intervals."""
    runs, paired = table(path), json.loads(path.read_text())["paired"]
    found = {key: scores(runs, key) for key in ("accuracy", "accuracy_late", "total_mib", "rounds")}
    apart = {item["method"]: item for item in paired["differences"]}
    lines = [[head.format(paired["against"]) for head in HEADS], ["---"] * len(HEADS)]
    for label in found["accuracy"]:
        last, late, mib, rounds = (Spread.of([*values[label].values()]) for values in found.values())
        item, ends = apart.get(label), sorted(found["rounds"][label].values())
        differences = [_told(item, "difference", "interval"), _told(item, "late", "late_interval")]
        span = f"{ends[0]:.0f}" + (f" to {ends[-1]:.0f}" if ends[0] < ends[-1] else "")
        own = [f"`{label}`", *(f"{value.mean:.2f} \u00b1 {value.deviation or 0:.2f}" for value in (last, late))]
        lines.append([*own, *differences, chance(item["p"] if item else None), significant(mib.mean, 3), span])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def mended(plain: dict[str, Any], recipe: dict[str, Any], scores: list[tuple[int, float]]) -> dict[str, Any]:
    """A run of this recipe with the mean of its last evaluations, of which the scores of all are given."""
    if not plain["rested"]:
        return plain
    late = last_scores(scores, plain["rounds"], recipe["evaluate_every"], recipe["rounds"])
    return {**plain, f"{plain['metric']}{TAIL}": fmean(late)}


def mend(path: Path) -> None:
    """Write a table of runs again, with its differences; whatever else it holds stays as it is."""
    text = path.read_text()
    whole = json.loads(text)
    for run in whole["runs"]:
        found = mended(run, whole["recipe"], [(number - 1, score) for number, _, score in run["curve"]])
        text = text.replace(json.dumps(run), json.dumps(found))
    if before := whole.get("paired"):
        found = Against(before["against"], tuple(before["tested"])).plain(json.loads(text)["runs"])
        text = text.replace(json.dumps(before), json.dumps(found))
    path.write_text(text)


def join(path: Path, other: Path) -> None:
    """Take the runs of another table over, in place of those with the same label and seed, or beside them."""
    whole, more = (json.loads(place.read_text()) for place in (path, other))
    for run, record in zip(more["runs"], saved(other), strict=True):  # what differs from our recipe, not from theirs
        run.pop("settings", None)
        run |= apart(settings(record.config), whole["recipe"])
    fresh = {(run["label"], run["seed"]): run for run in more["runs"]}
    runs = [fresh.pop((run["label"], run["seed"]), run) for run in whole["runs"]]
    runs += fresh.values()
    order = [*dict.fromkeys(run["label"] for run in runs)]  # new methods last
    whole["runs"] = sorted(runs, key=lambda run: order.index(run["label"]))
    path.write_text(json.dumps(whole) + "\n")
    whole["over_seeds"] = over_seeds(groups(saved(path)))
    if before := whole.get("paired"):
        whole["paired"] = Against(before["against"], tuple(before["tested"])).plain(whole["runs"])
    path.write_text(json.dumps(whole) + "\n")


def mend_rows(path: Path) -> None:
    """Write rows again; their rounded scores are shares of all test samples."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if row.get("summary", {}).get("rested"):
            count, curve = sum(row["clients"]["test_samples"]), row["curve"]
            exact = [100 * round(score * count / 100) / count for score in curve["accuracy"]]
            row["summary"] = mended(row["summary"], row["config"], [*zip(curve["round"], exact, strict=True)])
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _told(item: dict[str, object] | None, key: str, ends: str) -> str:
    if item is None or item[ends] is None:
        return ""
    low, high = item[ends]
    return f"{item[key]:+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    flag, paths = sys.argv[1], [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    if flag == "--join":
        join(*paths)
    for path in () if flag == "--join" else paths:
        if flag == "--late":
            (mend_rows if path.suffix == ".jsonl" else mend)(path)
        else:
            path.with_suffix(".md").write_text(sheet(path))
