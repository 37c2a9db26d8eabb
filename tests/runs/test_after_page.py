"""The commands of the page about trained models do what it says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import pfed1bs
from flower_desk import Desk
from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.cli.main import main
from pfed1bs.flower.serving import serve
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task

PAGE = (Path(__file__).parents[2] / "docs" / "after.md").read_text()
COMMANDS = re.findall(r"^pfed1bs .*", PAGE, re.MULTILINE)


@pytest.mark.usefixtures("no_page")
def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = pfed1bs.load("digits")
    np.savez("new.npz", x=data.test_inputs[:5], y=data.test_labels[:5])
    desk = Desk(
        {"rounds": 1, "clients": 2, "steps": 2, "out": "there", "algorithm.name": "pfed1bs-delta"}, tmp_path / "device0"
    )
    serve(desk, desk.config, desk.rules)
    name = json.loads((tmp_path / "there" / "federation.json").read_text())["name"]
    assert len(COMMANDS) == 6
    for line in COMMANDS:
        assert main(line.replace("NAME", name).split()[1:]) == 0, line
        if " predict " in line:
            assert [len(answer) for answer in capsys.readouterr().out.split()][-5:] == [1] * 5, line
        if "--out model" in line:
            assert "| accuracy | " in Path("model.md").read_text()
            Path("model.md").unlink()
            Path("model.safetensors").unlink()
    assert main(["export", "there", "--shared", "--out", "theirs.safetensors"]) == 0


def test_the_page_names_the_methods_whose_personal_models_clients_do_not_keep():
    task = Task(build("mlp", (1, 8, 8), 10))
    made = {name: make(name, task) for name in REGISTRY}
    [told] = re.findall(r"made from the server's\n\((.*?)\)", PAGE)
    assert set(re.findall(r"`([\w-]+)`", told)) == {name for name in made if not made[name].kept}
