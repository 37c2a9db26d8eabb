"""Tables and pictures of `pfed1bs reproduce`, from rows alone, with the paper's numbers beside ours."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import cast

from pfed1bs.facts import capabilities
from pfed1bs.report.drawn import PICTURES
from pfed1bs.report.groups import Group, Spread, groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.plots import LOGGED
from pfed1bs.report.records import Json
from pfed1bs.report.results import significant
from pfed1bs.report.statistics import MARGIN, Against, Difference, Verdict
from pfed1bs.runs.environment import environment, starts
from pfed1bs.runs.folder import written
from pfed1bs.runs.late import LATE
from pfed1bs.studies import amounts
from pfed1bs.studies.cells import Entered, between, told
from pfed1bs.studies.facets import METHODS
from pfed1bs.studies.falls import falls
from pfed1bs.studies.finished import Finished, record_of, table
from pfed1bs.studies.plan import Planned, Target
from pfed1bs.studies.sweeps import against

HOLM, WITHIN = "p if equal (Holm)", f"p if {MARGIN} apart"  # heads of what a difference was tested for
DRAWN = {**PICTURES, **METHODS, "falls": falls}
LAST = {**LOGGED, "loss": "training loss"}  # of curves


def cells(target: Target, runs: Sequence[Planned], known: Finished) -> list[Entered]:
    """The cells of a table, in the order of its recipe."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for run in runs:
        found.setdefault((run.part, run.label), []).append(run)
    rows = {place: [row for run in own if (row := known.find(run))] for place, own in found.items()}
    beside = {part: compared(target, rows, part) for part, _ in found}
    made = []
    for (part, label), own in found.items():
        data, place = own[0].entry.config.data.name, (part, label)
        paper, verdict = target.paper.get(label, {}).get(data), beside[part].get(label)
        made.append(Entered(*place, data, len(own), rows[place], paper, verdict, target.logged, target.peaks))
    return made


def compared(target: Target, rows: Mapping[tuple[str, str], Sequence[Json]], part: str) -> dict[str, Verdict]:
    """The labels of a part beside the one that they are compared with, over the seeds that both have."""
    runs: list[Json] = [
        {**cast(Json, row["summary"]), "label": label}
        for (within, label), own in rows.items()
        for row in own
        if within == part and not any("diverged" in other for other in own)
    ]
    seeds = {run["seed"] for run in runs if run["label"] == target.against}
    if not seeds:
        return {}
    there = {run["label"] for run in runs if run["seed"] in seeds}
    tested = tuple(label for label in target.tested if label in there) if target.tested else None
    return {item.method: item for item in Against(target.against, tested).verdicts(runs)}


def write(target: Target, runs: Sequence[Planned], known: Finished, folder: Path, quick: bool = False) -> list[Entered]:
    """Table, rows as CSV, and pictures into a folder; the cells."""
    about: Json = {"title": target.title, "command": f"pfed1bs reproduce {target.name}{' --quick' * quick}"}
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
    amounts.agree(rows)
    if not rows:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    begun = [start for row in rows for start in starts(cast(Json, row["env"]))]
    for name in ("commit", "device", "torch"):
        about[name] = sorted({str(start[name]) for start in begun})
    about |= {"finished": len(rows), "missing": len(runs) - len(rows), "cells": [cell.facts for cell in found]}
    apart = [
        {"part": part, "of": ours, "minus": theirs, "mean": it.difference, "seeds": it.seeds, "interval": it.interval}
        for (part, ours, theirs), it in (rivals(target, found) | shifts(target, found)).items()
    ]
    about |= {"rivals": apart} if apart else {}
    written(folder / "table.json", json.dumps(about, indent=1) + "\n")
    made = f"{about['command']}; commits {', '.join(sorted({str(start['commit']) for start in begun}))}"
    written(folder / "table.md", f"{markdown(target, found)}<!-- {made} -->\n")
    if rows and not target.of:
        written(folder / "runs.csv", table(rows))
    for data in dict.fromkeys(cell.data for cell in found):
        own = [row for cell in found if cell.data == data for row in cell.rows if "summary" in row]
        for name in target.pictures if own else ():
            draw(name, own, folder / f"{data}-{name}.svg", made)
    return found


def draw(name: str, rows: Sequence[Json], path: Path, made: str = "") -> None:
    """A picture of the report, or against an option, where there is something to draw."""
    found = groups([record_of(row) for row in rows])
    option = name.removeprefix("against-")
    picture = DRAWN[name](shown_of(named(found))) if option == name else against(option, found)
    if picture:
        picture.write(path, made)


def named(found: Sequence[Group]) -> list[Group]:
    """Groups that options tell apart, under the labels of the rows behind them: short, and those of the table."""
    rows = [{str(record.path) for record in group.records} for group in found]
    both = [*zip(found, rows, strict=True)]
    labels = [min(own) if len(own) == 1 and " " in group.label else group.label for group, own in both]
    if len({*labels}) < len(labels):
        return [*found]
    return [replace(group, label=label) for group, label in zip(found, labels, strict=True)]


def markdown(target: Target, found: Sequence[Entered]) -> str:
    """The table for a document: one for every data set, or one line for every setting with methods across."""
    parts = list(dict.fromkeys(cell.part for cell in found))
    if target.across == "methods":
        return _across(target, found, parts)
    shared = any(cell.spread("accuracy_global") for cell in found)
    heads = ["method", "ours, %", *(["shared model, %"] if shared else [])]
    heads += ["paper, %", "verdict", "paper, MB"] if target.paper else []
    heads += ["MiB in all" if target.totals else "MiB a round", "seeds", *(["seconds a run"] if target.times else [])]
    heads += [LAST[key] for key in target.logged]
    heads += ["highest, %", "after rounds", "from there to the end"] if target.peaks else []
    heads += [f"minus `{target.against}`", HOLM, WITHIN, f"last {LATE}, minus it"] if target.against else []
    texts = []
    for part in parts:
        own = [cell for cell in found if cell.part == part]
        rounded = any(cast(Json, row.get("config", {})).get("tf32") for cell in own for row in cell.rows)
        part_of = amounts.subset(own[0].data, [row for cell in own for row in cell.rows])
        remarks = [*filter(None, [part_of, "products in tf32" if rounded else ""])]
        shown = [cell for cell in own if cell.rows or cell.paper] if any(cell.rows for cell in own) else []
        left = ", ".join(f"`{cell.label}`" for cell in own if cell not in shown)
        told = [_table(heads, [_line(target, cell, shared) for cell in shown])] if shown else []
        told += [f"Not run: {left}.\n"] if left else []
        said = f" ({'; '.join(remarks)})" if remarks else ""
        texts.append("\n".join([f"**{part}**{said}\n", *told]))
    return "\n".join(texts)


def _across(target: Target, found: Sequence[Entered], parts: Sequence[str]) -> str:
    """A line for every setting and a column for every method, then the same of differences."""
    at = {(cell.part, cell.label): cell for cell in found}
    labels = list(dict.fromkeys(cell.label for cell in found if cell.rows))
    empty = Entered("", "", "", 0, ())  # where a setting leaves a method out
    run = list(dict.fromkeys(cell.part for cell in found if cell.rows))
    texts = []
    if run:
        lines = [_means(part, [at.get((part, label), empty) for label in labels]) for part in run]
        texts.append(_table(["setting", *labels, "seeds"], lines))
    if run and target.against:
        others = [label for label in labels if label != target.against]
        lines = [[part, *(_apart(at.get((part, label), empty)) for label in others)] for part in run]
        texts.append(_table([f"minus `{target.against}`; {HOLM}, {WITHIN}", *others], lines))
        lines = [[part, *(at.get((part, label), empty).apart[-1] for label in others)] for part in run]
        texts.append(_table([f"last {LATE}, minus `{target.against}`", *others], lines))
    apart = rivals(target, found)
    for ours, theirs in target.rivals.items():
        lines = [[part, *(_told(apart.get((part, ours, label))) for label in theirs)] for part in run]
        texts.append(_table([f"`{ours}` minus", *theirs], lines))
    unrun = ", ".join(f"`{label}`" for label in dict.fromkeys(cell.label for cell in found) if label not in labels)
    left = f"Settings that were not run: {len(parts) - len(run)} of {len(parts)}.\n" if run != parts else ""
    return "\n".join(filter(None, [*texts, left, f"Not run anywhere: {unrun}.\n" if run and unrun else ""]))


def _means(part: str, cells: Sequence[Entered]) -> list[str]:
    """What came out over the seeds that all methods of a setting have: others would not be comparable."""
    ended = [{_seed(row) for row in cell.rows if "summary" in row} for cell in cells]
    common, wanted = set.intersection(*filter(None, ended)) if any(ended) else set(), max(cell.wanted for cell in cells)
    line = []
    for cell in cells:
        rows = [row for row in cell.rows if "summary" not in row or _seed(row) in common]
        none = "no common seed" if cell.rows else cell.ours if cell.wanted else ""
        line.append(replace(cell, rows=rows).ours if rows else none)
    return [part, *line, f"{len(common)} of {wanted}"]


def _seed(row: Json) -> object:
    return cast(Json, row["summary"]).get("seed")


def rivals(target: Target, found: Sequence[Entered]) -> dict[tuple[str, str, str], Verdict]:
    """Labels beside their rivals in every part, by part and both labels."""
    rows = {(cell.part, cell.label): cell.rows for cell in found}
    pairs = [(ours, theirs) for ours, own in target.rivals.items() for theirs in own]
    made = {}
    for part in dict.fromkeys(cell.part for cell in found):
        for ours, theirs in pairs:
            if verdict := compared(replace(target, against=theirs, tested=()), rows, part).get(ours):
                made[part, ours, theirs] = verdict
    return made


def shifts(target: Target, found: Sequence[Entered]) -> dict[tuple[str, str, str], Verdict]:
    """Every label with one setting beside itself with another, by data set and both: what the setting changes."""
    made = {}
    for one, other in combinations([*reversed(found)] if target.shifts else (), 2):
        if (one.label, one.data) == (other.label, other.data):
            names = [f"{cell.label} {cell.part.removeprefix(cell.data).strip()}" for cell in (one, other)]
            rows = {("", name): cell.rows for name, cell in zip(names, (one, other), strict=True)}
            if verdict := compared(replace(target, against=names[1], tested=()), rows, "").get(names[0]):
                made[one.data, names[0], names[1]] = verdict
    return made


def _told(item: Verdict | None) -> str:
    """A difference, its interval and the number of its seeds."""
    if item is None:
        return ""
    return f"{between(item.difference, item.interval)}; {item.seeds} seed{'s' if item.seeds > 1 else ''}"


def _apart(cell: Entered) -> str:
    """A difference with the number of its seeds; of one seed it has no interval."""
    if cell.beside is None:
        return ""
    seeds = cell.beside.seeds
    difference, equal, far, _ = cell.apart
    chances = f"p {equal or '-'}, {far or '-'}" if seeds > 1 else ""
    return "; ".join(filter(None, [difference, chances, f"{seeds} seed{'s' if seeds > 1 else ''}"]))


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


def _line(target: Target, cell: Entered, shared: bool) -> list[str]:
    mib, seconds = cell.spread("total_mib" if target.totals else "mib_per_round"), cell.spread("seconds")
    paper = told(Spread(cell.paper[0], cell.paper[1])) if cell.paper else ""
    line = [f"`{cell.label}`", cell.ours, *([told(cell.spread("accuracy_global"))] if shared else [])]
    line += [paper, cell.verdict, cell.cost] if target.paper else []
    line += [significant(mib.mean, 3) if mib else "", f"{len(cell.rows)} of {cell.wanted}"]
    line += [f"{seconds.mean:.1f}" if seconds else ""] if target.times else []
    ends = [cell.spread(key) for key in target.logged]
    line += [f"{value.mean:.4f}" if value else "" for value in ends]
    if target.peaks:
        at, best = cell.highest or ("", None)
        line += [told(best), str(at), _fallen(cell.lost) if cell.lost else ""]
    return [*line, *(cell.apart if target.against else [])]


def _fallen(lost: Difference) -> str:
    return between(lost.mean, lost.interval() if len(lost.values) > 1 else None)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rule, *lines))
