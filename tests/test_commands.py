"""Every command line of the documents and of the help is run, with few and short rounds on embedded data."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pfed1bs.cli.help import EXAMPLES
from pfed1bs.cli.main import main
from pfed1bs.flower.states import Shelf

ROOT = Path(__file__).parent.parent
ELSEWHERE = ("extend.md", "after.md")  # run by tests of their own: tests/test_extend.py, tests/runs/test_after_page.py
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = "--rounds 1 --clients 4 --steps 2 --batch 4 --data.cap 20 --device cpu".split()
TUNED = ["--algorithms", "local", "--seeds", "100", "--points", "1", "--parallel", "1"]


def blocks(page):
    """The code blocks without a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if not language]


def lines(page, word):
    """The lines of a page that begin with a word; those that end with a backslash go on."""
    text = "\n".join(blocks(page)).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip().startswith(f"{word} ")]


COMMANDS = {
    " ".join(shlex.split(line, comments=True)[1:]): shlex.split(line, comments=True)[1:]
    for line in (
        *(line for page in PAGES if page.name not in ELSEWHERE for line in lines(page, "pfed1bs")),
        *(line for example in EXAMPLES.values() for line in example),
    )
    if "tether:Tether" not in line
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the commands read: runs, tables, and the files that pages write."""
    folder = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    samples = {"x": rng.normal(0, 1, (400, 1, 8, 8)).astype("float32"), "y": labels}
    for name in ("mine", "sensors", "samples", "new"):
        np.savez(folder / f"{name}.npz", **samples, **({"owners": np.arange(400) % 8} if name == "sensors" else {}))
    words = ["run", "--algorithm.name", "pfed1bs-delta", *SHORT, "--out"]
    assert main([*words, str(folder / "mine")]) == 0
    (folder / "runs").mkdir()
    for link in ("RUN", "runs/mine", "runs/study"):
        (folder / link).symlink_to(folder / "mine")
    for copy in ("a", "b"):
        shutil.copytree(folder / "mine", folder / "runs" / copy)
    (folder / "results").symlink_to(ROOT / "results")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "keys").mkdir()
    Shelf.of(folder / "device0", "onebit-7", 0, "{}").put({1: {"model/w": torch.ones(2)}})
    return folder


def without(words, flag):
    """The words without a flag and its value."""
    at = words.index(flag) if flag in words else len(words)
    return words[:at] + words[at + 2 :]


def short(words, out):
    """The same command with little to do."""
    command = words[0]
    if command in ("run", "compare", "tune"):
        other = words[1:2] and not words[1].startswith("-") and "digits" not in words[1]
        natural = [] if "natural" not in words else ["--clients", "8"]
        more = [*SHORT, *(["--data.name", "digits", "--model.name", "mlp"] if other else []), *natural, "--out", out]
        more += {"tune": TUNED, "compare": ["--seeds", "0,1" if "--against" in words else "0"]}.get(command, [])
        return [*words, *more] if "--gradients" not in words else without([*words, *more], "--steps")
    if command == "reproduce":
        return [*("table-main" if word == "all" else word for word in words), "--draw", "--out", out, "--device", "cpu"]
    return [*words, "--out", out] if command == "report" else words


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_the_command_works(words, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr("pfed1bs.cli.terminal.write", lambda *_: None)  # the page has tests of its own
    monkeypatch.setattr("pfed1bs.facts.bench.kernels", list)
    monkeypatch.setattr("pfed1bs.cli.benches.environment", lambda *_: {"device": "toy", "kernel": "toy"})
    monkeypatch.setattr("pfed1bs.facts.bench_gpu.measured", lambda vgg16: {"kernels": [], "steps": [], "rounds": []})
    if words[:2] == ["flower", "gate"]:
        monkeypatch.setattr("pfed1bs.flower.gate.FILES", ())
        monkeypatch.setattr("pfed1bs.flower.gate.serve", lambda *_: None)
    if words[:2] in (["flower", "init"], ["flower", "certificates"]):
        words = [*words[:2], str(tmp_path / words[2]), *words[3:]]
    asked = short(words, str(tmp_path / "out"))
    for flag in ("--write", "--data.root", "--join"):
        asked = without(asked, flag)
    assert main(asked) == 0, capsys.readouterr().err


def test_targets_of_make_that_pages_name_exist():
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        named = re.findall(r"`make (\w+)", page.read_text()) + [line.split()[1] for line in lines(page, "make")]
        assert set(named) <= set(known), page.name
