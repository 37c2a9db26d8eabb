"""The benchmark of runs side by side, with tiny ones on the processor; speeds themselves are not tested."""

import importlib
import json
import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "rounds = 40\nclients = 2\nsteps = 1\nbatch = 4\n[data]\npartition = 'iid'\ncap = 12\n"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    found = importlib.import_module("side_by_side")
    context = get_context("forkserver")
    context.set_forkserver_preload(["pfed1bs.studies.comparison", "sklearn.datasets"])
    monkeypatch.setattr(found, "get_context", lambda kind: context)
    (tmp_path / "tiny.toml").write_text(TINY)
    recipe = ["--recipe", str(tmp_path / "tiny.toml"), "--device", "cpu", "--parallel", "1,2", "--window", "0.05"]
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", *recipe, "--out", str(tmp_path / "out.json")])
    return found


def test_runs_a_minute_are_measured_for_every_number_of_processes(bench, tmp_path, capsys):
    bench.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(row["parallel"], row["mps"]) for row in found["rows"]] == [(1, False), (2, False)]
    assert all(row["runs_a_minute"] == pytest.approx(1.5 * row["rounds_a_second"], abs=0.1) for row in found["rows"])
    assert all(row["rounds_a_second"] > 0 for row in found["rows"]) and not found["left_out"]
    assert found["command"].startswith("python benchmarks/side_by_side.py --recipe ")
    assert {"commit", "device", "processor"} <= found.keys()
    assert "2 side by side without MPS: " in capsys.readouterr().out


def test_what_the_limit_does_not_allow_is_left_out_and_said(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--limit", "0"])
    bench.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["rows"] == [] and found["left_out"] == ["without MPS: not done after 0 s"]
    assert "without MPS: not done" in capsys.readouterr().err


def test_what_was_measured_is_kept_when_the_rest_is_cut_off(bench, tmp_path, monkeypatch):
    def cut(*given):
        yield {"commit": "abc"}, {"parallel": 1, "runs_a_minute": 7.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measured", cut)
    with pytest.raises(KeyboardInterrupt):
        bench.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["rows"] == [{"parallel": 1, "runs_a_minute": 7.0}] and found["commit"] == "abc"


@pytest.mark.parametrize("wanted", [True, False])
def test_mps_is_there_for_those_that_want_it_alone(bench, tmp_path, monkeypatch, wanted):
    calls, before = [], dict(os.environ)
    monkeypatch.setattr(subprocess, "run", lambda words, **more: calls.append((words, more.get("input"))))
    with bench.daemon(wanted, tmp_path / "mps"):
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "mps")  # no other daemon is found there
        assert calls == ([([bench.MPS, "-d"], None)] if wanted else [])
    assert calls[1:] == ([([bench.MPS], "quit\n")] if wanted else []) and dict(os.environ) == before


def test_without_the_program_of_mps_the_rest_is_measured(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "load", lambda recipe, flags, load=bench.load: load(recipe, ["--device", "cpu"]))
    monkeypatch.setattr(bench, "measured", lambda *given: iter([({}, {"parallel": 1, "runs_a_minute": 7.0})]))
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", [word.replace("cpu", "cuda") for word in sys.argv])
    bench.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["rows"]) == 1 and found["left_out"] == [f"with MPS: there is no {bench.MPS} here"]
