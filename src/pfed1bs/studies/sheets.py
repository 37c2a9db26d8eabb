"""Tables and pictures of `pfed1bs reproduce`, from rows alone, with the paper's numbers beside ours."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import hypot
from pathlib import Path
from typing import cast

from pfed1bs.report.drawn import PICTURES
from pfed1bs.report.groups import Spread, groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.records import Json
from pfed1bs.report.results import significant
from pfed1bs.runs.folder import written
from pfed1bs.studies.finished import Finished, record_of, table
from pfed1bs.studies.plan import Planned, Target

CLOSE = 1.0  # points; nearer, or within two deviations of the difference, a cell counts as reproduced
SUBSETS = {"cifar100": "20,000 of 60,000 pictures", "svhn": "20,000 of 99,289 pictures, classes balanced"}


@dataclass(frozen=True)
class Entered:
    """A cell: the runs of a method with one setting."""

    part: str
    label: str
    data: str
    wanted: int  # seeds
    rows: list[Json]
    paper: Sequence[float] | None  # mean and deviation

    def spread(self, key: str) -> Spread | None:
        """A number of the summaries over seeds; None where a run has none, or there is none."""
        values = [cast(Json, row.get("summary", {})).get(key) for row in self.rows]
        return Spread.of([float(str(value)) for value in values]) if values and None not in values else None

    @property
    def ours(self) -> str:
        """What came out."""
        if any("diverged" in row for row in self.rows):
            return "diverged"
        return _told(self.spread("accuracy")) if self.rows else "not run"

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
    def facts(self) -> Json:
        """Everything, for a file."""
        keys = ("accuracy", "accuracy_late", "accuracy_global", "accuracy_tuned", "mib_per_round", "total_mib")
        found = {key: self.spread(key) for key in (*keys, "ratio_to_fedavg", "seconds", "rounds")}
        numbers = {key: asdict(value) for key, value in found.items() if value}
        told = {"part": self.part, "label": self.label, "data": self.data, "seeds": len(self.rows)}
        return {**told, "wanted": self.wanted, **numbers, "paper": self.paper, "verdict": self.verdict}


def cells(target: Target, runs: Sequence[Planned], rows: Finished) -> list[Entered]:
    """The cells of a table, in the order of its recipe."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for run in runs:
        found.setdefault((run.part, run.label), []).append(run)
    made = []
    for (part, label), own in found.items():
        data, known = own[0].entry.config.data.name, [row for run in own if (row := rows.find(run))]
        made.append(Entered(part, label, data, len(own), known, target.paper.get(label, {}).get(data)))
    return made


def write(target: Target, runs: Sequence[Planned], rows: Finished, folder: Path) -> list[Entered]:
    """Table, rows as CSV, and pictures into a folder; the cells."""
    found = cells(target, runs, rows)
    known = [row for cell in found for row in cell.rows]
    folder.mkdir(parents=True, exist_ok=True)
    envs = [cast(Json, row["env"]) for row in known]
    about: Json = {"title": target.title, "command": f"pfed1bs reproduce {target.name}"}
    for name in ("commit", "device", "torch"):
        about[name] = sorted({str(env[name]) for env in envs})
    about |= {"runs": len(known), "missing": len(runs) - len(known), "cells": [cell.facts for cell in found]}
    written(folder / "table.json", json.dumps(about, indent=1) + "\n")
    written(folder / "table.md", markdown(target, found))
    if not target.of:
        written(folder / "runs.csv", table(known))
    for name in target.pictures:
        for data in dict.fromkeys(cell.data for cell in found):
            draw(name, [row for cell in found if cell.data == data for row in cell.rows], folder / f"{data}-{name}.svg")
    return found


def draw(name: str, rows: Sequence[Json], path: Path) -> None:
    """A picture of the report, where there is something to draw."""
    records = [record_of(row) for row in rows if "summary" in row]
    picture = PICTURES[name](shown_of(groups(records))) if records else None
    if picture:
        picture.write(path)


def markdown(target: Target, found: Sequence[Entered]) -> str:
    """The table for a document: one for every data set, or one line for every setting with methods across."""
    if target.across == "methods":
        labels = list(dict.fromkeys(cell.label for cell in found))
        at = {(cell.part, cell.label): cell.ours for cell in found}
        lines = [[part, *(at.get((part, label), "") for label in labels)] for part in _parts(found)]
        return _table(["setting", *labels], lines)
    texts = []
    for part in _parts(found):
        own = [cell for cell in found if cell.part == part]
        heads = ["method", "ours, %", *(["paper, %", "verdict"] if target.paper else []), "MiB a round", "seeds"]
        lines = [_line(cell, bool(target.paper)) for cell in own]
        subset = f" (a subset: {SUBSETS[own[0].data]})" if own[0].data in SUBSETS else ""
        texts.append(f"**{part}**{subset}\n\n{_table(heads, lines)}")
    return "\n".join(texts)


def _parts(found: Sequence[Entered]) -> list[str]:
    return list(dict.fromkeys(cell.part for cell in found))


def _line(cell: Entered, beside: bool) -> list[str]:
    mib, paper = cell.spread("mib_per_round"), Spread(cell.paper[0], cell.paper[1]) if cell.paper else None
    told = [_told(paper), cell.verdict] if beside else []
    amount = significant(mib.mean, 3) if mib else ""
    return [f"`{cell.label}`", cell.ours, *told, amount, f"{len(cell.rows)} of {cell.wanted}"]


def _told(value: Spread | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" \u00b1 {value.deviation:.2f}")


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
