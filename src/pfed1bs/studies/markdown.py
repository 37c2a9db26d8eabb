"""The tables of `pfed1bs reproduce` for a document."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from pfed1bs.facts import capabilities
from pfed1bs.report.groups import Spread
from pfed1bs.report.records import Json
from pfed1bs.report.results import significant
from pfed1bs.report.statistics import MARGIN, Difference, Verdict
from pfed1bs.runs.late import LATE
from pfed1bs.studies import amounts
from pfed1bs.studies.cells import Entered, between, told
from pfed1bs.studies.contrasts import rivals
from pfed1bs.studies.pictured import LAST
from pfed1bs.studies.plan import Target

HOLM, WITHIN = "p if equal (Holm)", f"p if {MARGIN} apart"  # heads of what a difference was tested for


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
