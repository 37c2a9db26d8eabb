"""Numbers in sentences and tables of README and docs, filled in from results/ as the marker behind each says.

python tools/quotes.py            says which lines have a number that is not what its file has
python tools/quotes.py --write    writes what the files have

A marker names a file and labels in it; pages do not show it. Three kinds:

    0.39 above it (0.31 to 0.47) <!-- = mnist-fresh: apfl rest=0 - pfed1bs-delta -->    a difference and its interval,
                                                                          without one only where there is one seed
    93.82 \u00b1 0.43 <!-- = mnist-all-r: pfed1bs-delta -->    a mean; a deviation where one stands
    175 <!-- = mnist-all-r: fedavg-ft / pfed1bs-delta, total_mib -->    a ratio of means

mnist-all-r is results/mnist-all-r.json. `, total_mib` takes that number of the runs in place of their accuracy, and
`; p = 0.253` behind an interval is filled in too. Of a file with several data sets one is named
(`rest/third-mlp fmnist: ...`), of a folder of `pfed1bs reproduce` a part of its table (`table-main mnist: ...`), whose
cells have more: `, highest.after`, `, since_highest` (a difference), `, equal_within.p`, `, seeds`, and without an
interval `, difference.mean`, `, difference.late` and `, difference.p_holm` beside what the table compares with.
Digits, a sign + and commas between thousands stay as they are printed.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import sources

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.report.groups import Spread
from pfed1bs.report.statistics import paired, scores
from pfed1bs.runs.recipes import FOLDER as RECIPES
from pfed1bs.studies import plan

MARKER = re.compile(r"<!-- =.*?-->", re.DOTALL)
ASKED = re.compile(
    r"<!-- = (?P<file>[\w./-]+)(?: (?P<part>[^>]+?))?: (?P<label>[^>]+?)"
    r"(?: (?P<sign>[-/]) (?P<other>[^>]+?))?(?:, (?P<key>[\w.]+))? -->"
)
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
DECIMAL = r"(?<![\w.,])[-+]?\d[\d,]*\.\d+"
WORDS = rf"(?:(?!{DECIMAL})[^|]){{0,80}}?"
SHAPES = {  # of what ends at a marker, by how many numbers may be there
    4: re.compile(rf"({DECIMAL}){WORDS}({DECIMAL}) to ({DECIMAL})(?:; p = ({DECIMAL}))?{WORDS}$"),
    2: re.compile(rf"({NUMBER})(?: \u00b1 ({NUMBER}))? ?$"),
    1: re.compile(rf"({NUMBER}) ?$"),
}
Values = tuple[float | None, ...]  # for the numbers of a shape
Read = tuple[dict[str, Values], dict[tuple[str, str], Values]]  # by label, and by both labels of a difference


def filled(page: str, text: str) -> str:
    """A page with what its markers ask for in front of them."""
    new, after = "", 0
    for marker in MARKER.finditer(text):
        paragraph = max(after, text.rfind("\n\n", 0, marker.start()) + 1)
        try:
            quoted = _mended(text[paragraph : marker.start()], marker[0])
        except UserError as error:
            raise UserError(f"{page}: {marker[0]}: {error.message}", error.hint) from None
        new += text[after:paragraph] + quoted + marker[0]
        after = marker.end()
    return new + text[after:]


def _mended(text: str, marker: str) -> str:
    """What stands before a marker, with the numbers at its end as they should be."""
    asked = ASKED.fullmatch(marker)
    if not asked:
        raise UserError("cannot be read", "write <!-- = FILE[ PART]: LABEL[ - LABEL][, NUMBER OF THE RUNS] -->")
    found, values = quoted(text, asked)
    for place in range(found.re.groups, 0, -1):  # the last first, so that the others stay where they are
        if found[place] is not None:
            start, end = found.span(place)
            text = text[:start] + _like(found[place], values[place - 1]) + text[end:]
    return text


def quoted(text: str, asked: re.Match[str]) -> tuple[re.Match[str], Values]:
    """The numbers at the end of a text, and those that a marker behind it asks for."""
    values = wanted(asked)
    found = SHAPES[len(values)].search(text)
    if len(values) == max(SHAPES) and values[1] is None:
        if found:
            raise UserError(f"the file has no interval of {asked['label']} - {asked['other']}", "leave it out")
        found = SHAPES[1].search(text)
    if not found:
        raise UserError("no such numbers stand before it", "put it directly behind them")
    return found, values


def _like(old: str, value: float | None) -> str:
    """A number in the way the one that it replaces is printed; never -0.00."""
    if value is None:
        raise UserError(f"the file has nothing in place of {old}", "take it out of the page")
    plus, comma = "+" if old.startswith("+") else "", "," if "," in old else ""
    return f"{value:{plus}z{comma}.{len(old.partition('.')[2])}f}"


def wanted(asked: re.Match[str]) -> Values:
    """What a marker asks for: mean and deviation, a ratio, or a difference with its interval and p."""
    file, part, label, sign, other, key = asked.groups()
    single, apart = known(file, part, key or "accuracy")
    for name in () if (label, other) in apart else (label, other) if other else (label,):
        if name not in single:
            hint = nearest(name, single) if single else "look at the data set or part, and at the number of the runs"
            raise UserError(f"the file has no {key or 'accuracy'} of {name}", hint)
    if sign == "-" and (label, other) not in apart:
        raise UserError(f"the file has no difference {label} - {other}")
    return apart[label, other] if sign == "-" else (single[label][0] / single[other][0],) if other else single[label]


@cache
def known(file: str, part: str | None, key: str) -> Read:
    """A number of the runs of a file: what it has by label, and differences by both labels."""
    folder = (sources.ROOT / "results" / file).is_dir()
    plain, runs = sources.read(f"{file}/table.json" if folder else f"{file}.json")
    if not plain:
        raise UserError(f"there is no results/{file}.json, and no table in results/{file}")
    if folder:
        return _of_cells(plain, part, key, against=plan.read(file, RECIPES).against)
    return _of_runs(plain, [run for run in runs if part in (None, run.get("dataset"))], key)


def _of_runs(plain: dict[str, Any], runs: list[dict[str, object]], key: str) -> Read:
    if len({(run["label"], run["seed"]) for run in runs}) < len(runs):
        raise UserError("the file has several runs of a label and seed", "name the data set before the labels")
    found = scores(runs, key)
    spreads = {label: Spread.of([*own.values()]) for label, own in found.items()}
    tested = plain.get("paired", {}) if key == "accuracy" else {}
    p = {frozenset((item["method"], tested["against"])): item["p"] for item in tested.get("differences", ())}
    apart: dict[tuple[str, str], Values] = {}
    for other in found:
        for item in paired(runs, other, key):
            spread = Spread.of(item.values)
            tail = p.get(frozenset((item.first, item.second)))
            apart[item.first, item.second] = (spread.mean, *(spread.interval or (None, None)), tail)
    return {label: (spread.mean, spread.deviation) for label, spread in spreads.items()}, apart


def _of_cells(plain: dict[str, Any], part: str | None, key: str, against: str) -> Read:
    cells = [cell for cell in plain["cells"] if cell["part"] == part]
    found = [(cell["label"], against, cell["difference"]) for cell in cells if "difference" in cell]
    found += [(item["of"], item["minus"], item) for item in plain.get("rivals", ()) if item["part"] == part]
    mean, ends = {"accuracy": ("mean", "interval"), "accuracy_late": ("late", "late_interval")}.get(key, ("", ""))
    apart: dict[tuple[str, str], Values] = {}
    for first, second, item in found:
        if item.get(mean) is not None:
            (low, high), p = item[ends] or (None, None), item.get("p_holm") if mean == "mean" else None
            turned = (None, None) if low is None else (-high, -low)
            apart |= {(first, second): (item[mean], low, high, p), (second, first): (-item[mean], *turned, p)}
    return {cell["label"]: values for cell in cells if (values := _at(cell, key.split(".")))}, apart


def _at(cell: object, path: list[str]) -> Values:
    """A number of a cell, with its deviation or interval if it has one; nothing where there is none."""
    for name in path:
        cell = cell.get(name) if isinstance(cell, dict) else None
    if not isinstance(cell, dict):
        return () if cell is None else (cell,)
    if "deviation" in cell:
        return cell["mean"], cell["deviation"]
    return (cell["mean"], *(cell.get("interval") or (None, None)), None)


def stale() -> Iterator[tuple[str, str, str]]:
    """The pages whose numbers are not those of the files: name, text, and text as it should be."""
    for page in sources.PAGES:
        text = (sources.ROOT / page).read_text()
        new = filled(page, text)
        if new != text:
            yield page, text, new


if __name__ == "__main__":
    lines = []
    for name, before, now in stale():
        if "--write" in sys.argv:
            (sources.ROOT / name).write_text(now)
        both = zip(before.splitlines(), now.splitlines(), strict=True)
        lines += [f"{name}, line {number}" for number, (old, new) in enumerate(both, 1) if old != new]
    print(*lines, sep="\n")
    sys.exit(f"{len(lines)} lines with numbers that have changed" if lines and "--write" not in sys.argv else 0)
