"""benchmarks/front.py: what it runs, what it says of runs, and that its pictures are those of its files."""

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from test_sources import alike

ROOT = Path(__file__).parents[1]


@pytest.fixture
def front(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    return importlib.import_module("front")


def call(front, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["front.py", *map(str, words)])
    front.main()


def run(algorithm, seed, accuracy, steps=10, ratio=None, mib=8.0, rested=False):
    told = {"data": "mnist", "algorithm": algorithm, "seed": seed, "accuracy": accuracy, "steps": steps, "ratio": ratio}
    return told | {"total_mib": mib, "ratio_to_fedavg": 0.5, "rounds": 100, "rested": rested}


def test_its_summary_is_that_of_its_runs(front):
    found = json.loads((ROOT / "results" / "front.json").read_text())
    assert json.loads(json.dumps(front.summary(found["runs"]))) == found["summary"]


def test_a_setting_is_told_over_its_seeds_and_beside_methods_of_the_same_seed(front):
    runs = [run("ditto", 0, 90.0), run("ditto", 1, 80.0), run("local", 0, 70.0)]
    runs += [run("pfed1bs-delta", 0, 91.0, ratio=0.1, rested=True), run("pfed1bs-delta", 1, 83.0, ratio=0.1, mib=4.0)]
    line = front.summary(runs)[-1]
    assert (line["accuracy"], line["total_mib"], line["seeds"], line["rested"]) == (87.0, 6.0, 2, 1)
    assert line["above_ditto"] == 2.0 and line["interval"] == pytest.approx((2 - 12.7062, 2 + 12.7062))
    assert (line["above_local"], line["interval_local"]) == (21.0, None) and "above_decomfl" not in line


@pytest.mark.parametrize(
    ("part", "source", "out"), [("ends", "mnist-all-r", "accuracy-bytes"), ("figure", "front", "front")]
)
def test_its_pictures_are_those_of_their_files(front, monkeypatch, tmp_path, part, source, out):
    call(front, monkeypatch, part, ROOT / "results" / f"{source}.json", "--out", tmp_path / f"{out}.svg")
    for end in (".svg", ".dark.svg"):
        made, there = ((folder / f"{out}{end}").read_text() for folder in (tmp_path, ROOT / "results"))
        assert alike(there, made, 0.05), f"{out}{end}: make docs-numbers"


def test_more_steps_in_a_round_are_fewer_rounds(front):
    own = Namespace(steps=[10, 20], beside=["local"], ratios=[0.1])
    found = [entry.config for entry in front.planned("mnist-delta", 3, own, ["--rounds", "100", "--steps", "10"])]
    told = [(one.method, one.steps, one.rounds, one.evaluate_every, one.seed) for one in found]
    assert told == [("local", 10, 100, 100, 3), ("pfed1bs-delta", 10, 100, 100, 3), ("pfed1bs-delta", 20, 50, 50, 3)]


def test_runs_of_tables_are_taken_where_they_are_plain_and_of_two_of_a_setting_the_later(front, monkeypatch, tmp_path):
    kept = [run("ditto", 0, 90.0), run("pfed1bs-delta", 0, 91.0, ratio=0.1), run("pfed1bs-delta", 0, 93.0, 20, 0.1)]

    def other(label, accuracy, **own):
        options = {"ratio": 0.1} if "ratio" in label else {}
        told = {"label": label, "algorithm": label.split()[0], "options": options, "dataset": "mnist", "model": "mlp"}
        numbers = {"seed": 0, "accuracy": accuracy, "rounds": 50, "rested": True, "total_mib": 1.0}
        return told | numbers | {"ratio_to_fedavg": 0.5} | own

    more = [other("ditto", 92.0), other("pfed1bs-delta ratio=0.1", 94.0, settings={"steps": 20})]
    more += [
        other("pfed1bs-delta ratio=0.1 keep=mean", 1.0),
        other("pfed1bs-delta ratio=0.1", 2.0, settings={"rest": 0}),
    ]
    more += [other("fedrep", 3.0)]
    files = {"a.json": {"summary": [], "runs": kept}, "b.json": {"recipe": {"steps": 10}, "runs": more}}
    for name, plain in files.items():
        (tmp_path / name).write_text(json.dumps(plain))
    call(front, monkeypatch, "join", tmp_path / "a.json", tmp_path / "b.json", "--out", tmp_path / "c.json")
    found = json.loads((tmp_path / "c.json").read_text())["runs"]
    assert [(one["algorithm"], one["steps"], one["accuracy"]) for one in found] == [
        *[("ditto", 10, 92.0), ("pfed1bs-delta", 10, 91.0), ("pfed1bs-delta", 20, 94.0)]
    ]
