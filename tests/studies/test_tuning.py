"""Tuning: the same grid for all methods, judged on training samples, and a step that diverges is a result."""

import pytest

from pfed1bs import make
from pfed1bs.algorithms import REGISTRY
from pfed1bs.core.errors import UserError
from pfed1bs.runs.config import load
from pfed1bs.runs.run import federation
from pfed1bs.studies import tuning
from run_folders import TINY
from tiny import chain

SMALL = [*TINY, "--steps", "2"]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_point_of_the_grid_is_a_method_that_can_be_made(name):
    points = tuning.grid(name)
    assert len(points) == (12 if name in tuning.KNOBS else 4)
    assert len({point.label for point in points}) == len(points)
    for point in points:
        make(name, chain(), **point.options)


def test_the_best_mean_over_seeds_wins_and_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", (1e9, 0.05))
    config = load(None, [*SMALL, "--algorithm.mu", "1"], ["local"])
    found = tuning.trials(config, "local", [0, 1], tmp_path)
    assert [trial.variant.options["lr"] for trial in found] == [1e9, 0.05]
    assert found[0].scores == (0.0, 0.0) and tuning.best(found) is found[1] and len(found[1].scores) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert tuning.trials(config, "local", [0, 1], tmp_path) == found and len(before) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_runs_of_other_settings_are_not_taken_for_trials(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", (0.05,))
    tuning.trials(load(None, SMALL), "local", [0], tmp_path)
    with pytest.raises(UserError, match="was run with other settings: clients was 3, now 4"):
        tuning.trials(load(None, [*SMALL, "--clients", "4"]), "local", [0], tmp_path)


def test_tuning_judges_on_training_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "STEPS", (0.05,))
    config = load(None, SMALL)
    tuning.trials(config, "local", [0], tmp_path)
    [line] = [
        line for line in (tmp_path / "local-lr=0.05-s0" / "clients.csv").read_text().splitlines() if line[0] == "0"
    ]
    held = federation(load(None, [*SMALL, "--data.validate", "true"]))
    assert line.split(",")[1:3] == [str(len(held.train[0])), str(len(held.test[0]))]
