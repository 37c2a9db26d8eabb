"""Rows that are there already: that they were not made now is said, and a line that is no row is refused by number."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.studies import finished, plan, sheets

RECIPES = Path(__file__).parents[2] / "recipes"
RESULTS = RECIPES.parent / "results"
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
    known.add({**ended(known.rows[0]), "summary": {"algorithm": "fedavg", "seed": 0, "accuracy": None, key: value}})
    assert reproduce("table-main", "--quick", "--draw", "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert (
        f"line {len(known.rows)}, is damaged: its {key} is no such number" in said and "hint: delete that line" in said
    )


def ended(row):
    """The row of a run that did not diverge."""
    summary = {
        "algorithm": row["config"]["algorithm"]["name"],
        "seed": row["config"]["seed"],
        "rounds": 2,
        "accuracy": 50.0,
    }
    clients = {"client": [0, 1], "test_samples": [10, 20], "accuracy": [40.0, 60.0]}
    told = {"summary": summary, "clients": clients, "curve": {"round": [0, 1], "sent": [8, 16], "accuracy": [0.5, 50]}}
    return {key: value for key, value in row.items() if key != "diverged"} | told


def test_a_row_that_lacks_nothing_is_one(tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    known.add(ended(known.rows[0]))
    assert finished.Finished.of(known.folder).rows == known.rows


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("summary",), [], "its summary is not that of fedavg with seed 0"),
        (("summary", "seed"), 1, "its summary is not that of fedavg with seed 0"),
        (("summary", "algorithm"), "local", "its summary is not that of fedavg with seed 0"),
        (("summary", "accuracy"), None, "its summary has no rounds, or no result"),
        (("summary", "rounds"), None, "its summary has no rounds, or no result"),
        (("summary", "mib_per_round"), -5, "its mib_per_round is no such number"),
        (("summary", "seconds"), float("nan"), "its seconds is no such number"),
        (("config", "seed"), None, "its method is no name, or its seed no number"),
        (("config", "algorithm", "name"), ["fedavg"], "its method is no name, or its seed no number"),
        (("clients",), {}, "its clients are no table of numbers"),
        (("clients", "accuracy"), [1.0], "its clients are no table of numbers"),
        (("curve",), {"round": [], "accuracy": []}, "its curve are no table of numbers"),
        (("curve", "accuracy"), [1.0, 9e9], "its curve are no table of numbers"),
        (("curve", "accuracy"), [1.0, "2"], "its curve are no table of numbers"),
        (("curve", "accuracy"), 7, "its curve are no table of numbers"),
    ],
)
def test_a_row_that_tables_could_not_read_is_refused_with_what_is_wrong(place, value, told, tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    row = json.loads(json.dumps(ended(known.rows[0])))
    inner = row
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with (known.folder / finished.FILE).open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=f"line {len(known.rows) + 1}, is damaged: {told}"):
        finished.Finished.of(known.folder)


def test_rows_are_plain_json_and_an_infinite_option_comes_back(tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    [row] = [row for row in known.rows if row["label"] == "zsign"]
    assert row["config"]["algorithm"]["z"] == float("inf")
    known.add(ended(row) | {"env": {**ENV, "spread": float("inf")}})

    def refused(word):
        raise AssertionError(f"{word} is no JSON")

    for line in (known.folder / finished.FILE).read_text().splitlines():
        json.loads(line, parse_constant=refused)
    found = finished.Finished.of(known.folder).rows
    assert found[:-1] == known.rows[:-1] and found[-1]["env"]["spread"] is None


def test_a_whole_last_line_without_its_end_is_a_row_and_stays_one(tmp_path):
    known = filled(tmp_path, "fig-projection", quick=True)
    path = known.folder / finished.FILE
    path.write_bytes(path.read_bytes()[:-1])
    found = finished.Finished.of(known.folder)
    assert found.rows == known.rows
    found.add(ended(known.rows[0]))
    assert finished.Finished.of(known.folder).rows == [*known.rows, ended(known.rows[0])]


ADDING = """
import json, sys
from pathlib import Path
from pfed1bs.studies.finished import Finished
row, known = json.loads(sys.argv[2]), Finished(Path(sys.argv[1]))
for number in range(150):
    known.rows = []
    known.add({**row, "label": f"{sys.argv[3]}-{number}", "part": "x" * 5000})
"""


def test_two_processes_that_add_rows_to_one_file_lose_none_of_them(tmp_path):
    known = filled(tmp_path, "fig-projection", quick=True)
    words = [sys.executable, "-c", ADDING, str(tmp_path / "rows"), json.dumps(known.rows[0])]
    both = [subprocess.Popen([*words, name]) for name in "ab"]
    assert [process.wait(120) for process in both] == [0, 0]
    labels = {row["label"] for row in finished.Finished.of(tmp_path / "rows").rows}
    assert labels == {f"{name}-{number}" for name in "ab" for number in range(150)}


def test_a_run_that_went_on_elsewhere_names_both_places(tmp_path):
    run = plan.read("table-main", RECIPES).planned(RECIPES, quick=True)[0]
    env = {**ENV, "commit": "new", "from_round": 5, "earlier": [{**ENV, "from_round": 0, "hostname": "x"}]}
    (tmp_path / "env.json").write_text(json.dumps(env))
    row = finished.row_of(run, tmp_path)
    assert row["env"] == {**ENV, "commit": "new", "earlier": [ENV]}
    known = finished.Finished(tmp_path / "rows")
    known.add(ended(row))
    target = plan.read("table-main", RECIPES)
    sheets.write(replace(target, pictures=()), [run], known, tmp_path / "table")
    assert json.loads((tmp_path / "table" / "table.json").read_text())["commit"] == ["abc", "new"]


def test_of_runs_made_in_two_places_it_is_said_how_far_they_are_apart(tmp_path, capsys):
    known = filled(tmp_path, "fig-projection", quick=True)
    mine, theirs = (finished.Finished(tmp_path / name / "fig-projection") for name in ("mine", "theirs"))
    for row, less in zip(known.rows, (0.5, -0.25), strict=True):
        there = ended(row)
        mine.add({**there, "env": {**ENV, "time": "later"}})
        curve = {**there["curve"], "accuracy": [0.5, 50.0 - less]}
        theirs.add({**there, "summary": {**there["summary"], "accuracy": 50.0 - less}, "curve": curve})
    words = ["fig-projection", "--quick", "--out", str(tmp_path / "mine"), "--join", str(tmp_path / "theirs")]
    assert reproduce(*words) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert said.endswith(
        "; 2 were made in both places and end 0.50 points apart at most, these minus those +0.12 on average"
    )


def test_joined_rows_alone_are_no_finished_runs_of_the_folder(tmp_path, capsys):
    known = filled(tmp_path, "fig-projection", quick=True)
    path = known.folder / finished.FILE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    words = ["fig-projection", "--quick", "--join", str(tmp_path / "out"), "--out", str(tmp_path / "new")]
    assert reproduce(*words, "--work", str(tmp_path / "work")) == 0
    assert ": 1 of 2, left to run: 1\n" in capsys.readouterr().err


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
        (b'{"part": "", "label": "", "env": {"commit": ""}}', "is no row: it has no env.device, env.torch, config.a"),
        (b'{"part": "", "label": "", "env": {"commit": ""}, "config": 3}', "is no row: it has no env.device, "),
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
    path.write_bytes(b"".join([first, *others, line[:-1]]))  # torn at the end it is left out, as it always was
    assert finished.Finished.of(known.folder).rows == known.rows


def test_a_row_tells_the_machine_and_nothing_else_of_it(tmp_path):
    run = plan.read("table-main", RECIPES).planned(RECIPES, quick=True)[0]
    names = "command commit device processor tf32 threads torch python time files".split()
    env = dict.fromkeys(names, "x")
    (tmp_path / "env.json").write_text(json.dumps({**env, "hostname": "secret"}))
    assert finished.row_of(run, tmp_path)["env"] == env


def test_a_row_whose_result_is_not_that_of_its_curve_is_refused(tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    row = ended(known.rows[0])
    known.add({**row, "summary": {**row["summary"], "accuracy": 50.001}})  # a curve has six digits
    assert len(finished.Finished.of(known.folder).rows) == len(known.rows)
    other = ended(known.rows[1])
    known.add({**other, "summary": {**other["summary"], "accuracy": 12.0}})
    with pytest.raises(UserError, match="its accuracy is not that of its last evaluation"):
        finished.Finished.of(known.folder)


def test_a_run_that_stands_twice_with_two_results_is_refused(tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    row = ended(known.rows[1])
    known.add(row)
    known.add({**row, "env": {**row["env"], "time": "later"}})  # the same once more changes nothing
    assert len(finished.Finished.of(known.folder).rows) == len(known.rows)
    curve = {**row["curve"], "accuracy": [0.5, 51.0]}
    known.add({**row, "summary": {**row["summary"], "accuracy": 51.0}, "curve": curve})
    told = f"line {len(known.rows)}, is the run of line {len(known.rows) - 2} with another result"
    with pytest.raises(UserError, match=told):
        finished.Finished.of(known.folder)


def test_a_last_line_that_was_cut_off_is_told(tmp_path, capsys):
    known = filled(tmp_path, "table-main", quick=True)
    file = known.folder / "runs.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert reproduce("table-main", "--quick", "--draw", "--out", str(tmp_path / "out")) == 0
    assert "the last line was cut off and is left out" in capsys.readouterr().err


def test_rows_of_other_settings_draw_nothing_and_leave_what_was_drawn(tmp_path, capsys):
    known = filled(tmp_path, "table-main", quick=True)
    (known.folder / "table.md").write_text("before")
    text = (known.folder / "runs.jsonl").read_text()
    (known.folder / "runs.jsonl").write_text(text.replace('"rounds": 2', '"rounds": 3'))
    assert reproduce("table-main", "--quick", "--draw", "--out", str(tmp_path / "out")) == 2
    told = capsys.readouterr()
    assert "there is nothing to draw" in told.err
    assert f"of the {len(known.rows)} rows in {known.folder} none has the settings of table-main" in told.err
    assert (known.folder / "table.md").read_text() == "before" and told.out == ""


@pytest.mark.parametrize("flag", ["--out", "--work"])
def test_a_folder_that_cannot_be_written_is_told_before_the_first_run(flag, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = {"--out": str(tmp_path / "out"), "--work": str(tmp_path / "work")} | {flag: str(tmp_path / "file" / "x")}
    assert reproduce("fig-projection", "--quick", *(word for pair in words.items() for word in pair)) == 2
    told = capsys.readouterr().err
    assert "cannot be written" in told and f"with {flag}" in told and "ended with" not in told


def test_the_folder_of_a_table_of_other_runs_is_tried_too(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fig-loss").write_text("")
    assert reproduce("fig-loss", "--quick", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'out' / 'fig-loss'} cannot be written" in told and "ended with" not in told


@pytest.mark.parametrize(
    ("part", "own"),
    [
        ("summary", {"metric": "bits", "bits": "many"}),
        ("summary", {"rounds": 10**400}),
        ("curve", {"round": [0, 7]}),
        ("curve", {"round": [0, 0.5]}),
        ("curve", {"sent": None}),
    ],
)
def test_a_row_that_pictures_cannot_read_is_refused_before_they_are_drawn(part, own, tmp_path):
    known = filled(tmp_path, "table-main", quick=True)
    row = ended(known.rows[0])
    whole = {key: value for key, value in {**row[part], **own}.items() if value is not None}
    known.folder.joinpath("runs.jsonl").write_text(json.dumps({**row, part: whole}) + "\n")
    with pytest.raises(UserError, match="line 1, is damaged"):
        finished.Finished.of(known.folder)


def test_a_picture_of_a_table_says_its_data_set_and_that_it_is_a_subset(tmp_path):
    runs = plan.read("fig-memorise", RECIPES).planned(RECIPES)
    target, known = plan.read("fig-memorise", RECIPES), finished.Finished.of(RESULTS / "fig-memorise")
    own = [run for run in runs if run.part == "svhn"]
    sheets.write(replace(target, pictures=["falls"]), own, known, tmp_path)
    assert ">SVHN, a subset: 20,000 of 99,289 pictures<" in (tmp_path / "svhn-falls.svg").read_text()
