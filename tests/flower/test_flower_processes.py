"""Real federations: one SuperLink and three SuperNodes as processes on loopback, undisturbed and disturbed."""

import json
import os
import re

import pytest
import torch

from flower_desk import Desk
from flower_processes import Processes
from pfed1bs.cli.main import main
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.trust import Trust
from pfed1bs.flower.server import start
from pfed1bs.flower.serving import Folder
from pfed1bs.flower.settings import BELIEVED
from pfed1bs.flower.states import Shelf
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import load
from pfed1bs.runs.folder import identity
from pfed1bs.runs.run import federation, method

METHODS = os.environ.get("PFED1BS_FLOWER", "pfed1bs-delta").split(",")  # each takes a minute
FLAGS = ["--clients", "3", "--data.partition", "labels:4", "--steps", "5", "--evaluate_every", "100"]


@pytest.fixture
def app(tmp_path):
    """The folder that `pfed1bs flower init` writes."""
    assert main(["flower", "init", str(tmp_path / "app"), *FLAGS]) == 0
    return tmp_path / "app"


def configured(**keys):
    """The configuration of a run of the app, which believes no number without a bound."""
    keys = {**BELIEVED, **keys}
    return load(None, [*FLAGS, *(word for key, value in keys.items() for word in (f"--{key}", str(value)))])


def summary(folder):
    return (folder / "summary.json").exists() and json.loads((folder / "summary.json").read_text())


def events(folder):
    return (folder / "events.log").read_text() if (folder / "events.log").exists() else ""


def states(home, config, name, seen):
    """What the devices hold on their disks, after the rounds that counted."""
    return [
        Shelf.of(home / f"state{k}", name, k, identity(config)).states()[int(last)]
        for k, last in enumerate(seen.tolist())
    ]


def same(ours, theirs):
    return set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_through_the_gate_and_with_registered_keys_the_bits_are_those_of_the_simulator(tmp_path, app, threads):
    threads(1)
    keys = tmp_path / "keys"
    assert main(["flower", "certificates", str(keys), "--hosts", "127.0.0.1,127.0.0.2", "--nodes", "4"]) == 0
    methods = {name: tmp_path / f"run-{name}" for name in METHODS}
    with Processes(tmp_path / "home", keys) as processes:
        processes.superlink()
        processes.gate()
        for k in range(3):
            code, text = processes.flwr("supernode", "register", f"{keys}/node{k}.pub", "it")
            assert code == 0, text
            processes.supernode(k)
        stranger = processes.supernode(3)  # its key is not registered
        for name, folder in methods.items():
            processes.run(app, rounds=5, out=str(folder), **{"algorithm.name": name})
        assert processes.until("the refusal", stranger.poll) != 0
        assert "Failed to activate SuperNode" in processes.log("node3")
        found = {name: processes.until(name, lambda: summary(folder), 300) for name, folder in methods.items()}  # noqa: B023
    for name, folder in methods.items():
        config = configured(rounds=5, **{"algorithm.name": name})
        data = federation(config)
        algorithm = method(config, data.shape, data.num_classes)
        rounds = list(simulate(algorithm, data, rounds=5, steps=5, trust=Trust(**BELIEVED)))
        progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
        assert progress.round == 5 and progress.seen.tolist() == [4, 4, 4]
        assert same(progress.server, rounds[-1].progress.server)
        for k, state in enumerate(states(tmp_path / "home", config, Folder(folder, config).federation, progress.seen)):
            assert same(state, {key: value[k : k + 1] for key, value in rounds[-1].progress.clients.items()})
        payload = found[name]["bytes"]["payload"]
        assert payload["up"] == sum(done.traffic.up for done in rounds)
        assert payload["down"] == sum(done.traffic.down for done in rounds)
        assert payload["up"] < found[name]["bytes"]["protobuf"]["up"] < payload["up"] + 25 * 1000  # 21 replies


def test_a_node_and_the_superlink_are_killed_and_nothing_is_lost(tmp_path, app, threads):
    threads(1)
    folder, home = tmp_path / "run", tmp_path / "home"
    keys = {"rounds": 4, "out": str(folder), "timeout": 30.0, "evaluate": False, "algorithm.name": "pfed1bs"}
    with Processes(home) as processes:
        processes.superlink("--database", "state.db")
        for k in range(3):
            processes.supernode(k)
        processes.run(app, **keys)
        processes.until("round 0", lambda: "round 0: counted" in events(folder), 150)
        processes.kill("node2")
        processes.until("round 1", lambda: "round 1: counted" in events(folder), 150)
        processes.kill("superlink")
        processes.supernode(2)
        processes.superlink("--database", "state.db")
        processes.run(app, resume=True, **keys)
        processes.until("the end", lambda: summary(folder), 240)
    found = [[int(k) for k in ids.split()] for ids in re.findall(r"round \d: counted ([\d ]+),", events(folder))]
    assert len(found) == 4 and found[0] == [0, 1, 2] and 2 not in found[1] and 2 in found[3], events(folder)
    config = configured(rounds=4)
    progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
    undisturbed, reference = missing(tmp_path / "desk", found)
    assert same(progress.server, reference.server) and torch.equal(progress.seen, reference.seen)
    name = Folder(folder, config).federation
    for k, state in enumerate(states(home, config, name, progress.seen)):
        assert same(state, undisturbed[k]), k


def missing(folder, counted):
    """Client states and progress of an undisturbed run in which only these clients took part in each round."""
    run = {"rounds": len(counted), "clients": 3, "steps": 5, "data.partition": "labels:4", "min_clients": 1}
    desk = Desk(run, folder)
    server, everyone, progress = desk.server(), desk.online, start(desk.algorithm, 3)
    for here in counted:
        desk.online = {node: k for node, k in everyone.items() if k in here}
        progress = server.round(progress, wanted=1).progress
    desk.online = everyone
    return desk.states(progress), progress
