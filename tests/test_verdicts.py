"""docs/reproduce.md counts the verdicts on the accuracies of Table 1 as `results/table-main/table.json` has them.

It counts whole data sets and subsets apart, in a sentence and in a row of a table. Numbers are words up to ten, or
digits; a verdict that is not told is one that no cell has.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBSETS = {"svhn", "cifar100"}
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = rf"\b({'|'.join(WORDS)}|none|\d+)"
SHORT = {
    "open": rf"{NUMBER} open\b",
    "reproduced": rf"{NUMBER} reproduced\b",
    "differ": rf"{NUMBER} differs?\b",
    "one seed": rf"{NUMBER} with one seed\b",
}
LONG = {
    "open": rf"{NUMBER} (?:is|are) open\b",
    "reproduced": rf"{NUMBER} (?:of \d+ cells is the paper's|cells? comes? out)",
    "higher": rf"{NUMBER} (?:of ours )?(?:is |are )?higher\b",
    "lower": rf"{NUMBER} (?:of ours )?(?:is |are )?lower\b",
    "one seed": rf"{NUMBER} has one seed\b",
}
PLACES = {  # the line that begins so, the words that begin its half about subsets, and how it says what
    r"3\. \*\*Accuracies\*\* ": ("On the subsets", LONG),
    r"\| Table 1, 35 of accuracy ": ("subsets:", SHORT),
}


def counted(text, begin):
    """What both halves of a line of the page count: whole data sets, subsets."""
    split, phrases = PLACES[begin]
    halves = re.search(rf"^{begin}.*$", text, re.MULTILINE)[0].split(split)
    assert len(halves) == 2, f"the line that begins with {begin} has no half about subsets"
    return [{name: told(phrase, half) for name, phrase in phrases.items()} for half in halves]


def told(phrase, text):
    """The number in a phrase; 0 where the text does not have it."""
    found = re.search(phrase, text, re.IGNORECASE)
    word = found[1].lower().replace("none", "no") if found else "no"
    return WORDS.index(word) if word in WORDS else int(word)


def there(cells):
    """The same, of a table's cells that the paper has too, by every name for them."""
    both = [[], []]
    for cell in cells:
        if cell["paper"] and cell["verdict"]:
            both[cell["part"] in SUBSETS].append(re.sub(r"^differs.* |:.*", "", cell["verdict"]))
    kinds = [Counter(verdicts) for verdicts in both]
    return [kind | {"differ": kind["higher"] + kind["lower"]} for kind in kinds]


@pytest.mark.parametrize("begin", PLACES)
def test_the_document_counts_the_verdicts_of_the_table(begin):
    cells = json.loads((ROOT / "results" / "table-main" / "table.json").read_text())["cells"]
    said, found = counted((ROOT / "docs" / "reproduce.md").read_text(), begin), there(cells)
    assert said == [{name: kinds.get(name, 0) for name in half} for half, kinds in zip(said, found, strict=True)]
    assert [sum(kinds.get(name, 0) for name in SHORT) for kinds in found] == [21, 14]


def test_counts_are_read_in_words_and_digits_and_an_absent_one_is_zero():
    page = (
        "3. **Accuracies** (`x`). On whole data sets none of 21 cells is the paper's: 18 of ours are higher, two are "
        "open, one is lower. On the subsets one cell comes out, 3 are open, four of ours are higher and five lower; "
        "one has one seed, and is lower.\n"
        "| Table 1, 35 of accuracy | whole: 2 open, 19 differ; subsets: one reproduced, nine differ | [Why](#a) |\n"
    )
    point, row = (counted(page, begin) for begin in PLACES)
    assert point[0] == {"open": 2, "reproduced": 0, "higher": 18, "lower": 1, "one seed": 0}
    assert point[1] == {"open": 3, "reproduced": 1, "higher": 4, "lower": 5, "one seed": 1}
    assert row[0] == {"open": 2, "reproduced": 0, "differ": 19, "one seed": 0}
    assert row[1] == {"open": 0, "reproduced": 1, "differ": 9, "one seed": 0}


def test_cells_are_counted_by_their_verdicts_and_data_sets():
    whole = ["open: 1.00 higher \u00b1 10.00", "differs: 1.27 higher", "differs: 2.83 lower", ""]
    parts = [("mnist", verdict) for verdict in whole] + [("svhn", "reproduced"), ("cifar100", "one seed: 7.83 lower")]
    cells = [{"part": part, "paper": [1, 1], "verdict": verdict} for part, verdict in parts]
    found = there([*cells, {"part": "mnist", "paper": None, "verdict": "reproduced"}])
    assert found[0] == {"open": 1, "higher": 1, "lower": 1, "differ": 2}
    assert found[1] == {"reproduced": 1, "one seed": 1, "differ": 0}


def test_the_document_counts_the_verdicts_of_the_cost_column():
    cells = json.loads((ROOT / "results" / "costs.json").read_text())["paper"]
    kinds = Counter(cell["verdict"] for cell in cells)
    page = (ROOT / "docs" / "reproduce.md").read_text()
    point = re.search(r"^2\. \*\*Bytes\.\*\* .*$", page, re.MULTILINE)[0]
    row = re.search(r"^\| Table 1, 35 of bytes \|.*$", page, re.MULTILINE)[0]
    assert len(cells) == 35 and told(rf"{NUMBER} of the 35 cells", point) == kinds["as printed"]
    assert told(rf"{NUMBER} as counted", row) == kinds["as printed"]
    for line, ways in (
        (point, ("are below", "fit no count", "fit a count")),
        (row, ("cannot be", "fit no", "fit another")),
    ):
        counts = [told(rf"{NUMBER} {way}", line) for way in ways]
        assert counts == [kinds[name] for name in ("cannot be right", "fits no count", "fits another count")]
    table = json.loads((ROOT / "results" / "table-main" / "table.json").read_text())["cells"]
    printed = {(cell["method"].lower(), cell["dataset"].lower().replace("-", "")): cell for cell in cells}
    names = {"zsign": "zsignfed", "pfed1bs lam=0.0005": "pfed1bs"}
    both = [(printed[names.get(cell["label"], cell["label"]), cell["data"]], cell) for cell in table if cell["paper"]]
    as_measured = sum(f"{cell['mib_per_round']['mean']:.2f}" == ours["printed"] for ours, cell in both)
    assert len(both) == 35 and told(rf"{NUMBER} of them (?:also )?as (?:we )?measured", point) == as_measured
    assert told(rf"{NUMBER} of them as measured", row) == as_measured
