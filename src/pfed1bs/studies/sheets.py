"""Tables and pictures of `pfed1bs reproduce`, from rows alone, with the paper's numbers beside ours."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from pfed1bs.facts.printed import SPELT
from pfed1bs.report.groups import Group, groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.report.records import Json
from pfed1bs.report.style import headed, look
from pfed1bs.runs.environment import environment, starts
from pfed1bs.runs.folder import written
from pfed1bs.studies import amounts
from pfed1bs.studies.cells import Entered, contrast
from pfed1bs.studies.contrasts import cells, rivals, shifts
from pfed1bs.studies.finished import Finished, record_of, table
from pfed1bs.studies.markdown import markdown, ticked
from pfed1bs.studies.pictured import AGAINST, DRAWN
from pfed1bs.studies.plan import Planned, Target
from pfed1bs.studies.sweeps import against


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
        {"part": part, "of": ours, "minus": theirs, **contrast(item)}
        for (part, ours, theirs), item in (rivals(target, found) | shifts(target, found)).items()
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
            head = ", ".join(filter(None, (SPELT.get(data, data), amounts.subset(data, own))))
            draw(name, own, folder / f"{data}-{name}.svg", made, head)
    return found


def draw(name: str, rows: Sequence[Json], path: Path, made: str = "", head: str = "") -> None:
    """A picture of the report, or against an option, where there is something to draw."""
    found = groups([record_of(row) for row in rows])
    option = name.removeprefix(AGAINST)
    picture = DRAWN[name](shown_of(named(found))) if option == name else against(option, found)
    if picture:
        if head:
            with look():
                headed(picture.figure, head)
        picture.write(path, made)


def named(found: Sequence[Group]) -> list[Group]:
    """Groups that options tell apart, under the labels of the rows behind them: short, and those of the table."""
    rows = [{str(record.path) for record in group.records} for group in found]
    both = [*zip(found, rows, strict=True)]
    labels = [min(own) if len(own) == 1 and " " in group.label else group.label for group, own in both]
    if len({*labels}) < len(labels):
        return [*found]
    return [replace(group, label=label) for group, label in zip(found, labels, strict=True)]
