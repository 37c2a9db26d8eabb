"""A table of `pfed1bs compare --against NAME` for a document: what table.json holds, one line for every method.

python tools/sheet.py results/mnist-all-r.json        writes results/mnist-all-r.md
"""

import json
import sys
from pathlib import Path

from pfed1bs.report.groups import Spread
from pfed1bs.report.records import table
from pfed1bs.report.results import significant
from pfed1bs.report.statistics import scores

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
        lines.append([*own, *differences, _chance(item), significant(mib.mean, 3), span])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _told(item: dict[str, object] | None, key: str, ends: str) -> str:
    if item is None or item[ends] is None:
        return ""
    low, high = item[ends]
    return f"{item[key]:+.2f} ({low:+.2f} to {high:+.2f})"


def _chance(item: dict[str, object] | None) -> str:
    p = item and item["p"]
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).with_suffix(".md").write_text(sheet(Path(name)))
