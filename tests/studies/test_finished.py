"""Rows that are there already: that they were not made now is said, and a line that is no row is refused by number."""

import json
from pathlib import Path

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.studies import finished, plan

RECIPES = Path(__file__).parents[2] / "recipes"
ENV = {"commit": "abc", "device": "cpu", "torch": "2"}


def reproduce(*words):
    return cli.main(["reproduce", *words, "--recipes", str(RECIPES)])


def filled(home, name, quick):
    """A folder that holds a row for every run of a table or figure; none had to be done for it."""
    run_folder = home / "run"
    run_folder.mkdir()
    (run_folder / "env.json").write_text(json.dumps(ENV))
    runs = plan.read(name, RECIPES).planned(RECIPES, quick)
    known = finished.Finished(home / "out" / name)
    for run in runs:
        known.add(finished.row_of(run, run_folder))
    return known


def test_a_table_of_rows_that_are_there_says_that_no_run_is_made_and_how_to_make_them_anew(tmp_path, capsys):
    known, out = filled(tmp_path, "table-main", quick=True), tmp_path / "out"
    count = len(known.rows)
    assert reproduce("table-main", "--quick", "--out", str(out)) == 0
    [said] = capsys.readouterr().err.splitlines()
    told = f"rows in {out}: {count} of {count}, so no run is made"
    assert said == f"{told}; --out DIR with an empty folder makes them anew"
    assert reproduce("table-main", "--quick", "--draw", "--out", str(out)) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("key", "value"), [("accuracy", "abc"), ("accuracy_late", 250.0), ("seconds", True), ("total_mib", [1])]
)
def test_a_row_whose_number_cannot_be_one_is_refused_by_name(key, value, tmp_path, capsys):
    known = filled(tmp_path, "table-main", quick=True)
    known.add({**known.rows[0], "summary": {"accuracy": None, "label": "any", key: value}})
    assert reproduce("table-main", "--quick", "--draw", "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert (
        f"line {len(known.rows)}, is damaged: its {key} is no such number" in said and "hint: delete that line" in said
    )


def test_of_rows_that_were_chosen_it_is_said_that_the_table_has_others_too(tmp_path, capsys):
    known, out = filled(tmp_path, "fig-projection", quick=False), tmp_path / "out"
    count = sum(row["config"]["seed"] == 0 for row in known.rows)
    assert reproduce("fig-projection", "--seeds", "0", "--out", str(out)) == 0
    said = capsys.readouterr().err
    assert f"{count} of {count}, " in said and "the table has those that were not chosen too" in said


def test_resume_says_how_many_rows_are_there_and_how_many_are_left_to_run(tmp_path, capsys):
    known, out = filled(tmp_path, "fig-projection", quick=True), tmp_path / "out"
    count = len(known.rows)
    (known.folder / finished.FILE).write_text("".join(f"{json.dumps(row)}\n" for row in known.rows[1:]))
    words = ["fig-projection", "--quick", "--resume", "--out", str(out), "--work", str(tmp_path / "work")]
    assert reproduce(*words) == 0
    assert capsys.readouterr().err.startswith(f"rows in {out}: {count - 1} of {count}, left to run: 1\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"part": "mnist", "la', "is damaged"),
        (b"\x00\x00\x00\xff", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"", "is damaged"),
        (b"7", "is no row: it holds no object"),
        (b"[]", "is no row: it holds no object"),
        (b'{"part": "", "label": "", "env": {"commit": ""}}', "is no row: it has no config.algorithm.name, "),
        (b'{"part": "", "label": "", "env": {"commit": ""}, "config": 3}', "is no row: it has no config.algorithm"),
    ],
)
def test_a_line_within_the_rows_that_is_none_is_refused_by_file_and_number(line, told, tmp_path, capsys):
    known = filled(tmp_path, "fig-projection", quick=True)
    path = known.folder / finished.FILE
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, line + b"\n", *others]))
    with pytest.raises(UserError, match=f"runs.jsonl, line 2, {told}"):
        finished.Finished.of(known.folder)
    assert reproduce("fig-projection", "--quick", "--resume", "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert f"error: {path}, line 2, {told}" in said and "hint: delete that line" in said
    path.write_bytes(b"".join([first, *others, line]))  # torn at the end it is left out, as it always was
    assert finished.Finished.of(known.folder).rows == known.rows
