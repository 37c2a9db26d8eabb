"""`pfed1bs compare` and `pfed1bs report`: what is run, under which settings, and what is never mixed or overwritten."""

import json
import os
import signal
import sys
import time
import tomllib
from multiprocessing import get_context
from threading import Thread

import pytest
import torch

from pfed1bs.cli import main as cli
from pfed1bs.cli import terminal
from pfed1bs.core import gpu
from pfed1bs.engine import memory
from pfed1bs.report.groups import groups
from pfed1bs.report.records import collect
from pfed1bs.report.results import results
from pfed1bs.runs.config import load
from pfed1bs.studies import comparison
from run_folders import TINY, run_folder

SMALL = TINY


def compare(*words: str) -> int:
    return cli.main(["compare", *SMALL, *words])


def algorithm(folder):
    return tomllib.loads((folder / "config.toml").read_text())["algorithm"]


def nothing_runs(monkeypatch):
    monkeypatch.setattr("pfed1bs.cli.terminal.watch", lambda *_: pytest.fail("a run has started"))


def test_a_comparison_has_one_table_one_report_and_a_folder_for_every_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "c"
    words = ["--algorithms", "pfed1bs-delta,local", "--runs", "pfed1bs-delta step=0.3", "--seeds", "0,1"]
    words += ["--options.pfed1bs-delta.ratio", "0.05", "--out", str(out)]
    assert compare(*words) == 0
    said = capsys.readouterr().out
    names = ["local-s0", "local-s1", "pfed1bs-delta-s0", "pfed1bs-delta-s1"]
    names += ["pfed1bs-delta-step=0.3-s0", "pfed1bs-delta-step=0.3-s1"]
    assert sorted(path.parent.name for path in out.glob("*/config.toml")) == names
    labels = ["pfed1bs-delta step=0", "pfed1bs-delta step=0.3", "local"]
    assert [line.strip().startswith(tuple(labels)) for line in said.splitlines()].count(True) == 3 and "\u00b1" in said
    assert {algorithm(out / name)["ratio"] for name in names[2:]} == {0.05}
    assert [algorithm(out / name)["step"] for name in names[2:]] == [0.0, 0.0, 0.3, 0.3]
    runs = json.loads((out / "table.json").read_text())["runs"]
    assert [run["label"] for run in runs] == [label for label in labels for _ in "01"]
    assert [round for round, _, _ in runs[0]["curve"]] == [2] and len(
        json.loads((out / "compare.json").read_text())
    ) == 6
    assert (out / "report.html").exists() and (out / "plots" / "accuracy-bytes.svg").exists()
    assert compare(*words) == 2 and "exists" in capsys.readouterr().err


@pytest.mark.usefixtures("no_page")
def test_an_option_goes_to_every_method_that_has_it_and_a_seed_is_the_seed(tmp_path):
    words = ["--algorithms", "pfed1bs,local", "--algorithm.ratio", "0.01", "--algorithm.lr", "0.02", "--seed", "5"]
    assert compare(*words, "--out", str(tmp_path / "c")) == 0
    made = {path.parent.name: algorithm(path.parent) for path in (tmp_path / "c").glob("*/config.toml")}
    assert made.keys() == {"pfed1bs-s5", "local-s5"} and made["pfed1bs-s5"]["ratio"] == 0.01
    assert made["pfed1bs-s5"]["lr"] == made["local-s5"]["lr"] == 0.02 and "ratio" not in made["local-s5"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--rounds", "1"], "has 2 rounds, 1 were asked for"),
        (["--algorithm.lr", "0.3"], "algorithm.lr was 0.05, now 0.3"),
        (["--data.partition", "labels:5"], "data.partition was iid, now labels:5"),
    ],
)
def test_a_resumed_comparison_with_other_settings_is_refused(changed, told, finished, monkeypatch, capsys):
    nothing_runs(monkeypatch)
    assert compare("--algorithms", "local", "--out", str(finished), "--resume", *changed) == 2
    assert told in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfed1bs.report.write", lambda *_: None)
        assert compare("--algorithms", "local", "--out", str(out)) == 0
    return out


@pytest.mark.usefixtures("no_page")
def test_a_resumed_comparison_leaves_finished_runs_and_may_have_more_rounds_and_methods(tmp_path):
    out = tmp_path / "c"
    assert compare("--algorithms", "local", "--out", str(out)) == 0
    before = (out / "local-s0" / "metrics.jsonl").read_bytes()
    words = ["--algorithms", "local,fedavg", "--out", str(out), "--resume"]
    assert compare(*words) == 0
    assert (out / "local-s0" / "metrics.jsonl").read_bytes() == before and (out / "fedavg-s0" / "summary.json").exists()
    assert compare(*words, "--rounds", "3") == 0
    rounds = [json.loads((out / name / "summary.json").read_text())["rounds"] for name in ("local-s0", "fedavg-s0")]
    assert rounds == [3, 3]


@pytest.mark.usefixtures("no_page")
def test_a_comparison_that_was_interrupted_may_be_made_shorter(tmp_path):
    out = tmp_path / "c"
    assert compare("--algorithms", "local", "--out", str(out), "--rounds", "1") == 0
    config = out / "local-s0" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 1", "rounds = 100000"))
    (out / "local-s0" / "summary.json").unlink()
    assert compare("--algorithms", "local", "--out", str(out), "--rounds", "3", "--resume") == 0
    assert json.loads((out / "local-s0" / "summary.json").read_text())["rounds"] == 3


def test_every_run_is_checked_before_the_first_one_starts(tmp_path, monkeypatch, capsys):
    nothing_runs(monkeypatch)
    words = ["--algorithms", "local", "--runs", "eden bits=0.00001", "--out", str(tmp_path / "c")]
    assert compare(*words) == 2
    assert "leaves nothing to send" in capsys.readouterr().err and not (tmp_path / "c").exists()


def test_a_setting_is_rehearsed_once_and_the_samples_of_every_seed_are_dealt(monkeypatch):
    rehearsed, dealt = [], []
    monkeypatch.setattr(comparison, "rehearse", lambda config, _: rehearsed.append((config.method, config.seed)))
    monkeypatch.setattr(comparison, "kept", lambda: lambda config: dealt.append(config.seed))
    variants = [
        *comparison.methods(["local"]),
        comparison.variant("ditto lam=1.0"),
        comparison.variant("ditto lam=2.0"),
    ]
    comparison.rehearse_all(comparison.entries(load("digits"), variants, [3, 4]))
    assert rehearsed == [("local", 3), ("ditto", 3), ("ditto", 3)] and dealt == [3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_missing_package_is_found_before_training(command, tmp_path, monkeypatch, capsys):
    nothing_runs(monkeypatch)
    for name in ("matplotlib", "tomli_w"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main([command, *SMALL, "--out", str(tmp_path / "c")]) == 1
    said = capsys.readouterr().err
    assert "needs tomli_w, matplotlib" in said and "pip install tomli-w matplotlib" in said
    assert not (tmp_path / "c").exists()


def test_a_variant_can_be_written_as_a_string_and_knows_its_label():
    made = comparison.variant("pfed1bs-delta step=3e-1 keep=best")
    assert made.options == {"step": 0.3, "keep": "best"} and made.label == "pfed1bs-delta step=0.3 keep=best"


def test_options_of_a_variant_beat_those_of_flags_and_recipes(tmp_path):
    (tmp_path / "r.toml").write_text("[options.ditto]\nlam = 0.2\nlr = 0.4\n")
    config = load(str(tmp_path / "r.toml"), ["--algorithm.lam", "0.3"], ["ditto"])
    plain, own = comparison.entries(config, [comparison.variant("ditto"), comparison.variant("ditto lam=0.7")], [0])
    assert (plain.config.algorithm["lam"], own.config.algorithm["lam"], own.config.algorithm["lr"]) == (0.3, 0.7, 0.4)


def test_the_terminal_and_the_page_show_the_same_cells(tmp_path):
    records = collect([run_folder(tmp_path, "local"), run_folder(tmp_path, "pfed1bs")])
    table = results(groups(records))
    heads, *lines = table.brief()
    assert heads == ["method", "personal", "MiB a\nround", "of\nFedAvg"] and lines[1][0] == "pfed1bs"
    assert lines[1][1] == table.cells(table.rows[1])[0].text == "91.50"
    assert lines[1][3] == table.cells(table.rows[1])[3].text == "1/68"


def test_two_seeds_have_an_interval_in_a_table_of_sixty_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    folders = [run_folder(tmp_path, "pfed1bs-delta", seed, (50.0, 90.0 + seed)) for seed in (0, 1)]
    heads, *lines = results(groups(collect(folders))).brief()
    terminal.show_table("a title", heads, lines, [False] + [True] * (len(heads) - 1))
    said = capsys.readouterr().out
    assert "90.50\u00b10.71" in said and "84.15..96.85" in said and said.count("pfed1bs-delta") == 1
    assert max(map(len, said.splitlines())) <= 60


def test_a_report_of_several_runs_leaves_their_own_reports_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = run_folder(tmp_path / "a", "local"), run_folder(tmp_path / "a", "fedavg")
    (first / "report.html").write_text("precious")
    assert cli.main(["report", str(first), str(second)]) == 0
    page = tmp_path / capsys.readouterr().out.strip()
    assert page.parent.parent == tmp_path / "runs" and "fedavg" in page.read_text()
    assert cli.main(["report", str(first), str(second), "--out", str(first)]) == 2
    assert (first / "report.html").read_text() == "precious"
    assert cli.main(["report", str(first), str(second), "--out", "both"]) == 0
    assert len(json.loads((tmp_path / "both" / "table.json").read_text())["runs"]) == 2


def test_a_report_of_a_folder_of_run_folders_stands_in_that_folder(tmp_path, capsys):
    run_folder(tmp_path / "deep" / "er", "local"), run_folder(tmp_path / "deep", "fedavg")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert {"local", "fedavg"} == {record.algorithm for record in collect([tmp_path, tmp_path / "deep"])}


@pytest.mark.usefixtures("no_page")
def test_runs_side_by_side_are_those_of_runs_one_after_the_other(tmp_path, capsys):
    words = ["--algorithms", "pfed1bs,local", "--seeds", "0,1"]
    assert compare(*words, "--out", str(tmp_path / "apart")) == 0
    assert compare(*words, "--out", str(tmp_path / "beside"), "--parallel", "2") == 0
    assert "4 of 4 runs" in capsys.readouterr().err
    ours, theirs = (json.loads((tmp_path / name / "compare.json").read_text()) for name in ("apart", "beside"))
    numbers = ("algorithm", "seed", "accuracy", "total_mib")
    assert [[run[key] for key in numbers] for run in ours] == [[run[key] for key in numbers] for run in theirs]


def test_a_process_beside_others_takes_its_part_of_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "sharers", 1)
    monkeypatch.setattr(comparison.signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (900, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    ours, theirs = get_context("spawn").Pipe()
    ours.close()  # there is nothing to do
    comparison._work(theirs, tmp_path, 4)
    assert memory.free(torch.device("cuda")) == 250


@pytest.mark.parametrize(("given", "processes", "expected"), [(None, 2, 8), (None, 13, 1), (None, 20, 1), (3, 2, 3)])
def test_processes_beside_each_other_share_the_threads_unless_their_number_is_given(
    tmp_path, monkeypatch, threads, given, processes, expected
):
    class Link:
        """The end of a pipe that one run comes out of."""

        def recv(self) -> comparison.Entry:
            if not waiting:
                raise EOFError
            return waiting.pop()

        def send(self, error: object) -> None:
            assert error is None

    waiting, found = [comparison.Entry("one", load(None, ["--threads", str(given)] if given else []))], []
    monkeypatch.setattr(gpu, "sharers", 1)
    monkeypatch.setattr(comparison.signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(comparison, "complete", lambda run: found.append(run.config.threads))
    comparison._work(Link(), tmp_path, processes)
    assert found == [expected]


@pytest.mark.usefixtures("forked_runs")
def test_an_error_in_a_process_is_that_of_the_run(tmp_path, capsys):
    words = ["--algorithms", "fedavg,local", "--algorithm.lr", "1e25", "--steps", "4", "--parallel", "2"]
    assert compare(*words, "--out", str(tmp_path / "c")) == 1
    said = capsys.readouterr().err.splitlines()[-2:]
    assert said[0].startswith("error: round 0: weights") and said[1].startswith("hint: try a smaller")


@pytest.mark.usefixtures("forked_runs")
def test_runs_side_by_side_end_with_the_process_that_began_them(tmp_path, capsys):
    words = ["--algorithms", "local,fedavg,pfed1bs", "--rounds", "100000", "--checkpoint_every", "100000"]
    words += ["--rest", "0"]  # a run that ends by itself would let the third begin
    lines = [tmp_path / "c" / name / "metrics.jsonl" for name in ("local-s0", "fedavg-s0")]

    def terminate():
        for _ in range(600):
            if all(path.exists() and path.stat().st_size for path in lines):
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = Thread(target=terminate)
    watcher.start()
    code = compare(*words, "--parallel", "2", "--out", str(tmp_path / "c"))
    watcher.join()
    said = capsys.readouterr().err
    assert code == 130 and "interrupted" in said and "--resume" in said, said
    counts = [path.read_text().count("\n") for path in lines]
    assert all((path.parent / "checkpoint.safetensors").exists() for path in lines)
    assert not (tmp_path / "c" / "pfed1bs-s0").exists()
    time.sleep(0.5)
    assert [path.read_text().count("\n") for path in lines] == counts


@pytest.mark.usefixtures("no_page")
def test_variants_that_differ_in_the_seventh_digit_have_folders_of_their_own(tmp_path):
    words = ["--algorithms", "", "--runs", "ditto lam=0.3000001", "ditto lam=0.3000002", "--out", str(tmp_path / "c")]
    assert compare(*words) == 0
    found = [algorithm(path.parent)["lam"] for path in sorted((tmp_path / "c").glob("*/config.toml"))]
    assert found == [0.3000001, 0.3000002]


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_processes_that_is_none_is_refused(count, tmp_path, monkeypatch, capsys):
    nothing_runs(monkeypatch)
    assert compare("--algorithms", "local", "--out", str(tmp_path / "c"), f"--parallel={count}") == 2
    assert "--parallel must be a whole number" in capsys.readouterr().err
