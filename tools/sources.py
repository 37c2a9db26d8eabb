"""Where the numbers in README and docs come from: each must stand in a file of results/ that its paragraph names.

python tools/sources.py            checks every number, and says which have no source
python tools/sources.py --write    first fills the tables between `<!-- results/NAME/table.md -->` and `<!-- end -->`

A number is one with a decimal point, or a share such as 1/318, outside of code; settings such as m/n = 0.1 are none.
Its sources are the files that its block (a paragraph, a list entry, a table) names, or else those that the block before
it names, until the next heading. A file gives all numbers in it; of runs also means, deviations, differences over
common seeds and their intervals, by label, KiB beside MiB a round, the first evaluation of every curve, and the one
with the highest mean over seeds: that mean, the way from it to the end, and differences there. A number that is no
result of a run (an option, a size, something worked out) is named: `<!-- given: 0.3 -->`. An interval, "(0.1 to 0.3",
must stand in one of the files around one of the four numbers before it, up to the sign of all three.
In docs/algorithms.md tables and options are those that the code prints, by test, and are left out. Small numbers with
few digits are found in many files: but for intervals this shows that a source is named and fits, not that it was
read with care. tools/quotes.py writes the numbers that a marker stands behind, from the labels that it names.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, permutations
from pathlib import Path
from statistics import fmean, stdev

from pfed1bs.report.groups import Spread
from pfed1bs.report.records import table

ROOT = Path(__file__).parent.parent
DIARY = "docs/log.md"  # its entries keep the numbers of their day, also of files that newer ones have replaced
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(name for path in sorted((ROOT / "docs").glob("*.md")) if (name := f"docs/{path.name}") != DIARY),
)
NUMBER = re.compile(r"(?<![\w./-])(?!\d{4}\.\d{5}\b)[-+]?(?:1/\d[\d,]+|\d[\d,]*\.\d+)(?![\w/]|\.\d)")  # no arXiv number
FILE = re.compile(r"results/([\w./-]+\.json)")
GIVEN = re.compile(r"<!-- given: ([^>]*) -->")
TABLE = re.compile(r"(<!-- results/([\w./-]+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)
PRINTED = ("| method |", "| option |", "- `")  # by the code
INTERVAL = re.compile(r"\((?:[^()|]{0,60}?)(-?\d+\.\d+) to (-?\d+\.\d+)")
ASIDE = re.compile(r"```.*?```|<!-- results/[\w./-]+\.md -->.*?<!-- end -->", re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Every block of a page with the text that names its sources."""
    before = ""
    for block in re.split(r"\n\s*\n|\n(?=- |\d\. )", ASIDE.sub("", text)):
        if block.startswith("#"):
            before = ""
        named = block if FILE.search(block) else before
        yield block, named
        before = named


def numbers(block: str) -> list[str]:
    """The numbers of a block that need a source."""
    given = {number for found in GIVEN.findall(block) for number in found.split()}
    plain = re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)|m/n = [\d.]*\d", "", block, flags=re.DOTALL)
    return [number for number in NUMBER.findall(plain) if number.lstrip("+-") not in given]


def traced(number: str, names: Iterable[str]) -> bool:
    """Whether a number is one of some files as it is printed, up to its sign; a share also one over it."""
    text = number.lstrip("+-").replace(",", "")
    digits = -1 if text.startswith("1/") else len(text.partition(".")[2])
    return any(text in printed(name, digits) for name in names)


@cache
def printed(name: str, digits: int) -> frozenset[str]:
    """The numbers of a file with so many digits, as they are and as percentages; -1: as shares."""
    known = {abs(value) for value in values(name)}
    if digits < 0:
        shares = {1 / value for value in known if value} | {value for value in known if value % 1}
        return frozenset(f"1/{value:.0f}" for value in shares)
    return frozenset(f"{value * factor:.{digits}f}" for value in known for factor in (1, 100))


def uncertain(block: str, names: Iterable[str]) -> Iterator[str]:
    """The intervals of a block that no file has around a number before them."""
    plain = re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)", "", block, flags=re.DOTALL)
    given = {number for found in GIVEN.findall(block) for number in found.split()}
    for found in INTERVAL.finditer(plain):
        before = [text.lstrip("+-") for text in NUMBER.findall(plain[: found.start(1)])[-4:]]
        ends = [text.lstrip("-") for text in found.groups()]
        digits = len(ends[0].partition(".")[2])
        known = {three for name in names for three in around(name, digits)}
        if not ({*ends} <= given or any((text, *ends) in known for text in before)):
            yield f"{before[-1] if before else ''} ({found[1]} to {found[2]})"


@cache
def around(name: str, digits: int) -> frozenset[tuple[str, str, str]]:
    """Every number of a file with the ends of an interval around it, as they are printed, without signs."""
    found = [*_intervals(read(name)[0]), *(three for three in pairs(name) if len(three) == 3)]
    return frozenset(
        tuple(f"{abs(value * factor):.{digits}f}" for value in (mean, *ends))
        for mean, low, high in found
        for ends in ((low, high), (high, low))
        for factor in (1, 100)
    )


def _intervals(plain: object) -> Iterator[tuple[float, float, float]]:
    if isinstance(plain, dict):
        pairs = [value for value in plain.values() if isinstance(value, list) and len(value) == 2]
        pairs += [[plain["low"], plain["high"]]] if {"low", "high"} <= {*plain} else []
        for low, high in (pair for pair in pairs if all(isinstance(end, int | float) for end in pair)):
            yield from (
                (value, low, high) for value in plain.values() if isinstance(value, float) and low <= value <= high
            )
    for inner in plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ():
        yield from _intervals(inner)


@cache
def values(name: str) -> frozenset[float]:
    """All numbers that a file gives."""
    plain, runs = read(name)
    return frozenset({*_leaves(plain), *_derived(runs), *chain(*pairs(name))})


@cache
def read(name: str) -> tuple[object, list[dict[str, object]]]:
    """What a file holds, and its runs; nothing for a pattern of names."""
    path = ROOT / "results" / name
    if not path.exists():
        return {}, []
    plain = json.loads(path.read_text())
    return plain, table(path) if isinstance(plain, dict) and _runs(plain) else []


def _runs(plain: dict[str, object]) -> bool:
    runs = plain.get("runs")
    return isinstance(runs, list) and all(isinstance(run, dict) and {"algorithm", "seed"} <= {*run} for run in runs)


def _leaves(plain: object) -> Iterator[float]:
    if isinstance(plain, dict | list):
        kept = [value for key, value in plain.items() if key != "curve"] if isinstance(plain, dict) else plain
        for inner in kept:
            yield from _leaves(inner)
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield float(plain)


def _derived(runs: list[dict[str, object]]) -> Iterator[float]:
    """Means and deviations of every number by label."""
    for own in _by_label(runs):
        for key in own[0]:
            found = [run.get(key) for run in own]
            if all(isinstance(value, int | float) for value in found):
                yield fmean(found) * (1024 if key == "mib_per_round" else 1)
                yield from (fmean(found), stdev(found) if len(found) > 1 else 0.0)
        yield from (run["curve"][0][-1] for run in own if run.get("curve"))
        highest = _highest(own)
        yield from [fmean(highest.values())] if highest else ()


@cache
def pairs(name: str) -> list[list[float]]:
    """Paired differences: of labels at the end and at their highest, and of one label from its highest to its end."""
    labels = _by_label(read(name)[1])
    found = [_apart(_at_end(own, _metric(own)), _highest(own)) for own in labels]
    for first, second in permutations(labels, 2):
        metric = _metric(first)
        for key in dict.fromkeys((metric, f"{metric}_late", f"{metric}_newcomers", "distance", "accuracy")):
            found.append(_apart(_at_end(first, key), _at_end(second, key)))
        found.append(_apart(_highest(first), _highest(second)))
    return found


def _by_label(runs: list[dict[str, object]]) -> list[list[dict[str, object]]]:
    labels: dict[str, list[dict[str, object]]] = {}
    for run in runs:
        labels.setdefault(str(run["label"]), []).append(run)
    return [*labels.values()]


def _metric(own: list[dict[str, object]]) -> str:
    return own[0].get("metric", "accuracy")


def _at_end(own: list[dict[str, object]], key: str) -> dict[int, float]:
    return {run["seed"]: run[key] for run in own if isinstance(run.get(key), float)}


def _highest(own: list[dict[str, object]]) -> dict[int, float]:
    """The values by seed at the evaluation that has the highest mean; none where a run has no curve."""
    curves = {run["seed"]: {point[0]: point[-1] for point in run.get("curve") or ()} for run in own}
    common = set.intersection(*map(set, curves.values()))
    best = max(common, key=lambda at: fmean(curve[at] for curve in curves.values()), default=None)
    return {} if best is None else {seed: curve[best] for seed, curve in curves.items()}


def _apart(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """The mean difference over common seeds, and its interval; nothing without any."""
    found = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    spread = Spread.of(found) if found else None
    return [spread.mean, *(spread.interval or ())] if spread else []


def missing() -> list[str]:
    """Every number without a source, with its page."""
    found = []
    for page in PAGES:
        for block, named in blocks((ROOT / page).read_text()):
            if page.endswith("algorithms.md") and block.startswith(PRINTED):
                continue
            wrong = [number for number in numbers(block) if not traced(number, FILE.findall(named))]
            wrong += uncertain(block, FILE.findall(named))
            found += [f"{page}: {number} in: {' '.join(block.split())[:70]}" for number in wrong]
    return found


def fill() -> None:
    """Write the tables of results/ into the pages that show them."""
    for page in PAGES:
        path = ROOT / page
        text = path.read_text()
        new = TABLE.sub(lambda found: found[1] + (ROOT / "results" / found[2]).read_text() + found[3], text)
        if new != text:
            path.write_text(new)


if __name__ == "__main__":
    if "--write" in sys.argv:
        fill()
    lost = missing()
    print(*lost, sep="\n")
    sys.exit(f"{len(lost)} numbers without a source" if lost else 0)
