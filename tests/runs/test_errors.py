"""Mistakes of the user become two lines; bugs in somebody's code keep their traceback."""

import sys

import pytest
import torch

from pfed1bs import simulate
from pfed1bs.cli import main as cli
from pfed1bs.core.errors import Interrupted, Told, UserError, nearest
from pfed1bs.core.extras import Missing, need, need_all
from pfed1bs.data.download import download
from run_folders import TINY

SMALL = [*TINY, "--rounds", "1"]
OWN = """
from dataclasses import dataclass
import numpy as np
from torch import nn
from pfed1bs.algorithms.local import Local
from pfed1bs.extend import Method

def data():
    return np.zeros((7, 3)).reshape(5, 5), np.zeros(5)

def lost():
    return np.load("/nowhere/x.npy")

def few(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes - 1))

def double(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).double()

def half(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).half()

def broken(shape, classes):
    return nn.Sequential(nn.Linear(5, classes))

@dataclass(frozen=True)
class Mine(Local):
    strength: float = 0.5

@dataclass(frozen=True)
class Unfinished:
    task: object
    up = down = {}
    def init(self, clients): ...
    def local(self, clients, received, cohort, batches): ...

@dataclass(frozen=True)
class Heir(Method):
    paper = "nobody"
    up = down = {}

class Plain: ...
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "somebody.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "somebody", raising=False)
    return tmp_path


def run(*words: str) -> int:
    return cli.main(["run", *SMALL, *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.name", "somebody:few"], "must give 10 outputs for each of 2 samples"),
        (["--model.name", "somebody:double"], "must be torch.float32, got torch.float64"),
        (["--model.name", "somebody:half"], "must be torch.float32, got torch.float16"),
        (["--model.name", ":few"], ":few names nothing that can be imported"),
        (["--data.name", "somebody:"], "somebody: names nothing that can be imported"),
        (["--algorithm.name", ".somebody:Mine"], ".somebody:Mine names nothing that can be imported"),
        (["--model.name", "somebody:nobody"], "cannot be imported"),
        (["--algorithm.name", "somebody:Nobody"], "algorithm somebody:Nobody cannot be imported"),
        (["--algorithm.name", "somebody:Plain"], "algorithm somebody:Plain must be a dataclass"),
        (
            ["--algorithm.name", "somebody:Unfinished"],
            "lacks seed, paper, personalises, trains, replicates, snapshot_layout, rests, judged_with, broadcast, "
            "absorb, snapshot, anchor, replica, known, aggregate, diagnose, penalties, personal",
        ),
        (["--algorithm.name", "somebody:Heir"], "lacks personalises, init, broadcast, local, aggregate"),
        (["--algorithm.name", "somebody:Mine", "--algorithm.strenth", "1"], "did you mean algorithm.strength?"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_before_anything_is_written(own, words, message, capsys):
    assert run(*words, "--out", "out") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and not (own / "out").exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--data.name", "somebody:data"], "cannot reshape array"),
        (["--data.name", "somebody:lost"], "/nowhere/x.npy"),
        (["--model.name", "somebody:broken"], "shapes cannot be multiplied"),
    ],
)
def test_a_bug_in_somebodys_function_shows_its_traceback(own, words, error):
    with pytest.raises((ValueError, RuntimeError, OSError), match=error) as found:
        run(*words, "--out", "out")
    assert not isinstance(found.value, Told)


@pytest.mark.usefixtures("no_page")
def test_a_method_of_ones_own_runs_with_its_own_options(own):
    assert run("--algorithm.name", "somebody:Mine", "--algorithm.strength", "0.25", "--out", "out") == 0
    assert "strength = 0.25" in (own / "out" / "config.toml").read_text()


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 1 TiB"), torch.OutOfMemoryError("CUDA out of memory"), None]
)
def test_running_out_of_memory_is_a_failure_with_the_way_out(error, monkeypatch, capsys):
    def greedy(words):
        if error is None:
            torch.empty(2**55)
        raise error

    monkeypatch.setattr("pfed1bs.cli.commands.env_command", greedy)
    assert cli.main(["env"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: not enough memory") and "--chunk 1" in said and "--resume" in said
    assert ("--device cpu" in said) == isinstance(error, torch.OutOfMemoryError)


def test_another_runtime_error_is_a_bug(monkeypatch):
    def wrong(words):
        raise RuntimeError("never seen before")

    monkeypatch.setattr("pfed1bs.cli.commands.env_command", wrong)
    with pytest.raises(RuntimeError, match="never seen before"):
        cli.main(["env"])


def test_a_file_that_we_cannot_write_is_a_failure_in_words(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run("--out", str(tmp_path / "file" / "out")) == 1
    *_, said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith("error: cannot read or write: ") and "--out" in hint


def test_an_unknown_kernel_is_a_mistake_in_words(fresh):
    answer = fresh.command("env", PFED1BS_KERNEL="sse9")
    assert answer.returncode == 2 and answer.stderr.splitlines() == [
        "error: PFED1BS_KERNEL must be one of avx512, avx2, generic, torch, got sse9",
        "hint: leave it unset for the best",
    ]


@pytest.mark.parametrize("words", [["list", "--json"], ["list"], ["--help"]])
def test_output_that_nobody_reads_to_its_end_ends_quietly(words, fresh):
    answer = fresh.command(*words, before="read, write = os.pipe(); os.dup2(write, 1); os.close(read)")
    assert (answer.returncode, answer.stderr) == (141, "")


@pytest.mark.usefixtures("no_page")
def test_a_checkpoint_without_its_identity_is_refused(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert run(*out) == 0
    path = tmp_path / "out" / "checkpoint.safetensors"
    tensors = need("safetensors.torch", "cli").load_file(path)
    need("safetensors.torch", "cli").save_file(tensors, path, {"format": "1", "round": "1"})
    assert run(*out, "--rounds", "2", "--resume") == 2
    said = capsys.readouterr().err
    assert "error: " in said and "checkpoint.safetensors" in said


def test_an_error_is_its_message_and_its_hint():
    error = UserError("it is wrong", "do it right")
    assert (error.message, error.hint, str(error)) == ("it is wrong", "do it right", "it is wrong; do it right")
    assert str(UserError("it is wrong")) == "it is wrong"
    assert isinstance(error, ValueError) and issubclass(Interrupted, KeyboardInterrupt)
    with pytest.raises(ValueError, match="got ftp"):
        download("ftp://x", None, "")


def test_did_you_mean_is_said_only_where_something_is_near():
    assert nearest("rnu", ["run", "report"]) == "did you mean run?" and nearest("part", ["split", "partition"]) != ""
    assert nearest("ratio", ["train", "mu"]) == "known are train, mu."


def test_a_device_that_is_not_there_is_refused_in_python_too():
    with pytest.raises(UserError, match="there is no device cuda:77 here"):
        next(simulate(None, None, rounds=1, device="cuda:77"))


def test_packages_that_may_be_needed_are_named_when_others_are_missing():
    with pytest.raises(Missing, match="this needs lost, absent, which are not installed") as error:
        need_all(["json", "lost"], "cli", ["absent", "math"])
    assert error.value.hint.startswith("pip install lost absent (")
    need_all(["json"], "cli", ["absent"])
