"""Tables and pictures of `pfed1bs reproduce`, from rows alone, with the paper's numbers beside ours."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import hypot, isfinite
from pathlib import Path
from typing import cast

from pfed1bs.facts import capabilities, costs
from pfed1bs.report.drawn import PICTURES
from pfed1bs.report.groups import Spread, groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.plots import LOGGED
from pfed1bs.report.records import Json
from pfed1bs.report.results import significant
from pfed1bs.report.statistics import MARGIN, Difference
from pfed1bs.runs.environment import environment
from pfed1bs.runs.folder import written
from pfed1bs.studies.finished import Finished, record_of, table
from pfed1bs.studies.plan import Planned, Target
from pfed1bs.studies.sweeps import against

CLOSE = 1.0  # points; nearer, or within two deviations of the difference, a cell counts as reproduced
SUBSETS = {"cifar100": "20,000 of 60,000 pictures", "svhn": "20,000 of 99,289 pictures, classes balanced"}
OURS = {"zSignFed": "zsign"}  # other names are the paper's in small letters, without hyphens in those of data sets
COSTS = {
    (OURS.get(cell.method, cell.method.lower()), cell.dataset.lower().replace("-", "")): cell
    for cell in costs.paper_table()
}
LAST = {**LOGGED, "loss": "training loss"}  # of curves
NUMBERS = (
    "accuracy accuracy_late accuracy_global accuracy_tuned mib_per_round total_mib ratio_to_fedavg seconds rounds"
).split()


@dataclass(frozen=True)
class Entered:
    """A cell: the runs of a method with one setting."""

    part: str
    label: str
    data: str
    wanted: int  # seeds
    rows: Sequence[Json]
    paper: Sequence[float] | None = None  # mean and deviation
    base: Sequence[Json] = ()  # the runs that it is compared with
    logged: Sequence[str] = ()  # diagnostics that it has

    def spread(self, key: str) -> Spread | None:
        """A number of the summaries over seeds, or a diagnostic; None where a run has none, or there is none."""
        values = [_end(row, key) if key in self.logged else _summed(row, key) for row in self.rows]
        found = [float(str(value)) for value in values if value is not None]
        return Spread.of(found, key) if found and len(found) == len(values) and all(map(isfinite, found)) else None

    @property
    def ours(self) -> str:
        """What came out."""
        if any("diverged" in row for row in self.rows):
            return "diverged"
        return told(self.spread("accuracy")) if self.rows else "not run"

    @property
    def verdict(self) -> str:
        """How it compares with the paper's."""
        value = self.spread("accuracy")
        if value is None or self.paper is None:
            return ""
        apart, deviation = value.mean - self.paper[0], hypot(value.deviation or 0, *self.paper[1:])
        if abs(apart) <= max(CLOSE, 2 * deviation):
            return "reproduced"
        return f"differs: {abs(apart):.2f} {'higher' if apart > 0 else 'lower'}"

    @property
    def cost(self) -> str:
        """What the paper prints for a round, and whether that can be."""
        printed = COSTS.get((self.label.partition(" ")[0], self.data)) if self.paper else None
        return "" if printed is None else printed.printed + (" cannot be right" if printed.wrong else "")

    @property
    def difference(self) -> Difference | None:
        """Seed by seed to the runs it is compared with, over the seeds that both have; None with fewer than two."""
        ours, theirs = _by_seed(self.rows), _by_seed(self.base)
        values = tuple(ours[seed] - theirs[seed] for seed in sorted({*ours} & {*theirs}))
        return Difference(self.label, "", values) if len(values) > 1 and self.rows is not self.base else None

    @property
    def apart(self) -> str:
        """The difference in words: mean, interval, and how sure it is that it lies within the margin."""
        if self.difference is None:
            return ""
        low, high = self.difference.interval()
        return f"{self.difference.mean:+.2f} ({low:+.2f} to {high:+.2f}), p {self.difference.equal():.3f}"

    @property
    def facts(self) -> Json:
        """Everything, for a file."""
        found = {key: value for key in (*NUMBERS, *self.logged) if (value := self.spread(key))}
        about: Json = {"part": self.part, "label": self.label, "data": self.data, "wanted": self.wanted}
        about |= {"seeds": len(self.rows), **{key: asdict(value) for key, value in found.items()}}
        if item := self.difference:
            about["difference"] = {"mean": item.mean, "interval": item.interval(), "p": item.different()}
            about["equal_within"] = {"margin": MARGIN, "p": item.equal()}
        return {**about, "paper": self.paper, "verdict": self.verdict}


def cells(target: Target, runs: Sequence[Planned], known: Finished) -> list[Entered]:
    """The cells of a table, in the order of its recipe."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for run in runs:
        found.setdefault((run.part, run.label), []).append(run)
    rows = {place: [row for run in own if (row := known.find(run))] for place, own in found.items()}
    made = []
    for (part, label), own in found.items():
        data, base = own[0].entry.config.data.name, rows.get((part, target.against), ())
        paper = target.paper.get(label, {}).get(data)
        made.append(Entered(part, label, data, len(own), rows[part, label], paper, base, target.logged))
    return made


def write(target: Target, runs: Sequence[Planned], known: Finished, folder: Path) -> list[Entered]:
    """Table, rows as CSV, and pictures into a folder; the cells."""
    about: Json = {"title": target.title, "command": f"pfed1bs reproduce {target.name}"}
    if target.ticks:
        lines, path = ticked(target), folder / "table.md"
        if path.exists() and path.read_text() == lines:  # and was made by the commit that is named beside it
            return []
        folder.mkdir(parents=True, exist_ok=True)
        written(path, lines)
        here = environment("cpu")
        about |= {key: [here[key]] for key in ("commit", "device", "torch")} | {"missing": 0}
        written(folder / "table.json", json.dumps({**about, "lines": lines.splitlines()}, indent=1) + "\n")
        return []
    found = cells(target, runs, known)
    rows = [row for cell in found for row in cell.rows]
    if target.pictures and not rows:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("commit", "device", "torch"):
        about[name] = sorted({str(cast(Json, row["env"])[name]) for row in rows})
    about |= {"finished": len(rows), "missing": len(runs) - len(rows), "cells": [cell.facts for cell in found]}
    written(folder / "table.json", json.dumps(about, indent=1) + "\n")
    written(folder / "table.md", markdown(target, found))
    if rows and not target.of:
        written(folder / "runs.csv", table(rows))
    for data in dict.fromkeys(cell.data for cell in found):
        own = [row for cell in found if cell.data == data for row in cell.rows if "summary" in row]
        for name in target.pictures if own else ():
            draw(name, own, folder / f"{data}-{name}.svg")
    return found


def draw(name: str, rows: Sequence[Json], path: Path) -> None:
    """A picture of the report, or against an option, where there is something to draw."""
    found = groups([record_of(row) for row in rows])
    option = name.removeprefix("against-")
    picture = PICTURES[name](shown_of(found)) if option == name else against(option, found)
    if picture:
        picture.write(path)


def markdown(target: Target, found: Sequence[Entered]) -> str:
    """The table for a document: one for every data set, or one line for every setting with methods across."""
    parts = list(dict.fromkeys(cell.part for cell in found))
    if target.across == "methods":
        labels = list(dict.fromkeys(cell.label for cell in found))
        at = {(cell.part, cell.label): cell.ours for cell in found}
        run = [part for part in parts if any(cell.rows for cell in found if cell.part == part)]
        lines = [[part, *(at.get((part, label), "") for label in labels)] for part in run]
        left = f"Settings that were not run: {len(parts) - len(run)} of {len(parts)}.\n" if run != parts else ""
        return "\n".join(filter(None, [_table(["setting", *labels], lines) if run else "", left]))
    shared = any(cell.spread("accuracy_global") for cell in found)
    heads = ["method", "ours, %", *(["shared model, %"] if shared else [])]
    heads += ["paper, %", "verdict", "paper, MB"] if target.paper else []
    heads += ["MiB in all" if target.totals else "MiB a round", "seeds", *(["seconds a run"] if target.times else [])]
    heads += [LAST[key] for key in target.logged]
    heads += [f"minus `{target.against}`, p of within {MARGIN}"] if target.against else []
    texts = []
    for part in parts:
        own = [cell for cell in found if cell.part == part]
        subset = f" (a subset: {SUBSETS[own[0].data]})" if own[0].data in SUBSETS else ""
        texts.append(f"**{part}**{subset}\n\n{_table(heads, [_line(target, cell, shared) for cell in own])}")
    return "\n".join(texts)


def ticked(target: Target) -> str:
    """The table of capabilities, ours beside the paper's ticks."""
    lines = []
    for row in capabilities.mlp():
        own = "".join(
            "x" if tick else "-"
            for tick in (row.fewer(row.up), row.up.one_bit, row.fewer(row.down), row.down.one_bit, row.personalises)
        )
        paper = target.ticks.get(row.method, "")
        verdict = "" if not paper else "reproduced" if own == paper else "differs"
        lines.append([f"`{row.method}`", *(f"`{mark}`" if mark else "" for mark in (own, paper)), verdict])
    return _table(["method", "ours", "paper", "verdict"], lines)


def told(value: Spread | None) -> str:
    """Mean and deviation."""
    if value is None:
        return ""
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" \u00b1 {value.deviation:.2f}")


def _line(target: Target, cell: Entered, shared: bool) -> list[str]:
    mib, seconds = cell.spread("total_mib" if target.totals else "mib_per_round"), cell.spread("seconds")
    paper = told(Spread(cell.paper[0], cell.paper[1])) if cell.paper else ""
    line = [f"`{cell.label}`", cell.ours, *([told(cell.spread("accuracy_global"))] if shared else [])]
    line += [paper, cell.verdict, cell.cost] if target.paper else []
    line += [significant(mib.mean, 3) if mib else "", f"{len(cell.rows)} of {cell.wanted}"]
    line += [f"{seconds.mean:.1f}" if seconds else ""] if target.times else []
    ends = [cell.spread(key) for key in target.logged]
    line += [f"{value.mean:.4f}" if value else "" for value in ends]
    return [*line, *([cell.apart] if target.against else [])]


def _summed(row: Json, key: str) -> object:
    return cast(Json, row.get("summary", {})).get(key)


def _end(row: Json, key: str) -> object:
    """The last value of a diagnostic."""
    return (cast(dict[str, list[object]], row.get("curve", {})).get(key) or [None])[-1]


def _by_seed(rows: Sequence[Json]) -> dict[int, float]:
    """The accuracies of runs that did not diverge."""
    found = [cast(Json, row["summary"]) for row in rows if "summary" in row]
    return {int(str(summary["seed"])): float(str(summary["accuracy"])) for summary in found}


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
