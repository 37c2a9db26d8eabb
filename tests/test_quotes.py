"""Numbers that a page quotes are filled in from the files that markers behind them name."""

import json
import re

import pytest
import quotes
import sources

from pfed1bs.core.errors import UserError

MARKED = ("README.md", "docs/choose.md", "docs/findings.md", "docs/reproduce.md")
RUNS = [("a", 0, 90.0), ("a", 1, 92.0), ("b", 0, 91.0), ("b", 1, 94.0), ("b lr=0.1", 0, 80.0)]


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """What a page becomes, beside a table of runs, one of two data sets, and one of reproduce."""
    runs = [{"algorithm": "a", "label": name, "seed": seed, "accuracy": value} for name, seed, value in RUNS]
    runs = [{**run, "accuracy_late": 50.0, "total_mib": 1234.5 + run["seed"], "dataset": "mnist"} for run in runs]
    two = [*runs, {**runs[0], "dataset": "fmnist", "accuracy": 70.0}]
    apart = {"mean": 0.5, "interval": [-0.25, 1.25]}
    cells = [{"part": "iid", "label": name, "accuracy": {"mean": 9.0, "deviation": 0.5}} for name in ("x", "y")]
    cells[0]["difference"] = {**apart, "p_holm": 0.25, "late": 0.75, "late_interval": [0.5, 1.0]}
    cells[0] |= {"highest": {"after": 30, "mean": 9.5, "deviation": 0.1}, "equal_within": {"p": 0.0625}, "seeds": 4}
    cells[0]["since_highest"] = {"mean": -0.5, "interval": [-0.75, -0.25]}
    cells[1]["since_highest"] = {"mean": -2.0, "seeds": 1}
    cells[1]["difference"] = {"mean": 0.125, "interval": None, "p_holm": None, "late": None, "late_interval": None}
    cells = [{**cell, "accuracy_late": cell["accuracy"]} for cell in [*cells, {**cells[1], "label": "local"}]]
    # what table-main compares with, as its recipe says
    rivals = [{"part": "iid", "of": one, "minus": other, **apart} for one, other in ("xy", ("x steps=9", "x steps=5"))]
    files = {
        "runs.json": {"runs": runs, "paired": {"against": "a", "differences": [{"method": "b", "p": 0.0456}]}},
        "two.json": {"runs": two},
        "table-main/table.json": {"cells": cells, "rivals": rivals},
    }
    (tmp_path / "results" / "table-main").mkdir(parents=True)
    for name, plain in files.items():
        (tmp_path / "results" / name).write_text(json.dumps(plain))
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    sources.read.cache_clear()
    quotes.known.cache_clear()
    yield lambda text: quotes.filled("page.md", text)
    sources.read.cache_clear()
    quotes.known.cache_clear()


def test_the_pages_have_the_numbers_of_their_files():
    assert [page for page, _, _ in quotes.stale()] == []
    assert {page for page in sources.PAGES if quotes.MARKER.search((sources.ROOT / page).read_text())} >= {*MARKED}


@pytest.mark.parametrize("page", MARKED)
def test_every_wrong_number_before_a_marker_is_written_anew(page):
    text, wrong, after = (sources.ROOT / page).read_text(), "", 0
    for marker in quotes.MARKER.finditer(text):
        before = text[after : marker.start()]
        quote, _ = quotes.quoted(before, quotes.ASKED.fullmatch(marker[0]))
        places = [quote.span(group) for group in range(1, quote.re.groups + 1) if quote[group]]
        for start, end in places:
            before = before[:start] + re.sub(r"\d", "7", before[start:end]) + before[end:]
        assert before != text[after : marker.start()], marker[0]
        wrong, after = wrong + before + marker[0], marker.end()
    assert quotes.filled(page, wrong + text[after:]) == text


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ("0.01 above (0.02 to 0.03)", "runs: b - a", "1.50 above (-4.85 to 7.85)"),  # 12.706 * 0.5 on both sides
        ("0.01 below, 0.02 to 0.03", "runs: a - b", "-1.50 below, -7.85 to 4.85"),
        ("0.1 (0.2 to 0.3; p = 0.999, Holm)", "runs: b - a", "1.5 (-4.9 to 7.9; p = 0.046, Holm)"),
        ("0.1 (95 % interval 0.2 to 0.3, `b.json`)", "runs: a - b", "-1.5 (95 % interval -7.9 to 4.9, `b.json`)"),
        ("-0.01 (0.02 to 0.03)", "runs: b - a, accuracy_late", "0.00 (0.00 to 0.00)"),
        ("1.00 \u00b1 2.00", "runs: a", "91.00 \u00b1 1.41"),
        ("of 1.5, 3", "runs: a", "of 1.5, 91"),
        ("+4.000", "runs: a", "+91.000"),
        ("9 or 1,111", "runs: b, total_mib", "9 or 1,235"),
        ("1111.1", "runs: b, total_mib", "1235.0"),
        ("1/7", "runs: a / b lr=0.1", "1/1"),
        ("0.3", "two fmnist: a", "70.0"),
        ("0.0 \u00b1 0.0", "table-main iid: x", "9.0 \u00b1 0.5"),
        ("0.1 (0.2 to 0.3; p = 0.9)", "table-main iid: x - local", "0.5 (-0.2 to 1.2; p = 0.2)"),
        ("0.11 (0.22 to 0.33)", "table-main iid: y - x", "-0.50 (-1.25 to 0.25)"),
        ("0.11 (0.22 to 0.33)", "table-main iid: x steps=5 - x steps=9", "-0.50 (-1.25 to 0.25)"),
        ("0.1 (0.2 to 0.3)", "table-main iid: local - x, accuracy_late", "-0.8 (-1.0 to -0.5)"),
        ("0.1 (0.2 to 0.3), 0.111", "table-main iid: y - local", "0.1 (0.2 to 0.3), 0.125"),  # one seed
        ("0.1 (0.2 to 0.3), 1.11", "runs: a - b lr=0.1", "0.1 (0.2 to 0.3), 10.00"),  # likewise
        ("-0.11 (-0.22 to -0.33)", "table-main iid: x, since_highest", "-0.50 (-0.75 to -0.25)"),
        ("-0.1", "table-main iid: y, since_highest", "-2.0"),
        ("0.1 \u00b1 0.1", "table-main iid: x, highest", "9.5 \u00b1 0.1"),
        ("5.0 after 10", "table-main iid: x, highest.after", "5.0 after 30"),
        ("p = 0.999", "table-main iid: x, equal_within.p", "p = 0.062"),
        ("9", "table-main iid: x, seeds", "4"),
    ],
)
def test_numbers_become_those_of_the_file_and_are_printed_as_before(fill, before, asked, after):
    for text in ("{}<!-- = {} -->, more", "| 0.5 | {} <!-- = {} --> |", "Of 3\n\n{}<!-- = {} -->"):
        assert fill(text.format(before, asked)) == text.format(after, asked)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0.1 <!-- = none: a -->", "there is no results/none.json"),
        ("0.1 <!-- = runs: c -->", "the file has no accuracy of c"),
        ("0.1 <!-- = runs: a, loss -->", "the file has no loss of a"),
        ("0.1 <!-- = runs cifar10: a -->", "the file has no accuracy of a"),
        ("0.1 <!-- = table-main: x -->", "the file has no accuracy of x"),
        ("0.1 <!-- = two: a -->", "several runs of a label and seed"),
        ("0.1 (0.2 to 0.3) <!-- = runs: b - b lr=0.1 -->", "no interval of b - b lr=0.1"),  # one common seed
        ("0.1 (0.2 to 0.3) <!-- = table-main iid: x - y, total_mib -->", "the file has no total_mib of x"),
        ("0.1 (0.2 to 0.3) <!-- = table-main iid: local - y -->", "has no interval of local - y"),
        ("0.1 <!-- = table-main iid: y, seeds -->", "the file has no seeds of y"),
        ("0.1 <!-- = table-main iid: x, highest.before -->", "the file has no highest.before of x"),
        ("0.1 (0.2 to 0.3; p = 0.4) <!-- = two mnist: b - a -->", "nothing in place of 0.4"),
        ("0.1 \u00b1 0.2 <!-- = runs: b lr=0.1 -->", "nothing in place of 0.2"),
        ("0.1 <!-- = runs: b - a -->", "no such numbers stand before it"),
        ("0.1 (0.2 to 0.3)\n\n<!-- = runs: b - a -->", "no such numbers stand before it"),
        ("| 0.1 (0.2 to 0.3) | <!-- = runs: b - a -->", "no such numbers stand before it"),
        ("0.1 of a <!-- = runs: a -->", "no such numbers stand before it"),
        ("0.1 <!-- = runs a -->", "cannot be read"),
    ],
)
def test_a_marker_that_nothing_can_be_filled_in_for_is_named_with_its_page(fill, text, complaint):
    with pytest.raises(UserError) as caught:
        fill(text)
    assert re.match(r"page\.md: <!-- = .* -->: ", caught.value.message) and complaint in caught.value.message


@pytest.mark.parametrize("asked", ["runs: b - a, accuracy_late", "table-main iid: x - local, accuracy_late"])
def test_the_p_of_the_end_is_not_that_of_the_last_evaluations(fill, asked):
    with pytest.raises(UserError, match="nothing in place of 0.9"):
        fill(f"0.1 (0.2 to 0.3; p = 0.9) <!-- = {asked} -->")
