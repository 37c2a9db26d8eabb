"""Data and code of a user's own: what a run was made with is told, and it does not go on with something else."""

import hashlib
import json
import shutil
import sys

import numpy
import pytest

from pfed1bs.cli import main as cli
from pfed1bs.runs.config import load
from pfed1bs.runs.own import own_files

METHOD = """
from pfed1bs.algorithms.local import Local as Base

class Local(Base):
    pass
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    random = numpy.random.default_rng(0)
    for name in ("mine", "other"):
        x, y = random.normal(size=(80, 4)).astype("float32"), random.integers(0, 2, 80)
        numpy.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return tmp_path


def flags(**more):
    told = {"data.name": "mine.npz", "clients": 4, "rounds": 2, "steps": 1, "batch": 4, "rest": 0, **more}
    return [word for key, value in told.items() for word in (f"--{key}", str(value))]


def test_own_files_are_told_by_what_they_hold_and_names_that_come_along_are_none(place):
    assert own_files(load(None, ["--data.name", "digits"])) == {}
    assert (
        own_files(load(None, ["--data.name", "gone.npz"]))
        == own_files(load(None, ["--data.name", "no.such:one"]))
        == {}
    )
    digest = hashlib.sha256((place / "mine.npz").read_bytes()).hexdigest()[:16]
    assert own_files(load(None, ["--data.name", "mine.npz"])) == {"mine.npz": digest}
    shutil.copy("other.npz", "mine.npz")
    assert own_files(load(None, ["--data.name", "mine.npz"])) != {"mine.npz": digest}
    (place / "mymethod.py").write_text(METHOD)
    found = own_files(load(None, ["--algorithm.name", "mymethod:Local", "--data.name", "mine.npz"]))
    assert [*found] == ["mine.npz", "mymethod:Local"]


@pytest.mark.parametrize("changed", ["mine.npz", "code"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_does_not_go_on_with_other_data_or_code(command, changed, place, capsys):
    module = f"{command}_and_{changed[:4]}"  # each imported once
    (place / f"{module}.py").write_text(METHOD)
    own = f"{module}:Local"
    method = ["--algorithm.name", own] if command == "run" else ["--algorithms", own, "--seeds", "0"]
    assert cli.main([command, *flags(), *method, "--out", "out"]) == 0
    [env] = [json.loads(path.read_text()) for path in (place / "out").glob("**/env.json")]
    assert [*env["files"]] == ["mine.npz", own]
    if changed == "mine.npz":
        shutil.copy("other.npz", "mine.npz")
    else:
        (place / f"{module}.py").write_text(f"{METHOD}    more = 1\n")
    again = [command, *flags(rounds=3), *method, "--out", "out", "--resume"]
    assert cli.main(again) == 2
    assert f"error: {own if changed == 'code' else changed} has changed since out" in capsys.readouterr().err
    assert cli.main([command, *flags(rounds=3), *method, "--out", "anew"]) == 0
