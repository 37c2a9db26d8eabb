"""Command lines of the documents and of the help: ours are run, with few and short rounds on embedded data.

Of the others (make, pip, python, Flower's) it is checked that what they name exists; no line is of another kind.
"""

import re
import shlex
import shutil
import tomllib
from importlib.metadata import entry_points
from importlib.util import find_spec
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
FLOWER = ("flwr", "flower-superlink", "flower-supernode")
DIGITS = "--data.name digits --data.augment false --model.name mlp".split()
ALONE = ["--parallel", "1"]  # no processes
TUNED = ["--algorithms", "local", "--seeds", "100", "--points", "1", *ALONE]


def blocks(page):
    """The code blocks without a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if not language]


SHELL = ("export", "mkdir", "printf", "cd", "git")  # of every system
PROSE = {"client", "server", "everybody", "judged", "1/(TR)", "from", "z", "word(k,"}  # how blocks of other text begin


def lines(page, *words):
    """The command lines of a page that begin with a word; a backslash goes on, and a loop is what it repeats."""
    text = "\n".join(blocks(page)).replace("\\\n", " ").replace(".venv/bin/", "")
    found = [re.sub(r"^(for .*?; do|until) (.*?)(; done|; do .*)$", r"\2", line.strip()) for line in text.splitlines()]
    return [line for line in found if line.partition(" ")[0] in words]


def called(*words):
    """The command lines of all pages that begin with a word, as words; inline ones too."""
    found = [line for page in PAGES for line in lines(page, *words)]
    inline = [text for page in PAGES for text in re.findall(r"`([^`\n]+ [^`\n]*)`", page.read_text())]
    bare = [re.sub(r"^(\w+=\S+ )+", "", text) for text in inline]  # without OMP_NUM_THREADS=1
    found += [text for text in bare if text.partition(" ")[0] in words]
    return [shlex.split(line, comments=True) for line in found]


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
    (folder / "rows").mkdir()
    with (ROOT / "results" / "table-main" / "runs.jsonl").open() as made:
        (folder / "rows" / "runs.jsonl").write_text(next(made))
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
        more = [*SHORT, *(DIGITS if other else []), *natural, "--out", out]
        more += {"tune": TUNED, "compare": [*ALONE, "--seeds", "0,1" if "--against" in words else "0"]}.get(command, [])
        return [*words, *more] if "--gradients" not in words else without([*words, *more], "--steps")
    if command == "reproduce":
        named = ["table-main" if word == "all" else word for word in words if word != "--quick"]
        for flag in ("--join", "--only", "--methods", "--seeds"):
            named = without(named, flag)
        return [*named, "--draw", "--join", "rows", "--out", out, "--device", "cpu"]
    return [*words, "--out", out] if command == "report" else words


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_the_command_works(words, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr("pfed1bs.cli.terminal.write", lambda *_: None)  # the page has tests of its own
    monkeypatch.setattr("pfed1bs.facts.bench.kernels", list)
    monkeypatch.setattr("pfed1bs.cli.benches.environment", lambda *_: {"device": "toy", "kernel": "toy"})
    monkeypatch.setattr("pfed1bs.facts.bench_gpu.measured", lambda vgg16: iter(()))
    if words[:2] == ["flower", "gate"]:
        monkeypatch.setattr("pfed1bs.flower.gate.FILES", ())
        monkeypatch.setattr("pfed1bs.flower.gate.serve", lambda *_: None)
    if words[:2] in (["flower", "init"], ["flower", "certificates"]):
        words = [*words[:2], str(tmp_path / words[2]), *words[3:]]
    asked = short(words, str(tmp_path / "out"))
    for flag in ("--write", "--data.root"):
        asked = without(asked, flag)
    assert main(asked) == 0, capsys.readouterr().err


def test_every_block_of_commands_is_of_a_kind_that_is_tested():
    kinds = {"pfed1bs", "make", "pip", "python", "python3", *FLOWER, *SHELL, "for", "until"}
    for page in PAGES:
        for block in blocks(page):
            first = block.split(maxsplit=1)[0].removeprefix(".venv/bin/")
            assert first in kinds | PROSE or re.fullmatch("[0-9a-f]{2}", first), f"{page.name}: {first}"


def test_targets_of_make_that_pages_name_exist():
    text = (ROOT / "Makefile").read_text()
    known = set(re.findall(r"^([\w-]+):", text, re.MULTILINE))
    for _, *words in called("make"):
        values = {word.partition("=")[0] for word in words if "=" in word}
        assert {word for word in words if "=" not in word} <= known, words
        assert all(f"$({value})" in text for value in values), words


def test_lines_that_install_name_extras_pins_and_files_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    asked = called("pip")
    assert len(asked) > 3
    for words in asked:
        assert words[1] == "install" and "ADDRESS" not in words, words
        for word in words[2:]:
            named = re.match(r"^(?:pfed1bs|\.)\[([\w,]+)\]", word)
            assert not named or {*named[1].split(",")} <= {*extras}, words
            assert "==" not in word or word in pins, words
        assert all((ROOT / words[at + 1]).exists() for at, word in enumerate(words) if word == "-c"), words


def test_scripts_that_pages_call_exist_and_know_their_flags():
    asked = [words for words in called("python", "python3") if len(words) > 1 and words[1].endswith(".py")]
    assert len(asked) > 5
    for _, script, *words in asked:
        told = (ROOT / script).read_text()
        for word in words:
            flag = word.partition("=")[0]
            assert not flag.startswith("--") or flag in told, f"{script} {word}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own use of typer
def test_flowers_commands_and_flags_exist():
    from flwr.cli.app import app
    from typer.main import get_command

    programs = {item.name for item in entry_points(group="console_scripts")}
    home = Path(find_spec("flwr").origin).parent
    text = "\n".join(path.read_text() for path in home.rglob("*.py") if {"cli", "common", "supercore"} & {*path.parts})
    known = {*re.findall(r"[\"'](--[a-z][a-z-]+)[\"']", text)}
    asked = called(*FLOWER)
    assert len(asked) > 5
    for program, *words in asked:
        assert program in programs, program
        command = get_command(app)
        for word in words if program == "flwr" else ():
            if not hasattr(command, "commands"):
                break
            command = command.commands[word]
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, words
