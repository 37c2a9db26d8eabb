"""The cells of a table from its rows, and the labels that they are compared with, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import cast

from pfed1bs.report.records import Json
from pfed1bs.report.statistics import Against, Verdict, holm
from pfed1bs.studies.cells import Entered
from pfed1bs.studies.finished import Finished
from pfed1bs.studies.plan import Planned, Target


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


def rivals(target: Target, found: Sequence[Entered]) -> dict[tuple[str, str, str], Verdict]:
    """Labels beside their rivals in every part, by part and both labels; p is corrected over those of a label there."""
    rows = {(cell.part, cell.label): cell.rows for cell in found}
    made: dict[tuple[str, str, str], Verdict] = {}
    for part, (ours, own) in product(dict.fromkeys(cell.part for cell in found), target.rivals.items()):
        alone = {
            theirs: compared(replace(target, against=theirs, tested=(ours,)), rows, part).get(ours) for theirs in own
        }
        beside = {theirs: verdict for theirs, verdict in alone.items() if verdict}
        tested = {theirs: verdict.p for theirs, verdict in beside.items() if verdict.p is not None}
        p = dict(zip(tested, holm([*tested.values()]), strict=True))
        made |= {(part, ours, theirs): replace(verdict, p=p.get(theirs)) for theirs, verdict in beside.items()}
    return made


def shifts(target: Target, found: Sequence[Entered]) -> dict[tuple[str, str, str], Verdict]:
    """Every label with one setting beside itself with another, by data set and both: what the setting changes."""
    made = {}
    for one, other in combinations([*reversed(found)] if target.shifts else (), 2):
        if (one.label, one.data) == (other.label, other.data):
            names = [f"{cell.label} {cell.part.removeprefix(cell.data).strip()}" for cell in (one, other)]
            rows = {("", name): cell.rows for name, cell in zip(names, (one, other), strict=True)}
            if verdict := compared(replace(target, against=names[1], tested=()), rows, "").get(names[0]):
                made[one.data, names[0], names[1]] = replace(verdict, p=None)  # of many: none is tested
    return made
