"""What a run leaves behind when it is killed, cut, disturbed or told otherwise, and that it goes on from there."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.engine.rounds import Schedule
from pfed1bs.runs.config import load
from pfed1bs.runs.environment import starts
from pfed1bs.runs.folder import RunFolder, keep
from pfed1bs.runs.locking import hold
from pfed1bs.runs.recording import Terminated, record, terminable
from pfed1bs.runs.run import Run, Simulator

SMALL = ["--clients", "4", "--steps", "2", "--batch", "8", "--data.partition", "iid", "--data.cap", "20"]


def prepared(out, *words):
    return Run.prepare(load(None, [*SMALL, "--evaluate_every", "2", "--rounds", "5", *words, "--out", str(out)]))


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def begun(out, rounds, *words):
    """A folder as a process leaves it that is killed after some rounds."""
    running = prepared(out, *words).rounds()
    for _ in range(rounds):
        next(running)
    shutil.copytree(out, out.with_name("killed"))
    running.close()
    return out.with_name("killed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The metrics of a run that nobody disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    list(prepared(out).rounds())
    return lines(out)


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_works(tmp_path, whole):
    running = prepared(tmp_path / "run", "--checkpoint_every", "1").rounds()
    next(running)
    for resume in (False, True):
        with pytest.raises(UserError, match="another process works in|exists"):
            next(prepared(tmp_path / "run").rounds(resume))
    list(running)
    assert lines(tmp_path / "run") == whole


def test_two_that_begin_at_once_in_a_new_folder_are_told_apart_by_the_lock(tmp_path):
    (tmp_path / "run").mkdir()
    with hold(tmp_path / "run" / "lock"), pytest.raises(UserError, match="another process works in"):
        next(prepared(tmp_path / "run").rounds())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
    (tmp_path / "run" / "config.toml.part").write_text("killed while it was wri")
    assert len(list(prepared(tmp_path / "run").rounds())) == 5


@pytest.mark.usefixtures("no_page")
def test_sigterm_leaves_a_checkpoint_of_the_last_round_and_the_folder_is_locked_until_then(tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "pfed1bs", "run", *SMALL, "--rounds", "100000", "--checkpoint_every", "0"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_bytes()) < 2000:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    with pytest.raises(UserError, match="another process works in"):
        next(prepared(out, "--rounds", "100000").rounds(resume=True))
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode not in (0, -signal.SIGTERM) and "Traceback" not in said and "ignored" not in said
    done = len(lines(out))
    again = [*shlex.split(said.partition("go on with: ")[2]), "--rounds", str(done + 2)]
    assert again[:3] == [sys.executable, "-m", "pfed1bs"] and cli.main(again[3:]) == 0
    assert [line["round"] for line in lines(out)] == list(range(done + 2))


@pytest.mark.usefixtures("no_page")
def test_a_run_that_is_killed_before_its_first_checkpoint_begins_again(tmp_path, capsys):
    out = begun(tmp_path / "run", 2, "--checkpoint_every", "0")
    code = f"from pathlib import Path; from pfed1bs.runs.locking import hold; held = hold(Path({str(out / 'lock')!r}))"
    command = [sys.executable, "-c", f"{code}; print(held, flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() != b"None\n"
        with pytest.raises(UserError, match="another process works in"):
            next(prepared(out).rounds(resume=True))
        process.kill()
    words = ["run", *SMALL, "--rounds", "2", "--out", str(out)]
    assert not (out / "checkpoint.safetensors").exists()
    assert cli.main(words) == 2 and "--resume" in capsys.readouterr().err
    assert cli.main([*words, "--resume", "--json"]) == 0
    assert [line["round"] for line in lines(out)] == [0, 1]


def test_sigterm_is_handled_only_while_a_run_works_and_nobody_else_handles_it():
    with pytest.raises(Terminated), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with terminable():
            signal.raise_signal(signal.SIGTERM)
        assert heard == [1]
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("end", ['{"round": 3, "up_by', '{"round": 3}\n', ""])
def test_lines_beyond_the_checkpoint_go_also_a_cut_one(tmp_path, whole, end):
    killed = begun(tmp_path / "run", 3, "--checkpoint_every", "3")
    with (killed / "metrics.jsonl").open("a") as file:
        file.write(end)
    assert [line["round"] for line in prepared(killed).rounds(resume=True)] == [3, 4]
    assert lines(killed) == whole


@pytest.mark.parametrize("damage", ["cut", "lost", "torn", "twice"])
def test_metrics_that_lack_a_round_of_the_checkpoint_are_refused_before_anything_is_done(tmp_path, damage):
    killed = begun(tmp_path / "run", 3, "--checkpoint_every", "3")
    path, rows = killed / "metrics.jsonl", (killed / "metrics.jsonl").read_text().splitlines(keepends=True)
    left = {"cut": [*rows[:2], rows[2][:40]], "lost": rows[:2], "torn": [rows[0], "\0\0\0\n", rows[2]]}
    path.write_text("".join({**left, "twice": [rows[0], *rows]}[damage]))
    before = {file.name: file.read_bytes() for file in killed.iterdir()}
    with pytest.raises(UserError, match=r"line [23] of .*metrics.jsonl is missing or damaged.* has 3 rounds") as error:
        next(prepared(killed, "--rounds", "9").rounds(resume=True))
    assert "another folder" in error.value.hint
    assert {file.name: file.read_bytes() for file in killed.iterdir()} == before


def test_metrics_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    settled, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda number: settled.append(os.fstat(number).st_ino) or fsync(number))
    running = prepared(tmp_path / "run", "--checkpoint_every", "1").rounds()
    next(running)
    files = {name: (tmp_path / "run" / name).stat().st_ino for name in ("metrics.jsonl", "checkpoint.safetensors")}
    assert settled.index(files["metrics.jsonl"]) < settled.index(files["checkpoint.safetensors"])
    running.close()


def test_without_a_checkpoint_a_run_of_the_same_configuration_begins_again(tmp_path, whole):
    killed = begun(tmp_path / "run", 2)
    with pytest.raises(UserError, match="algorithm.lr was 0.05, now 0.2, data.partition was iid, now labels:2"):
        next(prepared(killed, "--algorithm.lr", "0.2", "--data.partition", "labels:2").rounds(resume=True))
    assert len(list(prepared(killed).rounds(resume=True))) == 5
    assert lines(killed) == whole


def test_resume_needs_the_folder_of_a_run(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        next(prepared(tmp_path / "nowhere").rounds(resume=True))
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match="holds no run"):
        next(prepared(tmp_path).rounds(resume=True))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("no_page")
def test_the_configuration_and_the_summary_say_how_many_rounds_there_are(tmp_path, capsys):
    words = ["run", *SMALL, "--out", str(tmp_path / "run"), "--json"]
    assert cli.main([*words, "--rounds", "2"]) == 0
    first = json.loads((tmp_path / "run" / "env.json").read_text())
    assert cli.main([*words, "--rounds", "3", "--chunk", "2", "--resume"]) == 0
    now = json.loads((tmp_path / "run" / "env.json").read_text())
    assert (first["chunk"], now["chunk"], now["earlier"][0]["chunk"]) == (4, 2, 4)  # all fit
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (written["rounds"], written["chunk"]) == (3, 2)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


def test_every_start_whose_rounds_are_kept_is_written_down(tmp_path, monkeypatch):
    def on(device, rounds, resume=True):
        monkeypatch.setattr("pfed1bs.runs.environment.processor", lambda: device)
        running = prepared(tmp_path / "run", "--checkpoint_every", "1").rounds(resume)
        for _ in range(rounds):
            next(running)
        running.close()

    on("first", 2, resume=False)
    on("second", 1)
    RunFolder(tmp_path / "run", prepared(tmp_path / "run").config).open(resume=True).close()  # a start without a round
    on("third", 1)
    found = starts(json.loads((tmp_path / "run" / "env.json").read_text()))
    assert [(start["device"], start["from_round"]) for start in found] == [("first", 0), ("second", 2), ("third", 3)]


def test_a_run_that_goes_on_has_no_summary_until_it_ends(tmp_path):
    list(prepared(tmp_path / "run", "--rounds", "2").rounds())
    running = prepared(tmp_path / "run").rounds(resume=True)
    next(running)
    assert not (tmp_path / "run" / "summary.json").exists()
    running.close()


def test_a_run_that_was_killed_before_its_summary_gets_one(tmp_path):
    run = prepared(tmp_path / "run")
    list(run.rounds())
    before = run.summary
    (tmp_path / "run" / "summary.json").unlink()
    assert list(run.rounds(resume=True)) == []
    assert {**run.summary, "command": ""} == {**before, "command": ""}


def test_a_finished_run_without_its_checkpoint_is_not_begun_again(tmp_path):
    list(prepared(tmp_path / "run").rounds())
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(UserError, match="checkpoint.safetensors is gone"):
        next(prepared(tmp_path / "run", "--rounds", "9").rounds(resume=True))
    assert len(lines(tmp_path / "run")) == 5


def test_any_source_of_rounds_is_recorded(tmp_path, whole):
    run = prepared(tmp_path / "run")
    simulator = Simulator(run.algorithm, run.data, run.config)

    class Replay:
        """Rounds that were done before; nobody is there to be judged."""

        done = list(simulator.rounds(None))

        def rounds(self, resume):
            yield from self.done[resume.round if resume else 0 :]

        def judge(self, now):
            return now.seen[:0], {}

    with RunFolder(tmp_path / "run", run.config).open() as folder:
        found = list(record(Replay(), folder, Schedule(rounds=5)))
    scores = {"accuracy", "accuracy_macro", "test_loss"}
    assert lines(tmp_path / "run") == [{k: v for k, v in line.items() if k not in scores} for line in whole]
    assert [line["round"] for line in found] == [0, 1, 2, 3, 4]
    assert not (tmp_path / "run" / "clients.csv").exists()


def test_keeping_no_round_of_no_metrics_is_nothing(tmp_path):
    keep(tmp_path / "metrics.jsonl", 0)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.usefixtures("no_page")
def test_a_run_believes_no_more_than_its_configuration_says(tmp_path):
    words = ["--clients", "4", "--steps", "1", "--data.partition", "dirichlet:0.3", "--rounds", "1", "--out"]
    bounds = ["--algorithm.name", "fedavg", "--max_weight", "1", "--max_norm", "1"]
    assert cli.main(["run", *words, str(tmp_path / "run"), *bounds]) == 0
    (line,) = (json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["capped"] > 0 and line["clipped"] > 0
