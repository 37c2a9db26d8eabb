"""docs/reproduce.md counts the verdicts on the accuracies of Table 1 as `results/table-main/table.json` has them.

Numbers are words up to ten, or digits. PHRASES are looked for in any order; one that is absent says that there is none.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER = rf"\b({'|'.join(WORDS)}|\d+)"
ENDS = {  # of both places
    "open": rf"{NUMBER} (?:is |are )?open\b",
    "higher": rf"{NUMBER} (?:of ours )?(?:is |are )?higher\b",
    "lower": rf"{NUMBER} (?:of ours )?(?:is |are )?lower\b",
}
PHRASES = {  # the line that begins so, and how it says what
    r"3\. \*\*Accuracies\*\*: ": {
        **ENDS,
        "several seeds": rf"of {NUMBER} cells that were run with two seeds or more",
        "reproduced": rf"{NUMBER} (?:is|are) the paper's",
        "one seed": rf"; (?:and )?{NUMBER}\b[^;.]* ha(?:s|ve) one seed",
    },
    r"\| Table 1, 35 cells of accuracy ": {
        **ENDS,
        "run": rf"{NUMBER} run:",
        "reproduced": rf"{NUMBER} reproduced\b",
        "differ": rf"{NUMBER} differs?\b",
        "one seed": rf"{NUMBER} with one seed\b",
    },
}


def counted(text, begin):
    """What a line of the page counts."""
    line = re.search(rf"^{begin}.*$", text, re.MULTILINE)[0]
    found = {name: re.search(phrase, line, re.IGNORECASE) for name, phrase in PHRASES[begin].items()}
    words = {name: match[1].lower() if match else "no" for name, match in found.items()}
    return {name: WORDS.index(word) if word in WORDS else int(word) for name, word in words.items()}


def there(cells):
    """The same, of a table's cells that the paper has too."""
    verdicts = [cell["verdict"] for cell in cells if cell["paper"] and cell["verdict"]]
    kinds = Counter(re.sub(r"^differs.* |:.*", "", verdict) for verdict in verdicts)
    differ = kinds["higher"] + kinds["lower"]
    return kinds | {"run": len(verdicts), "differ": differ, "several seeds": len(verdicts) - kinds["one seed"]}


@pytest.mark.parametrize("begin", PHRASES)
def test_the_document_counts_the_verdicts_of_the_table(begin):
    cells = json.loads((ROOT / "results" / "table-main" / "table.json").read_text())["cells"]
    told, found = counted((ROOT / "docs" / "reproduce.md").read_text(), begin), there(cells)
    assert told == {name: found.get(name, 0) for name in told}


def test_counts_are_read_with_open_cells_and_without_and_in_words_or_digits():
    page = (
        "3. **Accuracies**: of 33 cells that were run with two seeds or more one is the paper's, two are open, "
        "25 of ours are higher and five lower; two, on CIFAR-100, have one seed, and both are lower.\n"
        "| Table 1, 35 cells of accuracy (`x`) | 35 run: SVHN with 5. 25 are higher, five lower, 2 open; "
        "both with one seed are lower | one reproduced, 30 differ ([why](#a)), two open, two with one seed |\n"
    )
    point, row = (counted(page, begin) for begin in PHRASES)
    shared = {"open": 2, "higher": 25, "lower": 5, "reproduced": 1, "one seed": 2}
    assert point == shared | {"several seeds": 33} and row == shared | {"run": 35, "differ": 30}
    without = page.replace(" two are open,", "").replace(", 2 open", "").replace(", two open", "")
    assert [counted(without, begin)["open"] for begin in PHRASES] == [0, 0]


def test_cells_are_counted_by_their_verdicts():
    verdicts = ["reproduced", "open: two standard errors are 10.00", "differs: 1.27 higher", "differs: 2.83 lower"]
    cells = [{"paper": [1, 1], "verdict": verdict} for verdict in [*verdicts, "one seed: 7.83 lower", ""]]
    found = there([*cells, {"paper": None, "verdict": ""}])
    kinds = dict.fromkeys(("reproduced", "open", "higher", "lower", "one seed"), 1)
    assert found == kinds | {"run": 5, "differ": 2, "several seeds": 4}
