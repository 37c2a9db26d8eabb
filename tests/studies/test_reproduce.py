"""`pfed1bs reproduce`: what is run and in which order, rows from which it goes on, what stands beside them."""

import json
import re
import shutil
from copy import deepcopy
from dataclasses import replace
from math import atan, hypot, inf, pi, sqrt
from pathlib import Path

import numpy
import pytest

from drawn_text import outside
from pfed1bs import make
from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.facts import costs
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.report.groups import groups
from pfed1bs.report.records import read
from pfed1bs.report.statistics import MOST, Difference, holm
from pfed1bs.studies import amounts, cells, contrasts, finished, markdown, plan, sheets, sweeps
from pfed1bs.studies.cells import Entered
from pfed1bs.studies.comparison import Entry

RECIPES = Path(__file__).parents[2] / "recipes"
HEADER = 20  # bytes of a message
PAPER = [target for target in plan.NAMES if plan.read(target, RECIPES).paper]


def reproduce(*words):
    return cli.main(["reproduce", *words, "--quick", "--recipes", str(RECIPES)])


def lines(folder):
    return finished.Finished.of(folder).rows


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Everything, small."""
    home = tmp_path_factory.mktemp("quick")
    assert reproduce("all", "--out", str(home / "out"), "--work", str(home / "work")) == 0
    return home


@pytest.fixture
def copied(quick, tmp_path):
    shutil.copytree(quick / "out", tmp_path / "out")
    return tmp_path


def test_everything_has_a_small_version_with_rows_tables_and_pictures(quick):
    assert {path.name for path in (quick / "out").iterdir()} == {*plan.NAMES}
    for name in plan.NAMES:
        target, folder = plan.read(name, RECIPES), quick / "out" / name
        table = json.loads((folder / "table.json").read_text())
        assert table["missing"] == 0 and table["commit"] and table["command"] == f"pfed1bs reproduce {name} --quick"
        assert "not run" not in (folder / "table.md").read_text()
        made = f"pfed1bs reproduce {name} --quick; commits {', '.join(table['commit'])}"
        assert target.ticks or (folder / "table.md").read_text().endswith(f"<!-- {made} -->\n")
        assert all(f"<desc>{made}</desc>" in path.read_text() for path in folder.glob("*.svg"))
        drawn = {*target.pictures} - {"falls"}  # of methods at two steps, and a quick version has one: test_facets.py
        assert {path.stem for path in folder.glob("*.svg")} == {f"digits-{picture}" for picture in drawn}
        assert (folder / "runs.csv").exists() == bool(target.parts)  # figures of another table's runs have none
    assert not [*(quick / "work").glob("*/*")]


def test_no_text_leaves_the_picture_that_it_is_in(quick):
    pictures = [*(quick / "out").glob("*/*.svg")]
    assert pictures and {str(path): found for path in pictures if (found := outside(path.read_text()))} == {}


def test_a_row_tells_what_was_run_and_on_what(quick):
    first = lines(quick / "out" / "table-main")[0]
    assert first["config"]["algorithm"]["name"] == "fedavg" and first["config"]["seed"] == 0
    assert {"commit", "device", "torch", "time", "command"} <= {*first["env"]}
    heads = (quick / "out" / "table-main" / "runs.csv").read_text().splitlines()[0].split(",")
    assert {"options", "seed", "commit", "device", "time", "accuracy"} <= {*heads}


def test_rows_are_runs_for_a_report_and_cells_are_not(quick, tmp_path, monkeypatch, capsys):
    found = []
    monkeypatch.setattr("pfed1bs.cli.terminal.write", lambda records, *_: found.extend(records))
    folder = quick / "out" / "table-main"
    assert cli.main(["report", str(folder / "runs.jsonl"), "--out", str(tmp_path)]) == 0
    rows = [row for row in lines(folder) if "summary" in row]
    assert [record.sent()[-1] for record in found] == [row["curve"]["sent"][-1] for row in rows]
    assert cli.main(["report", str(folder / "table.json"), "--out", str(tmp_path)]) == 2
    assert "or runs.jsonl of `reproduce`" in capsys.readouterr().err


def test_what_is_left_out_by_only_is_told_with_what_there_is(tmp_path, capsys):
    assert reproduce("table-main", "--only", "mnist", "--out", str(tmp_path)) == 2
    assert "no run is left: there are data sets digits" in capsys.readouterr().err


def test_to_draw_without_any_row_is_refused_and_a_slip_of_the_pen_is_told(tmp_path, capsys):
    assert reproduce("all", "--draw", "--out", str(tmp_path)) == 2
    assert f"there are no rows in {tmp_path}" in capsys.readouterr().err and not [*tmp_path.iterdir()]
    assert reproduce("table-main", "--only", "digist", "--out", str(tmp_path)) == 2
    assert "did you mean digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--only", "digits,typo"], ["--only", ""], ["--methods", "fedavg,typo"], ["--seeds", "0,77"]]
)
def test_a_data_set_a_method_or_a_seed_that_no_run_has_is_refused(words, tmp_path, capsys):
    assert reproduce("table-main", *words, "--out", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert ": there are data sets digits; methods ditto, eden, " in said and "; seeds 0" in said


def test_methods_are_chosen_with_all_their_variants(copied, capsys):
    for name in plan.NAMES[1:]:
        shutil.rmtree(copied / "out" / name)
    words = ["table-main", "--out", str(copied / "out"), "--work", str(copied / "work")]
    rows, file = lines(copied / "out" / "table-main"), copied / "out" / "table-main" / "runs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows if row["label"] not in ("fedavg", "local")))
    assert reproduce(*words, "--methods", "local,pfed1bs-delta", "--resume") == 0
    assert ": 1 of 2, left to run: 1\n" in capsys.readouterr().err
    assert {row["label"] for row in rows} - {row["label"] for row in lines(copied / "out" / "table-main")} == {"fedavg"}


@pytest.mark.parametrize("words", [["--only", "digits"], ["--methods", "local"], ["--seeds", "0"]])
def test_drawing_takes_all_rows_and_says_so_where_some_are_chosen(words, quick, capsys):
    assert reproduce("table-main", "--draw", *words, "--out", str(quick / "out")) == 2
    assert f"and {words[0]} chooses runs" in capsys.readouterr().err


def test_a_small_version_is_called_one_and_does_not_go_over_another(quick, tmp_path, capsys):
    assert (
        "says nothing of any method" in json.loads((quick / "out" / "table-main" / "table.json").read_text())["title"]
    )
    [row, *_] = lines(quick / "out" / "table-main")
    row["config"]["data"]["name"] = "mnist"
    finished.Finished(tmp_path / "table-main").add(row)
    before = [(path, path.read_bytes()) for path in tmp_path.glob("*/*")]
    assert reproduce("fig-accuracy", "--resume", "--out", str(tmp_path)) == 2
    assert "has rows of mnist" in capsys.readouterr().err
    assert [(path, path.read_bytes()) for path in tmp_path.glob("*/*")] == before


def test_all_may_stand_beside_names_and_a_figure_without_runs_says_so(quick, tmp_path, capsys):
    shutil.copytree(quick / "out" / "fig-participation", tmp_path / "fig-participation")
    assert reproduce("all", "table-main", "--draw", "--out", str(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "| `stc` | `x-x--` |" in told  # the table of capabilities, which needs no runs
    assert f"{tmp_path / 'fig-pareto'}: no runs, nothing drawn" in told and f"{tmp_path / 'table-main'}\n" in told


def test_finished_runs_are_not_repeated_and_a_missing_one_is(copied, capsys):
    words = ["table-main", "--out", str(copied / "out"), "--work", str(copied / "work")]
    before = lines(copied / "out" / "table-main")
    assert reproduce(*words) == 0 and "so no run is made" in capsys.readouterr().err
    file = copied / "out" / "table-main" / "runs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in before[1:]) + '{"cut off')
    for name in plan.NAMES[1:]:
        shutil.rmtree(copied / "out" / name)
    assert reproduce(*words) == 2 and "--resume" in capsys.readouterr().err
    assert reproduce(*words, "--resume") == 0
    cut, _, said = capsys.readouterr().err.splitlines()
    assert cut == f"{file}: the last line was cut off and is left out"
    after, score = lines(copied / "out" / "table-main"), before[0]["summary"]["accuracy"]
    assert said.startswith(f"table-main/digits-fedavg-s0: ended with {score:.2f}; 2 of 2 rounds, ")
    assert (
        len(after) == len(before) and after[-1]["summary"]["accuracy"] == score and not [*(copied / "work").glob("*/*")]
    )


def test_rows_of_another_machine_join_by_themselves_with_their_provenance(quick, tmp_path, capsys):
    words = ["fig-accuracy", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert reproduce(*words, "--join", str(quick / "out"), "--resume") == 0
    first, then = capsys.readouterr().err.splitlines()
    count, every = (len(finished.elsewhere(quick / "out" / name)) for name in ("table-main", "."))
    assert "so no run is made" in then
    assert first == f"joined {quick / 'out'}: {count} of its {every} rows were missing in {tmp_path / 'out'}"
    assert reproduce(*words, "--join", str(quick / "out")) == 0  # the same rows are no others
    assert "made in both" not in capsys.readouterr().err
    theirs, ours = lines(quick / "out" / "table-main"), lines(tmp_path / "out" / "table-main")
    assert len(ours) == len(theirs) and {row["env"]["time"] for row in ours} <= {
        row["env"]["time"] for name in plan.NAMES for row in finished.Finished.of(quick / "out" / name).rows
    }


def test_of_rows_that_fit_the_one_that_logged_the_most_is_taken_over(tmp_path):
    run = plan.read("fig-projection", RECIPES).planned(RECIPES, quick=True)[0]
    config = finished.settings(run.entry.config)
    plain, rich = ({"config": config, "curve": dict.fromkeys(keys, [])} for keys in ("a", "ab"))
    for order in ([plain, rich], [rich, plain], [{"config": config, "diverged": True}, rich]):
        known = finished.Finished(tmp_path / str(len(list(tmp_path.iterdir()))))
        known.join(order, [run])
        assert [row["curve"] for row in known.rows] == [rich["curve"]]


def made_from(row, share):
    """A row as if every client had this share of its test samples."""
    samples = [round(share * count) for count in row["clients"]["test_samples"]]
    return {**row, "clients": {**row["clients"], "test_samples": samples}}


def test_rows_of_other_files_are_not_joined_and_not_drawn_together(quick, tmp_path):
    rows = lines(quick / "out" / "table-main")
    runs = plan.read("table-main", RECIPES).planned(RECIPES, quick=True)
    known = finished.Finished(tmp_path / "some")
    known.add(rows[0])
    few = [made_from(row, 0.3) for row in rows]
    with pytest.raises(UserError, match="rows of digits were made from different files: .* test samples, .* test"):
        known.join(few, runs)
    assert lines(tmp_path / "some") == rows[:1]  # nothing was taken
    with pytest.raises(UserError, match="different files"):
        known.add(few[1])
    assert lines(tmp_path / "some") == rows[:1]
    known.join([made_from(row, 1.01) for row in rows], runs)  # as many to a sample or so a client
    assert len(known.rows) == len(rows) and finished.Finished(tmp_path / "few").join(few, runs) == len(rows)
    held = {**few[2]["config"], "data": {**few[2]["config"]["data"], "validate": True}}
    amounts.agree([*rows, {**few[2], "config": held}])  # which holds samples back
    target, known = plan.read("table-main", RECIPES), finished.Finished(tmp_path, [rows[0], few[1]])
    with pytest.raises(UserError, match="different files"):
        sheets.write(target, runs, known, tmp_path)


def test_a_data_set_is_called_a_subset_where_its_rows_are_of_one(quick):
    [row, *_] = lines(quick / "out" / "table-main")
    count = sum(row["clients"]["test_samples"])
    part, whole = (made_from(row, tests / count) for tests in (5003, 24820))
    assert amounts.subset("svhn", [part, {"diverged": True}]) == "a subset: 20,000 of 99,289 pictures"
    assert amounts.subset("svhn", [whole]) == amounts.subset("mnist", [part]) == amounts.subset("svhn", []) == ""


def test_a_run_folder_is_joined_as_a_row(tmp_path):
    run = plan.read("fig-projection", RECIPES).planned(RECIPES, quick=True)[0]
    words = ["--data.name", "digits", "--data.augment", "false", "--rest", "0", "--algorithm.lam", "5e-4"]
    words += ["--rounds", "2", "--steps", "2", "--batch", "8", "--evaluate_every", "1", "--out", str(tmp_path / "run")]
    assert cli.main(["run", str(RECIPES / "mnist-2class.toml"), *words]) == 0
    known = finished.Finished(tmp_path / "out")
    known.join(finished.elsewhere(tmp_path), [run])
    assert known.find(run)["summary"]["accuracy"] == read(tmp_path / "run").summary["accuracy"]


def test_a_row_with_other_settings_is_another_run(quick, tmp_path):
    run = plan.read("table-main", RECIPES).planned(RECIPES, quick=True)[0]
    row, config = lines(quick / "out" / "table-main")[0], run.entry.config
    assert finished.same(row, config)
    changed = {**row, "config": {**row["config"], "algorithm": {**row["config"]["algorithm"], "lr": 0.01}}}
    assert not finished.same(changed, config)
    assert not finished.same({**row, "config": {**row["config"], "rounds": 3}}, config)
    assert not finished.same({**row, "config": {**row["config"], "tf32": True}}, config)
    assert finished.same({**row, "config": {**row["config"], "device": "cuda", "checkpoint_every": 7}}, config)
    assert not finished.same({**row, "config": {**row["config"], "evaluate_every": 7}}, config)  # of the last five
    assert finished.same({**row, "config": {**row["config"], "sampled": config.clients}}, config)  # all, as if not told
    assert not finished.same({**row, "config": {**row["config"], "sampled": 5}}, config)
    known, every = finished.Finished(tmp_path), replace(config, sampled=config.clients)
    known.join([row], [replace(run, entry=replace(run.entry, config=every))])
    again = finished.Finished(tmp_path / "again")
    again.join(known.rows, [run])
    assert "sampled" not in again.rows[0]["config"]  # otherwise a picture would tell the two apart
    assert [joined["config"]["sampled"] for joined in known.rows] == [config.clients]  # one line in pictures
    old = {key: value for key, value in row["config"]["algorithm"].items() if key != "tune"}  # an option of later days
    assert finished.same({**row, "config": {**row["config"], "algorithm": old}}, config)


def test_a_row_has_the_curve_of_its_run(tmp_path):
    words = ["--rounds", "5", "--evaluate_every", "2", "--steps", "1", "--batch", "4", "--out", str(tmp_path / "run")]
    assert cli.main(["run", *words]) == 0
    [row] = finished.elsewhere(tmp_path)
    record, whole = finished.record_of(row), read(tmp_path / "run")
    judged = [line["round"] for line in whole.metrics if "accuracy" in line]
    assert judged == [1, 3, 4] and len(record.metrics) == 5
    for number in judged:
        assert record.sent()[number] == whole.sent()[number]
        assert record.metrics[number]["accuracy"] == pytest.approx(whole.metrics[number]["accuracy"], rel=1e-5)
        assert record.metrics[number]["agreement"] == pytest.approx(whole.metrics[number]["agreement"], rel=1e-5)
    assert record.clients[3]["accuracy"] == pytest.approx(whole.clients[3]["accuracy"], rel=1e-5)


def test_methods_at_equal_bytes_send_equal_bytes():
    task, sent = Task(build("mlp", (1, 28, 28), 10)), {}
    for run in plan.read("table-bytes", RECIPES).planned(RECIPES):
        config = run.entry.config
        algorithm = make(
            config.method, task, **{key: value for key, value in config.algorithm.items() if key != "name"}
        )
        sizes = [codec.size for codec in algorithm.up.values()]
        if config.method == "stc":
            detail = costs.Detail(sparsity=algorithm.p_up)
            sizes = [costs.bits("stc", task.n, 0, 20, 20, detail=detail).up / 8]
        sent[run.part, run.label] = config.rounds * (sum(sizes) + HEADER)
        assert config.rest == 0 and config.steps == 10 and (config.method == "decomfl" or algorithm.gradients(10) == 10)
    for (part, label), own in sent.items():
        if label not in ("local", "delta-float32") and "moves=2" not in label:
            near = 0.1 if (part, label) == ("mnist ratio=0.01", "powersgd") else 0.03  # four rounds of it, no half ones
            assert own == pytest.approx(sent[part, "pfed1bs-delta"], rel=near), (part, label)


def test_every_table_is_complete_at_one_seed_before_the_next_and_data_sets_have_an_order():
    plans = {name: plan.read(name, RECIPES).planned(RECIPES) for name in plan.NAMES}
    runs = plan.in_order(plans.values())
    seeds = [run.entry.config.seed for run in runs]
    assert seeds == sorted(seeds) and len({run.entry.name for run in runs}) == len(runs)
    for name, own in plans.items():
        first = [run.entry.config.data.name for run in own if run.entry.config.seed == 0]
        assert first == sorted(first, key=plan.ORDER.index), name
    methods, seeds = (13, 13, 13, 13, 12), (10, 10, 5, 5, 3)  # without compression but for VGG16
    counts = {data: number * count for data, number, count in zip(plan.ORDER, methods, seeds, strict=True)}
    main = [run.entry.config.data.name for run in plans["table-main"]]
    assert {data: main.count(data) for data in plan.ORDER} == counts


def test_a_run_that_two_parts_want_is_one_run():
    parts = [
        plan.Piece("digits", algorithms=names, seeds=seeds)
        for names, seeds in ((["local", "ditto"], 1), (["local"], 2))
    ]
    runs = plan.Target("table-main", "", parts).planned(RECIPES)
    assert [(run.label, run.entry.config.seed) for run in runs] == [("local", 0), ("ditto", 0), ("local", 1)]


@pytest.mark.parametrize("name", PAPER)
def test_every_cell_of_the_paper_stands_beside_a_run(name):
    target = plan.read(name, RECIPES)
    own = {(run.label, run.entry.config.data.name) for run in target.planned(RECIPES)}
    assert {(label, data) for label, cells in target.paper.items() for data in cells} <= own


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ([97.0, 97.0], "reproduced"),
        ([98.2, 98.4], "reproduced"),
        ([99.1, 99.3], "differs: 1.37 higher"),
        ([90.0], "one seed: 7.83 lower"),  # how far off one run may be nobody knows
        ([90.0, 100.0], "open: 2.83 lower \u00b1 63.53"),  # 12.706 standard errors of 5: too few seeds to tell
        ([92.0, 103.0], "open: 0.33 lower \u00b1 69.88"),  # nor if they are near by chance
        ([96.5, 96.7], "reproduced"),  # 1.23 away, within 12.7 standard errors of 0.1
        ([90.0, 100.0] * 10, "differs: 2.83 lower"),  # not within 2.09 of 1.15
        ([97.0], "one seed: 0.83 lower"),
        ([98.0], "one seed: 0.17 higher"),
        ([], ""),
    ],
)
def test_a_cell_is_reproduced_within_a_point_or_the_interval_of_the_difference(accuracies, verdict):
    found = [{"summary": {"accuracy": value}} for value in accuracies]
    cell = Entered("mnist", "pfed1bs", "mnist", 2, found, (97.83, 0.02))
    assert cell.verdict == verdict and (cell.ours == "not run") == (not accuracies)


def row_of(seed, accuracy, late=None):
    return {
        "summary": {"algorithm": "x", "seed": seed, "accuracy": accuracy} | ({"accuracy_late": late} if late else {})
    }


def entered(target, part, wanted, **rows):
    """The cells of a part, as they stand beside each other."""
    beside = contrasts.compared(target, {(part, label): own for label, own in rows.items()}, part)
    return {label: Entered(part, label, "mnist", wanted, own, None, beside.get(label)) for label, own in rows.items()}


def test_a_cell_is_compared_with_training_alone_seed_by_seed():
    base = [row_of(0, 90.0, 89.0), row_of(1, 80.0, 79.0), row_of(2, 70.0, 69.0)]
    ours = [row_of(1, 80.1, 79.5), row_of(0, 90.3, 89.75), row_of(7, 0.0, 0.0)]
    found = entered(plan.Target("", "", against="local"), "mnist", 3, local=base, pfed1bs=ours)
    apart = Difference("", "", (0.3, 0.1))
    low, high = apart.interval()
    mean, equal, far, late = found["pfed1bs"].apart
    late_ends = Difference("", "", (0.75, 0.5)).interval()
    assert mean == f"+0.20 ({low:+.2f} to {high:+.2f})" and low < 0 < high
    assert late == f"+0.62 ({late_ends[0]:+.2f} to {late_ends[1]:+.2f})"
    facts = found["pfed1bs"].facts["difference"]
    assert facts["interval"] == pytest.approx((low, high)) and facts["late_interval"] == pytest.approx(late_ends)
    assert (equal, far) == (f"{apart.different():.3f}", f"{apart.equal():.3f}")
    assert found["local"].apart == ("",) * 4 and "difference" not in found["local"].facts
    assert contrasts.compared(plan.Target("", "", against="local"), {("mnist", "ditto"): ours}, "mnist") == {}
    diverged = entered(plan.Target("", "", against="local"), "mnist", 3, local=base, stc=[*ours, {"diverged": True}])
    assert diverged["stc"].apart == ("",) * 4  # a mean over the seeds that went well says nothing


def test_of_methods_that_are_named_those_without_a_common_seed_are_not_tested_and_no_others_are():
    base, rows = [row_of(0, 90.0), row_of(1, 80.0)], [row_of(0, 91.0), row_of(1, 80.5)]
    target = plan.Target("", "", against="local", tested=("stc", "ditto"))
    found = entered(target, "mnist", 2, local=base, ditto=rows, apfl=rows, stc=[row_of(7, 1.0)])
    assert found["ditto"].beside.p is not None and found["apfl"].beside.p is None and found["stc"].beside is None
    found = entered(replace(target, tested=("stc",)), "mnist", 2, local=base, ditto=rows, stc=[])
    assert found["ditto"].beside.p is None


def test_differences_that_are_all_one_number_are_not_tested():
    base = [row_of(0, 90.0), row_of(1, 80.0)]
    found = entered(
        *(plan.Target("", "", against="local"), "mnist", 2),
        local=base,
        ditto=[row_of(0, 98.0), row_of(1, 88.0)],
        fedbn=base,
    )
    assert (found["ditto"].beside.p, found["ditto"].beside.equal) == (None, None)
    assert (found["fedbn"].beside.p, found["fedbn"].beside.equal) == (1.0, 0.0)


def test_the_comparisons_of_a_part_are_tested_together_and_only_those_that_are_named():
    rows = {
        name: [row_of(seed, 80.0 + 0.5 * at + 0.1 * seed * at) for seed in range(3)] for at, name in enumerate("abcd")
    }
    alone = {
        name: Difference("", "", tuple(0.5 * at + 0.1 * seed * at for seed in range(3))).different()
        for at, name in enumerate("abcd")
    }
    for tested in ((), ("b", "d", "nobody")):
        found = entered(plan.Target("", "", against="a", tested=tested), "mnist", 3, **rows)
        names = tested[:2] or ("b", "c", "d")
        expected = dict(zip(names, holm([alone[name] for name in names]), strict=True))
        assert {name: cell.beside.p for name, cell in found.items() if cell.beside and cell.beside.p} == pytest.approx(
            expected
        )
        assert found["b"].facts["difference"]["p_holm"] == pytest.approx(expected["b"])


@pytest.mark.parametrize("name", [name for name in plan.NAMES if plan.read(name, RECIPES).tested])
def test_comparisons_that_are_named_are_runs_of_the_table_and_at_most_ten(name):
    target = plan.read(name, RECIPES)
    assert {*target.tested} <= {run.label for run in target.planned(RECIPES)} and len(target.tested) <= MOST


def test_a_table_has_the_last_diagnostics_and_no_number_where_one_is_not_finite():
    def cell(*pulls):
        rows = [{"summary": {"accuracy": 90.0}, "curve": {"agreement": [0.5, 0.9375], "pull": pull}} for pull in pulls]
        return Entered("mnist", "pfed1bs", "mnist", 2, rows, logged=target.logged)

    target = plan.Target("", "", logged=("agreement", "pull"))
    text = markdown.markdown(target, [cell([0.1, 0.2], [0.1, 0.4]), cell([0.1, 0.2], [0.1, inf])])
    assert "| 2 of 2 | 0.9375 | 0.3000 |" in text and "| 2 of 2 | 0.9375 |  |" in text and "shared" not in text


def test_a_picture_against_an_option_leaves_out_what_is_not_finite_at_the_end(quick):
    rows = lines(quick / "out" / "fig-why")
    more, own = deepcopy(rows), deepcopy(rows)
    for row in rows + more:
        row["curve"]["pull"][-1], row["config"]["data"]["cap"] = 0.25, 12
    for row in more:
        row["curve"]["pull"][-1], row["config"]["algorithm"]["lam"] = 0.05, 0.5
    for row in own:
        row["curve"]["pull"][-1], row["config"]["data"]["cap"] = inf, None
        row["config"]["algorithm"]["start"] = "own"
    picture = sweeps.against("lam", groups([finished.record_of(row) for row in rows + more + own]))
    drawn = picture.lines
    assert {line[3] for line in drawn if line[0] == "pull"} == {0.05, 0.25}
    assert "mathdefault" not in picture.svg  # less than a decade, where matplotlib has labels of its own
    assert {line[1] for line in drawn} == {"start common, 12 samples", "start own, all samples"}


def test_a_picture_has_the_labels_of_the_table_unless_settings_share_them(quick):
    rows = [deepcopy(lines(quick / "out" / "fig-why")[0]) for _ in range(4)]
    for row, lam, ratio in zip(rows, (0.25, 0.5, 0.25, 0.5), (0.1, 0.1, 0.3, 0.3), strict=True):
        row["config"]["algorithm"] |= {"lam": lam, "ratio": ratio}
        row["label"] = f"pfed1bs lam={lam}"
    found = groups(map(finished.record_of, rows[:2]))
    found[0] = replace(found[0], label="pfed1bs lam=0.25 and more")
    assert [group.label for group in sheets.named(found)] == ["pfed1bs lam=0.25", "pfed1bs lam=0.5"]
    assert [group.label for group in sheets.named([replace(found[0], label="pfed1bs")])] == ["pfed1bs"]
    shared = groups(map(finished.record_of, rows))  # ratio is a setting here: no label of a row has it
    assert sheets.named(shared) == shared and len({group.label for group in shared}) == len(rows)


def test_a_table_with_methods_across_counts_the_settings_that_were_not_run():
    target = plan.Target("", "", across="methods")
    done = Entered("iid", "local", "mnist", 1, [{"summary": {"accuracy": 90.0}}])
    left = Entered("labels:2", "local", "mnist", 1, [])
    assert markdown.markdown(target, [done, left]).splitlines()[2:] == [
        *("| iid | 90.00 | 1 of 1 |", "", "Settings that were not run: 1 of 2.")
    ]
    assert markdown.markdown(target, [left]) == "Settings that were not run: 1 of 1.\n"


def test_a_table_with_methods_across_tells_differences_and_of_how_many_seeds():
    def rows(*accuracies):
        return [row_of(seed, value, value - 1) for seed, value in enumerate(accuracies)]

    target = plan.Target("", "", across="methods", against="local", rivals={"ditto": ["apfl", "local"]})
    iid = entered(target, "iid", 2, local=rows(90.0, 80.0), ditto=rows(91.0, 83.0), apfl=rows(90.0), stc=[])
    two = entered(target, "labels:2", 2, local=rows(70.0), ditto=rows(71.25, 60.0))
    mean, equal, far, late = iid["ditto"].apart
    assert markdown.markdown(target, [*iid.values(), *two.values()]).splitlines()[2:] == [
        "| iid | 90.00 | 91.00 | 90.00 | 1 of 2 |",  # seeds that all three have
        "| labels:2 | 70.00 | 71.25 |  | 1 of 2 |",
        "",
        "| minus `local`; p if equal (Holm), p if 0.3 apart | ditto | apfl |",
        "| --- | --- | --- |",
        f"| iid | {mean}; p {equal}, {far}; 2 seeds | +0.00; 1 seed |",
        "| labels:2 | +1.25; 1 seed |  |",
        "",
        "| last 5, minus `local` | ditto | apfl |",
        "| --- | --- | --- |",
        f"| iid | {late} | +0.00 |",
        "| labels:2 | +1.25 |  |",
        "",
        "| `ditto` minus | apfl | local |",
        "| --- | --- | --- |",
        f"| iid | +1.00; 1 seed | {mean}; 2 seeds |",
        "| labels:2 |  | +1.25; 1 seed |",
        "",
        "Not run anywhere: `stc`.",
    ]
    assert two["ditto"].facts["difference"]["interval"] is None and "equal_within" not in two["ditto"].facts


def test_rivals_of_a_label_are_tested_together_within_a_part():
    def rows(*accuracies):
        return [row_of(seed, value, value - 1) for seed, value in enumerate(accuracies)]

    of = {"ditto": rows(91.0, 83.0), "apfl": rows(90.0, 80.0), "local": rows(90.0, 81.5), "stc": rows(50.0)}
    found = [Entered("iid", label, "mnist", 2, own) for label, own in of.items()]
    found += [Entered("labels:2", label, "mnist", 2, of[label]) for label in ("ditto", "apfl")]
    target = plan.Target("", "", rivals={"ditto": ["apfl", "local", "stc"]})
    p = {place: item.p for place, item in contrasts.rivals(target, found).items()}
    two, five = (1 - 2 * atan(t) / pi for t in (2, 5))  # two-sided, one degree of freedom: differences 1, 3 and 1, 1.5
    assert p == {
        ("iid", "ditto", "apfl"): pytest.approx(max(two, 2 * five)),
        ("iid", "ditto", "local"): pytest.approx(2 * five),
        ("iid", "ditto", "stc"): None,
        ("labels:2", "ditto", "apfl"): pytest.approx(two),
    }
    assert two > 2 * five > five


def test_what_a_setting_changes_is_told_of_every_label_and_data_set_over_common_seeds():
    def rows(*accuracies):
        return [row_of(seed, value, value) for seed, value in enumerate(accuracies)]

    found = [
        Entered("mnist steps=5", "local", "mnist", 2, rows(90.0, 80.0)),
        Entered("mnist steps=5", "ditto", "mnist", 2, rows(60.0)),
        Entered("mnist steps=10", "local", "mnist", 2, rows(91.0, 83.0, 50.0)),
        Entered("mnist steps=10", "ditto", "mnist", 2, []),
        Entered("svhn steps=5", "local", "svhn", 2, rows(10.0)),
        Entered("svhn steps=10", "local", "svhn", 2, rows(12.5)),
    ]
    apart = contrasts.shifts(plan.Target("", "", shifts=True), found)
    told = {place: (item.difference, item.seeds) for place, item in apart.items()}
    assert told == {
        ("mnist", "local steps=10", "local steps=5"): (2.0, 2),
        ("svhn", "local steps=10", "local steps=5"): (2.5, 1),
    }
    assert {item.p for item in apart.values()} == {None}  # of many pairs none is tested
    assert not contrasts.shifts(plan.Target("", ""), found)


def test_a_table_names_the_methods_that_were_not_run_and_the_paper_has_no_number_of():
    target = plan.Target("", "", paper={"ditto": {"mnist": [90.0, 1.0]}})
    left, told = Entered("mnist", "local", "mnist", 2, []), Entered("mnist", "ditto", "mnist", 2, [], (90.0, 1.0))
    assert markdown.markdown(target, [left]) == "**mnist**\n\nNot run: `local`.\n"
    text = markdown.markdown(target, [left, told])
    assert text == "**mnist**\n\nNot run: `local`, `ditto`.\n"
    some = Entered("mnist", "fedavg", "mnist", 2, [row_of(0, 90.0)])
    text = markdown.markdown(target, [left, told, some])
    assert "| `ditto` | not run |" in text and text.endswith("|\n\nNot run: `local`.\n")


def test_a_cell_tells_its_highest_evaluation_and_what_is_lost_from_there():
    def row(seed, *curve):
        rounds = [9, 19, 29][: len(curve)]
        return {"summary": {"seed": seed, "accuracy": curve[-1]}, "curve": {"round": rounds, "accuracy": [*curve]}}

    cell = Entered("mnist", "ditto", "mnist", 2, [row(0, 80.0, 92.0, 91.0), row(1, 90.0, 88.0, 85.0)], peaks=True)
    assert cell.highest[0] == 20 and cell.highest[1].mean == 90.0 and cell.lost.values == (-1.0, -3.0)
    target = plan.Target("", "", peaks=True)
    assert "| 90.00 \u00b1 2.83 | 20 | -2.00 (-14.71 to +10.71) |" in markdown.markdown(target, [cell])
    rising = Entered("mnist", "local", "mnist", 1, [row(0, 80.0, 81.0)], peaks=True)
    assert rising.highest[0] == 20 and rising.lost is None and "since_highest" not in rising.facts
    assert Entered("mnist", "local", "mnist", 1, [], peaks=True).highest is None


def test_what_is_lost_since_the_highest_evaluation_has_the_p_of_a_difference():
    def row(seed, *curve):
        return {"summary": {"seed": seed}, "curve": {"round": [9, 19], "accuracy": [*curve]}}

    cell = Entered("mnist", "x", "mnist", 3, [row(0, 92.0, 90.0), row(1, 92.0, 91.0), row(2, 92.0, 90.5)], peaks=True)
    assert cell.facts["since_highest"]["p"] == Difference("", "", (-2.0, -1.0, -1.5)).different() < 0.05


def test_a_method_that_diverged_in_a_setting_leaves_the_seeds_of_the_others():
    gone = [{"diverged": True}, {"diverged": True}]
    found = [
        Entered("iid", "local", "mnist", 2, [row_of(0, 90.0), row_of(1, 80.0)]),
        Entered("iid", "stc", "mnist", 2, gone),
    ]
    text = markdown.markdown(plan.Target("", "", across="methods"), found)
    assert text.splitlines()[2] == "| iid | 85.00 \u00b1 7.07 | diverged | 2 of 2 |"
    alone = [Entered("iid", "stc", "mnist", 2, gone)]
    assert "| iid | diverged | 0 of 2 |" in markdown.markdown(plan.Target("", "", across="methods"), alone)


def test_costs_that_cannot_be_right_are_marked():
    cell = Entered("mnist", "eden lr=0.1", "mnist", 3, [], (96.5, 0.35))
    assert cell.cost == "12.15 cannot be right"
    assert Entered("svhn", "eden", "svhn", 3, [], (89.01, 0.48)).cost == "22.76 fits another count"
    assert Entered("cifar100", "fedbat", "cifar100", 3, [], (46.89, 1.25)).cost == "1198.71 fits no count"
    assert Entered("svhn", "zsign", "svhn", 3, [], (85.33, 1.05)).cost == "22.04"
    assert Entered("mnist", "ditto", "mnist", 3, []).cost == ""


def test_capabilities_are_those_of_the_paper(quick):
    lines = (quick / "out" / "table-capabilities" / "table.md").read_text().splitlines()
    assert sum("reproduced" in line for line in lines) == 5 and not any("differs" in line for line in lines)


def test_a_run_that_diverged_is_a_row_and_is_not_repeated(tmp_path):
    run = plan.read("table-main", RECIPES).planned(RECIPES, quick=True)[0]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "env.json").write_text(json.dumps({"commit": "abc", "device": "x", "torch": "2"}))
    known = finished.Finished(tmp_path / "out")
    known.add(finished.row_of(run, folder))
    found = finished.Finished.of(tmp_path / "out")
    assert found.find(run) == {**finished.row_of(run, folder), "diverged": True}
    [cell] = contrasts.cells(plan.read("table-main", RECIPES), [run], found)
    assert cell.ours == "diverged" and "abc" in finished.table(found.rows)


def test_two_commands_that_add_rows_to_one_file_lose_none_of_them(quick, tmp_path):
    row = lines(quick / "out" / "table-main")[0]
    one, two = finished.Finished.of(tmp_path), finished.Finished.of(tmp_path)
    a, b, c = ({**row, "label": name} for name in "abc")
    one.add(a)
    two.add(b)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"label": "cut", "env": {}')
    one.add(c)
    assert [row["label"] for row in finished.Finished.of(tmp_path).rows] == ["a", "b", "c"]


def test_mistakes_are_told(tmp_path, capsys):
    assert reproduce("table-mian") == 2 and "did you mean table-main?" in capsys.readouterr().err
    assert reproduce("table-main", "--only", "mnits", "--out", str(tmp_path)) == 2
    assert cli.main(["reproduce", "table-main", "--recipes", str(tmp_path)]) == 2
    assert "--recipes" in capsys.readouterr().err
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "fig-loss.toml").write_text('title = "x"\npicture = "y"\n')
    assert cli.main(["reproduce", "fig-loss", "--recipes", str(tmp_path)]) == 2
    assert "unknown key picture" in capsys.readouterr().err


def test_a_recipe_of_ones_own_stands_beside_ours_as_the_document_says(tmp_path):
    shutil.copytree(RECIPES, tmp_path / "mine")
    [shown] = re.findall(r"```toml\n(.*?)```", (RECIPES.parent / "docs" / "reproduce.md").read_text(), re.DOTALL)
    (tmp_path / "mine" / "reproduce" / "my-table.toml").write_text(shown)
    target = plan.read("my-table", tmp_path / "mine")
    runs, known = target.planned(tmp_path / "mine"), finished.Finished(tmp_path / "out")
    known.join(finished.elsewhere(RECIPES.parent / "results" / "table-main"), runs)
    assert [run.label for run in runs[:3]] == ["local", "fedavg", "pfed1bs lam=0.05"] and len(runs) == 9
    assert {row["label"] for row in known.rows} == {"local", "fedavg"} and len(known.rows) == 6


def own(folder, text, words=(), **parts):
    """A table of one's own."""
    (folder / "reproduce").mkdir(exist_ok=True)
    told = "".join(f"{key} = {json.dumps(value)}\n" for key, value in parts.items())
    (folder / "reproduce" / "own.toml").write_text(f'title = "x"\n{text}\n[[parts]]\nrecipe = "tiny"\n{told}')
    (folder / "tiny.toml").write_text('rounds = 2\nsteps = 1\n[data]\nname = "digits"\n')
    places = ["--recipes", str(folder), "--out", str(folder / "out"), "--work", str(folder / "work")]
    return cli.main(["reproduce", "own", *places, *words])


@pytest.mark.parametrize(
    ("text", "parts", "said"),
    [
        ("", {"algorithms": ["local"], "seeds": [0, 1]}, "seeds is a number, got a list ([0, 1])"),
        ("", {"algorithms": "local", "seeds": 1}, "algorithms is a list, got text ('local')"),
        ("across = 3", {"algorithms": ["local"], "seeds": 1}, "across is text, got a number (3)"),
        ('against = "ditto"', {"algorithms": ["local"], "seeds": 1}, "no run is ditto"),
        ('tested = ["stc"]', {"algorithms": ["local"], "seeds": 1}, "no run is stc"),
        ('[rivals]\nlocal = ["stc"]', {"algorithms": ["local"], "seeds": 1}, "no run is stc"),
        ('[paper.stc]\nmnist = [90.0, 1.0]', {"algorithms": ["local"], "seeds": 1}, "no run is stc"),
    ],
)  # fmt: skip
def test_what_a_recipe_says_in_vain_is_refused(text, parts, said, tmp_path, capsys):
    assert own(tmp_path, text, **parts) == 2 and said in capsys.readouterr().err


def test_a_label_in_a_recipe_is_written_as_after_runs(tmp_path):
    text = 'against = "local"\n[paper."pfed1bs lam=5e-4"]\ndigits = [90.0, 1.0]'
    assert own(tmp_path, text, algorithms=["local"], runs=["pfed1bs lam=5e-4"], seeds=1) == 0
    assert "| 90.00 \u00b1 1.00 | one seed: " in (tmp_path / "out" / "own" / "table.md").read_text()


def test_data_that_are_not_there_are_missed_before_the_first_run(tmp_path, capsys):
    text = '[[parts]]\nrecipe = "tiny"\nalgorithms = ["local"]\nset = { "data.name" = "gone.npz" }\n'
    assert own(tmp_path, text, algorithms=["local"], seeds=1) == 2
    assert "gone.npz" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_two_parts_with_one_name_and_other_settings_are_refused(tmp_path, capsys):
    text = '[[parts]]\nrecipe = "tiny"\nalgorithms = ["local"]\nseeds = 1\nset = { rounds = 3 }\n'
    assert own(tmp_path, text, algorithms=["local"], seeds=1) == 2
    assert "two parts have local on digits with other settings" in capsys.readouterr().err


def test_runs_on_own_files_are_made_anew_when_these_change(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = numpy.random.default_rng(0)
    for name in ("One.npz", "other.npz"):
        x, y = random.normal(size=(200, 4)).astype("float32"), random.integers(0, 2, 200)
        numpy.savez(tmp_path / name, x=x, y=y)
    text = '[shared]\nset = { "data.name" = "One.npz", clients = 4 }\n'  # with its capital
    assert own(tmp_path, text, algorithms=["local"], seeds=1) == 0
    assert own(tmp_path, text, algorithms=["local"], seeds=1) == 0
    assert "1 of 1, so no run is made" in capsys.readouterr().err
    shutil.copy(tmp_path / "other.npz", tmp_path / "One.npz")
    assert own(tmp_path, text, ["--resume"], algorithms=["local"], seeds=1) == 0
    assert "ended with" in capsys.readouterr().err and len(lines(tmp_path / "out" / "own")) == 2


def test_names_are_those_of_the_recipes():
    assert {path.stem for path in (RECIPES / "reproduce").glob("*.toml")} == {*plan.NAMES}


def test_a_run_is_among_the_rows_of_its_target():
    [first, *_] = plan.read("fig-loss", RECIPES).planned(RECIPES, quick=True)
    assert first.target == "table-main" and isinstance(first.entry, Entry)


def test_a_cell_of_which_one_run_diverged_says_so_and_has_neither_verdict_nor_highest_evaluation():
    row = row_of(1, 97.9) | {"curve": {"round": [9, 19], "accuracy": [98.0, 97.9]}}
    cell = Entered("mnist", "x", "mnist", 2, [{"diverged": True}, row], (97.83, 0.02), peaks=True)
    assert (cell.ours, cell.verdict) == ("diverged", "")
    assert cell.highest is None and cell.lost is None and not {"highest", "since_highest"} & {*cell.facts}


def test_the_interval_of_a_cell_is_welchs_with_whole_degrees():
    ours, theirs = 0.1 / sqrt(3), 20 / sqrt(10)  # of 90.0, 90.2, 90.1, and of ten runs of the paper
    freedom = (ours**2 + theirs**2) ** 2 / (ours**4 / 2 + theirs**4 / 9)
    assert 9 < freedom < 9.01
    assert cells._uncertain(ours, 3, theirs) == pytest.approx(2.26216 * hypot(ours, theirs), rel=1e-4)


def test_what_is_lost_counts_seeds_that_rest_at_the_highest():
    def row(seed, *curve):
        rounds = [9, 19, 29][: len(curve)]
        return {"summary": {"seed": seed, "accuracy": curve[-1]}, "curve": {"round": rounds, "accuracy": [*curve]}}

    cell = Entered("m", "x", "m", 2, [row(0, 80.0, 90.0), row(1, 80.0, 92.0, 88.0)], peaks=True)
    assert cell.highest[0] == 20 and cell.lost.values == (0.0, -4.0)


def test_losses_that_are_the_same_with_every_seed_have_no_p():
    def row(seed, *curve):
        return {"summary": {"seed": seed, "accuracy": curve[-1]}, "curve": {"round": [9, 19], "accuracy": [*curve]}}

    cell = Entered("m", "x", "m", 2, [row(0, 80.0, 78.0), row(1, 90.0, 88.0)], peaks=True)
    assert cell.facts["since_highest"] == {"mean": -2.0, "seeds": 2, "interval": (-2.0, -2.0)}


def test_seeds_that_a_part_does_not_say_are_those_of_its_recipe(tmp_path):
    (tmp_path / "tiny.toml").write_text('[data]\nname = "digits"\n[compare]\nseeds = [3, 5]\n')
    runs = plan.Target("x", "", [plan.Piece("tiny", algorithms=["local"])]).planned(tmp_path)
    assert [run.entry.config.seed for run in runs] == [3, 5]


ONE = {"algorithms": ["local"], "seeds": 1}


@pytest.mark.parametrize(
    ("text", "parts", "said"),
    [
        ('pictures = ["nope"]', ONE, "pictures has no nope"),
        ('pictures = ["against-lam"]', ONE, "local has no number lam"),
        ('pictures = ["against-keep"]', {"algorithms": ["pfed1bs-delta"]}, "has no number keep"),
        ('pictures = ["falls"]', {"runs": ["local", "local lr=0.1"]}, "falls needs a step at the end of each label"),
        ('pictures = [3]', ONE, "each of pictures is text, got a number (3)"),
        ('logged = ["flip"]', ONE, "logged has no flip"),
        ('across = "method"', ONE, "across has no method"),
        ('[paper.local]\ndigits = 97', ONE, "is a mean and a deviation, got 97"),
        ('[paper.local]\ndigits = ["a", 1]', ONE, "is a mean and a deviation, got ['a', 1]"),
        ('[paper.local]\ndigitz = [97.0, 0.1]', ONE, "there is no run of local on digitz"),
        ('paper = { local = 3 }', ONE, "paper.local is a table, got a number (3)"),
        ('of = "own"', ONE, "own.toml has runs of its own in parts, or those of another table"),
        ('data = ["nope"]', ONE, "there is no run on nope"),
        ('tested = ["local"]', ONE, "tested needs a label to test against"),
        ('against = "local"\ntested = ["local"]', ONE, "tested has local beside itself"),
        ('against = "local"\ntested = ["ditto", "ditto"]', {"algorithms": ["local", "ditto"]}, "has a label twice"),
        ('rivals = { local = ["local"] }', ONE, "rivals has local beside itself"),
        ('rivals = { local = 3 }', ONE, "rivals.local is a list, got a number (3)"),
        ('rivals = { local = [3] }', ONE, "each of rivals.local is text, got a number (3)"),
        ('ticks = { local = 3 }', ONE, "ticks.local is text, got a number (3)"),
        ('[paper.local]\ndigits = [90.0, inf]', ONE, "is a mean and a deviation, got [90.0, inf]"),
        ('[paper.local]\ndigits = [900, 1]', ONE, "is a mean and a deviation, got [900, 1]"),
        ("", {**ONE, "name": "/../x"}, "its name /../x is a path"),
        ("[shared.set]\nseed = [7, 8]", ONE, "seed is not set in a part"),
        ('[shared.set]\ndevice = "nope"', ONE, "device is not set in a part"),
        ("[shared.set]\nnope = 1", ONE, "own.toml, a part of tiny: unknown key nope"),
        ('name = "y"', ONE, "unknown key name"),
        ('shared = 3', ONE, "shared is a table, got a number (3)"),
        ("", {**ONE, "algorithms": [3]}, "each of algorithms is text, got a number (3)"),
        ("", {**ONE, "runs": [True]}, "each of runs is text, got true or false (True)"),
        ("", {**ONE, "seeds": -1}, "seeds is a number from 0 on, got -1"),
        ("[shared.set]\nrounds = []", ONE, "rounds has no values"),
    ],
)  # fmt: skip
def test_what_a_recipe_cannot_mean_is_refused_before_the_first_run(text, parts, said, tmp_path, capsys):
    assert own(tmp_path, text, **parts) == 2
    told = capsys.readouterr().err
    assert said in told and "hint: " in told and not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = 'x", "own.toml is not a TOML file"),
        ("", "own.toml has no title"),
        ("title = 'x'\nparts = [3]", "own.toml, a part is a table, got a number (3)"),
        ("title = 'x'\n[[parts]]\nseeds = 1", "own.toml, a part has no recipe"),
        ("title = '\xff'", "own.toml is not a TOML file"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_refused(text, said, tmp_path, capsys):
    (tmp_path / "reproduce").mkdir()
    (tmp_path / "reproduce" / "own.toml").write_bytes(text.encode("latin-1"))
    assert cli.main(["reproduce", "own", "--recipes", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert said in told and "hint: " in told


def test_a_name_is_no_path(tmp_path, capsys):
    assert cli.main(["reproduce", "../digits", "--recipes", str(RECIPES)]) == 2
    assert "unknown table or figure ../digits" in capsys.readouterr().err


def test_more_labels_than_are_tested_together_are_refused(tmp_path, capsys):
    names = [f"local lr=0.{number}" for number in range(11, 22)]
    assert own(tmp_path, f'against = "ditto"\ntested = {names}', algorithms=["ditto"], runs=names, seeds=1) == 2
    assert "at most 10 are tested together, tested has 11" in capsys.readouterr().err


def test_a_table_of_another_that_has_no_runs_is_refused(tmp_path, capsys):
    (tmp_path / "reproduce").mkdir()
    for name, of in (("one", "other"), ("other", "one")):
        (tmp_path / "reproduce" / f"{name}.toml").write_text(f'title = "x"\nof = "{of}"\n')
    assert cli.main(["reproduce", "one", "--recipes", str(tmp_path)]) == 2
    assert "other has no runs of its own" in capsys.readouterr().err
    (tmp_path / "reproduce" / "none.toml").write_text('title = "x"\n[shared]\nseeds = 1\n')
    assert cli.main(["reproduce", "none", "--recipes", str(tmp_path)]) == 2
    assert "has runs of its own in parts, or those of another" in capsys.readouterr().err


def test_a_run_that_is_killed_loses_fifty_rounds_at_most():
    runs = plan.read("table-main", RECIPES).planned(RECIPES)
    assert {run.entry.config.checkpoint_every for run in runs} == {50}
