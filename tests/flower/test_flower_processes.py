"""Real federations of processes on loopback: one undisturbed, with an outsider at its gate, and one that is killed.

Both mostly wait, for Flower's polls and for Python to start, so they are played side by side; the tests look at what is
left.
"""

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

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
FLAGS = ["--clients", "2", "--data.partition", "labels:4", "--steps", "5", "--evaluate_every", "100"]
MODEL = """
from torch import nn

def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))
"""
QUIET = {"rounds": 2, "model.name": "beside:net"}  # a module in the folder of the app
SLOW = {"timeout": 45.0, "wait": 600.0, "attempts": 10}  # a busy machine may take half a minute to start a client
KILLED = {"rounds": 3, "min_clients": 1, "evaluate": False, "algorithm.name": "pfed1bs", "seed": 5, **SLOW}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A folder with the app that `pfed1bs flower init` writes, a module beside it, and keys."""
    place = tmp_path_factory.mktemp("stage")
    assert main(["flower", "init", str(place / "app"), *FLAGS]) == 0
    (place / "app" / "beside.py").write_text(MODEL)
    assert main(["flower", "certificates", str(place / "keys"), "--hosts", "127.0.0.1,127.0.0.2", "--nodes", "3"]) == 0
    return place


@pytest.fixture(scope="module")
def played(stage):
    """What is going on, by name."""
    with ThreadPoolExecutor() as pool:
        yield {play.__name__: pool.submit(play, stage) for play in (undisturbed, killed)}


def undisturbed(place):
    """Registered nodes behind the gate do their rounds, while an outsider with the certificate tries all doors."""
    keys, outside = place / "keys", place / "outside"
    outside.mkdir()
    shutil.copy(keys / "ca.crt", outside)
    own = shutil.move(keys / "node2", outside), shutil.move(keys / "node2.pub", outside)  # nobody has registered it
    with Processes(place / "home", keys) as processes:
        processes.superlink()
        processes.gate()
        for k in range(2):
            code, text = processes.flwr("supernode", "register", f"{keys}/node{k}.pub", "it")
            assert code == 0, text
            processes.supernode(k)
        started = [
            processes.run(place / "app", out=str(place / name), **QUIET, **{"algorithm.name": name}) for name in METHODS
        ]
        stranger = processes.supernode(2, key=own[0])
        where = f'[superlink.it]\naddress = "127.0.0.2:{processes.port}"\nroot-certificates = "{outside}/ca.crt"\n'
        (outside / "config.toml").write_text(where)
        words = (
            ["supernode", "register", own[1], "it"],
            ["supernode", "list", "it"],
            ["run", str(place / "app"), "it"],
        )
        tried = [processes.flwr(*one, home=outside) for one in words]
        refused = processes.until("the refusal", stranger.poll), processes.log("node2")
        for name in METHODS:
            processes.until(name, lambda: summary(place / name), 600)  # noqa: B023
        seen = [processes.flwr(*words, "it", "--format", "json") for words in (["supernode", "list"], ["list"])]
    return started, tried, refused, seen


def killed(place):
    """A node dies and misses a round, then the SuperLink dies; what goes on is told where, and nothing else."""
    folder = place / "killed"
    with Processes(place / "other") as processes:
        processes.superlink("--database", "state.db")
        for k in range(2):
            processes.supernode(k)
        processes.run(place / "app", out=str(folder), **KILLED)
        processes.until("round 0", lambda: "round 0: counted" in events(folder), 600)
        processes.kill("node1")
        processes.until("round 1", lambda: "round 1: counted" in events(folder), 600)
        processes.kill("superlink")
        processes.supernode(1)
        processes.superlink("--database", "state.db")
        processes.run(place / "app", out=str(folder), resume=True)
        processes.until("the end", lambda: summary(folder), 600)


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


def test_through_the_gate_and_with_registered_keys_the_bits_are_those_of_the_simulator(
    stage, played, threads, monkeypatch
):
    played["undisturbed"].result()
    threads(1)
    monkeypatch.syspath_prepend(stage / "app")
    for name in METHODS:
        config, folder = configured(**QUIET, **{"algorithm.name": name}), stage / name
        data = federation(config)
        algorithm = method(config, data.shape, data.num_classes)
        rounds = list(simulate(algorithm, data, rounds=2, steps=5, trust=Trust(**BELIEVED)))
        progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
        assert progress.round == 2 and progress.seen.tolist() == [1, 1]
        assert same(progress.server, rounds[-1].progress.server)
        for k, state in enumerate(states(stage / "home", config, Folder(folder, config).federation, progress.seen)):
            assert same(state, {key: value[k : k + 1] for key, value in rounds[-1].progress.clients.items()})
        found = summary(folder)["bytes"]
        assert found["payload"]["up"] == sum(done.traffic.up for done in rounds)
        assert found["payload"]["down"] == sum(done.traffic.down for done in rounds)
        assert found["payload"]["up"] < found["protobuf"]["up"] < found["payload"]["up"] + 10 * 1000  # 8 replies


def test_an_outsider_with_the_certificate_alone_can_neither_register_nor_list_nor_run(played):
    started, tried, (code, log), seen = played["undisturbed"].result()
    assert all(code != 0 for code, _ in tried), tried
    assert code != 0 and "Failed to activate SuperNode" in log
    assert all(code == 0 for code, _ in seen), seen
    nodes, runs = (json.loads(text) for _, text in seen)
    assert len(nodes["nodes"]) == 2, "the outsider has registered a key"
    assert {str(run["run-id"]) for run in runs["runs"]} == {*re.findall(r"run (\d+)", " ".join(started))}


def test_a_node_and_the_superlink_are_killed_and_nothing_is_lost(stage, played, threads):
    played["killed"].result()
    threads(1)
    folder = stage / "killed"
    found = [[int(k) for k in ids.split()] for ids in re.findall(r"round \d: counted ([\d ]+),", events(folder))]
    # Who is late is not counted in a round; who is dead cannot be.
    assert len(found) == 3 and found[1] == [0] and 1 in found[0] + found[2], events(folder)
    config = configured(rounds=3, seed=5)
    progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
    clients, reference = missing(stage / "desk", found)
    assert same(progress.server, reference.server) and torch.equal(progress.seen, reference.seen)
    name = Folder(folder, config).federation
    for k, state in enumerate(states(stage / "other", config, name, progress.seen)):
        assert same(state, clients[k]), k


def missing(folder, counted):
    """Client states and progress of an undisturbed run in which only these clients took part in each round."""
    run = {"rounds": len(counted), "clients": 2, "steps": 5, "data.partition": "labels:4", "min_clients": 1, "seed": 5}
    desk = Desk({**BELIEVED, **run, "algorithm.name": "pfed1bs"}, folder)
    server, everyone, progress = desk.server(), desk.online, start(desk.algorithm, 2)
    for here in counted:
        desk.online = {node: k for node, k in everyone.items() if k in here}
        progress = server.round(progress, wanted=1).progress
    desk.online = everyone
    return desk.states(progress), progress
