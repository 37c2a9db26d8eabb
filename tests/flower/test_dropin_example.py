"""The example of the drop-in: the app after is the app before and two lines, and it learns."""

import logging
import random
import sys
from difflib import ndiff
from importlib import import_module
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from dropin_grid import RUN, Desk, identity

FOLDER = Path(__file__).parents[2] / "examples" / "quickstart"
CONFIG = {"rounds": 2, "fraction-train": 1.0, "fraction-evaluate": 0.1, "epochs": 1, "lr": 0.05, "data": "digits"}


@pytest.fixture
def quickstart(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield lambda name: import_module(f"quickstart.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.parametrize("side", ["client", "server"])
def test_before_and_after_differ_in_an_import_and_a_line(side):
    before, after = ((FOLDER / "quickstart" / f"{side}_app{end}.py").read_text() for end in ("", "_onebit"))
    found = [line for line in ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-" and line[2:]]
    assert [line[0] for line in sorted(found)] == ["+", "+", "-"]
    assert sum("from pfed1bs.flower import OneBit" in line for line in found) == 1


def test_the_example_runs_and_learns(quickstart, tmp_path):
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(0)
    torch.manual_seed(0)
    config = CONFIG | {"out": str(tmp_path / "final.pt")}
    desk = Desk(quickstart("client_app_onebit").app, 4, config)
    with identity(1):
        result = quickstart("server_app_onebit").main(desk, Context(RUN, 1, {}, RecordDict(), config))
    judged = result.evaluate_metrics_serverapp
    assert not desk.errors and judged[2]["loss"] < judged[0]["loss"]
    assert [*torch.load(tmp_path / "final.pt")] == [*quickstart("task").Net().state_dict()]
    metrics = result.train_metrics_clientapp[2]
    assert metrics["onebit-full-up"] > 100 * metrics["onebit-up"]
