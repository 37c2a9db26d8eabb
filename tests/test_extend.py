"""The page that builds a method: its file runs from the command line and passes the checks of all methods."""

import inspect
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import pfed1bs.extend
import test_every_algorithm as common
from flower_desk import RUN, Desk
from pfed1bs.cli.main import main
from pfed1bs.engine.contract import CONTRACT
from pfed1bs.engine.rounds import simulate
from promise import assert_messages, assert_same

PAGE = (Path(__file__).parent.parent / "docs" / "extend.md").read_text()
CODE = "".join(re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^pfed1bs (.*)$", PAGE, re.MULTILINE)
CHECKS = [check for name, check in vars(common).items() if name.startswith("test_")]
SMALL = ["--rounds", "2", "--clients", "3", "--steps", "2", "--batch", "8"]


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """A folder with the file of the page, from which it can be imported."""
    (tmp_path / "tether.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("tether", None)
    common.method.cache_clear()
    common.whole.cache_clear()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_method_of_the_page_passes_the_checks_of_all_methods(check, tmp_path, monkeypatch):
    given = {"name": "tether:Tether", "tmp_path": tmp_path, "device": "cpu", "monkeypatch": monkeypatch}
    check(**{name: given[name] for name in inspect.signature(check).parameters})


@pytest.mark.usefixtures("no_page")
def test_the_commands_of_the_page_run(own, capsys):
    assert [words.split()[0] for words in COMMANDS] == ["run", "compare"]
    for i, words in enumerate(COMMANDS):
        assert main([*shlex.split(words), *SMALL, "--out", f"out{i}"]) == 0
    summary = json.loads((own / "out0" / "summary.json").read_text())
    assert summary["algorithm"] == "tether:Tether" and summary["rounds"] == 2
    assert "tether:Tether" in capsys.readouterr().out


def test_the_method_of_the_page_has_the_bits_of_the_simulator_in_a_network(tmp_path, threads):
    threads(1)
    desk = Desk({**RUN, "algorithm.name": "tether:Tether"}, tmp_path)
    server = desk.server()
    ours = list(server.rounds())
    theirs = list(simulate(desk.algorithm, desk.data, rounds=RUN["rounds"], steps=RUN["steps"], batch=RUN["batch"]))
    assert_messages(ours, theirs)
    assert_same(ours[-1].progress.server, theirs[-1].progress.server)
    assert list(server.judge(ours[-1].progress)[1]) == ["personal"]


def test_the_method_is_about_forty_lines_long():
    assert 30 <= len([line for line in CODE.splitlines() if line.strip()]) <= 45


def test_the_page_names_all_of_the_contract_and_only_what_there_is():
    lines = PAGE[PAGE.index("| name | what it says") :].splitlines()
    named = {name for line in lines if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert named == set(CONTRACT)
    assert all(hasattr(pfed1bs.extend, name) for name in pfed1bs.extend.__all__)


def test_the_installed_command_finds_the_file_in_the_folder_it_is_called_from(tmp_path, fresh):
    (tmp_path / "tether.py").write_text(CODE)
    words = ["run", "--algorithm.name", "tether:Tether", "--help"]
    done = fresh.command(*words, before="sys.path.remove('')", folder=tmp_path)
    assert done.returncode == 0 and "how strongly a client's model is tied" in " ".join(done.stdout.split()), (
        done.stderr
    )
