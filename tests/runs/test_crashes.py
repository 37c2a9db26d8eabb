"""A run whose files are cut, whose disk is full or read-only, whose clock jumps: the last whole state, or a refusal."""

import json
import os
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch

from flower_desk import RUN, Desk
from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.flower.serving import Folder, serve
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import load
from pfed1bs.runs.folder import RunFolder, identity
from pfed1bs.runs.run import Run, federation

SMALL = "--clients 3 --steps 1 --batch 4 --data.partition iid --data.cap 12 --rounds 4".split()
SMALL += ["--algorithm.name", "local", "--evaluate_every", "1", "--checkpoint_every", "1"]
DATA = federation(load(None, SMALL))


def prepared(out, *words):
    return Run.prepare(load(None, [*SMALL, *words, "--out", str(out)]), samples=lambda config: DATA)


def lines(out):
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed, and its folder as a process leaves it that is killed after three rounds."""
    home = tmp_path_factory.mktemp("runs")
    running = prepared(home / "whole").rounds()
    for _ in range(3):
        next(running)
    shutil.copytree(home / "whole", home / "killed")
    list(running)
    return lines(home / "whole"), home / "killed"


def test_every_file_cut_at_any_byte_leads_to_the_last_state_or_a_refusal(tmp_path, whole):
    expected, killed = whole
    config, chance, refused = prepared(killed).config, random.Random(0), {}
    for path in sorted(killed.iterdir()):
        data = path.read_bytes()
        ends = {
            0,
            1,
            2,
            3,
            7,
            8,
            9,
            len(data) // 2,
            len(data) - 2,
            len(data) - 1,
            *chance.choices(range(len(data) + 1), k=5),
        }
        for end in sorted(end for end in ends if 0 <= end < len(data)):
            out = tmp_path / f"{path.name}-{end}"
            shutil.copytree(killed, out)
            (out / path.name).write_bytes(data[:end])
            try:
                with RunFolder(out, config).open(resume=True) as folder:
                    assert folder.progress.round == 3 and len(lines(out)) == 3
            except UserError as error:
                assert path.name in str(error) and error.hint
                refused[path.name] = refused.get(path.name, 0) + 1
    assert set(refused) == {"checkpoint.safetensors", "metrics.jsonl"}
    assert list(prepared(shutil.copytree(killed, tmp_path / "again")).rounds(resume=True))
    assert lines(tmp_path / "again") == expected


@pytest.mark.parametrize(("room", "name"), [(100, "clients.csv"), (450, "metrics.jsonl"), (3000, "checkpoint.part")])
def test_a_full_disk_stops_a_run_which_goes_on_when_there_is_room(tmp_path, whole, room, name):
    expected, _ = whole
    running, limits = prepared(tmp_path / "run").rounds(), resource.getrlimit(resource.RLIMIT_FSIZE)
    next(running)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match=name):
            list(running)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(prepared(tmp_path / "run").rounds(resume=True))
    assert lines(tmp_path / "run") == expected


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no names of open files")
def test_lines_are_on_the_disk_before_the_checkpoint_that_counts_them_and_it_before_it_has_its_name(
    tmp_path, monkeypatch
):
    order, sync, move = [], os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: order.append(Path(f"/proc/self/fd/{file}").readlink().name) or sync(file)
    )
    monkeypatch.setattr(Path, "replace", lambda path, new: order.append(f"= {new.name}") or move(path, new))
    list(prepared(tmp_path / "run", "--rounds", "1").rounds())
    at = order.index("= checkpoint.safetensors")
    assert order[at - 2 : at + 2] == ["metrics.jsonl", "checkpoint.part", "= checkpoint.safetensors", "run"]


def test_a_federation_writes_a_round_down_before_it_begins_the_next(tmp_path):
    def before(question, node, content):
        if question == "train" and content["round"]:
            assert len(lines(tmp_path / "run")) == content["round"]
            file = tmp_path / "run" / "checkpoint.safetensors"
            assert checkpoint.load(file, identity(desk.config)).round == content["round"]
            found.add(content["round"])
        return content

    found, run = set(), {**RUN, "out": str(tmp_path / "run")}
    desk = Desk(run, tmp_path / "state", before=before)
    serve(desk, desk.config, desk.rules)
    assert found == {1, 2}


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="no folder of the system's own")
def test_a_folder_that_cannot_be_written_is_said_in_a_line(capsys):
    assert cli.main(["run", *SMALL, "--out", "/sys/kernel/pfed1bs-run"]) == 1
    *_, said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith("error: cannot read or write: ") and "--out" in hint


def test_a_clock_that_jumps_changes_no_round(tmp_path, whole, monkeypatch):
    expected, _ = whole
    chance = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: chance.uniform(-1e9, 1e10))
    monkeypatch.setattr(time, "gmtime", lambda *_: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    list(prepared(tmp_path / "run").rounds())
    assert lines(tmp_path / "run") == expected


def test_the_files_of_a_federation_cut_off_are_refused_and_its_state_is_whole(tmp_path):
    run = {**RUN, "out": str(tmp_path / "run"), "rounds": 1, "pin": True}
    desk = Desk(run, tmp_path / "state")
    serve(desk, desk.config, desk.rules)
    for name in ("federation.json", "pins.json"):
        data = (tmp_path / "run" / name).read_bytes()
        for end in range(len(data) - 2):
            (tmp_path / "run" / name).write_bytes(data[:end])
            folder = Folder(Path(tmp_path / "run"), desk.config)
            with pytest.raises(UserError, match=name):
                _ = folder.federation if name == "federation.json" else folder.pins
        (tmp_path / "run" / name).write_bytes(data)
    again = Desk({**run, "rounds": 2, "resume": True}, tmp_path / "state")
    serve(again, again.config, again.rules)
    assert torch.equal(torch.tensor([line["round"] for line in lines(tmp_path / "run")]), torch.arange(2))
