"""Through Flower: a client whose replica is not the server's says so, is left out, and is sent the snapshot."""

from contextlib import nullcontext

import pytest
import torch

from elsewhere import DEVICE, Elsewhere
from flower_desk import RUN, Desk, finished, start
from pfed1bs.algorithms import make
from pfed1bs.core import graphs
from pfed1bs.flower import client as module
from pfed1bs.flower.states import Shelf
from pfed1bs.runs.folder import identity
from pfed1bs.wire.messages import HEADER

keepers = pytest.mark.parametrize("name", ["pfed1bs-delta", "obda", "signsgd", "ef-sign", "stc"])
SAYS = "client 2 is not counted: its replica is not the server's; it is sent the snapshot next"


def kinds(desk, node):
    """The kinds of the news that a node was sent in its rounds."""
    return [[{1: "down", 3: "snapshot"}[item[1]] for item in news] for asked, news in desk.heard if asked == node]


def desk_of(name, folder, **options):
    desk = Desk({**RUN, "rounds": 5, "algorithm.name": name, **options}, folder)
    desk.heard = []

    def before(question, node, content):
        if question == "train":
            desk.heard.append((node, content["news"]))
        return content

    desk.before = before
    return desk


@keepers
def test_a_replica_that_was_damaged_on_disk_is_replaced_and_the_client_counts_again(name, tmp_path):
    desk = desk_of(name, tmp_path)
    server, progress, bills = desk.server(), start(desk.algorithm, 4), []
    for round in range(5):
        if round == 2:
            shelf = Shelf.of(tmp_path, "f", 2, identity(desk.config))
            states = shelf.states()
            states[1]["theta"][0, 5] += 0.25
            shelf.put(states)
            own = states[1]["w"].clone()
        done = server.round(progress, wanted=1)
        progress = done.progress
        bills.append((done.cohort.ids.tolist(), done.traffic.up - sum(map(len, done.uplinks))))
        if round == 2:
            assert any(SAYS in line for line in desk.said) and progress.lost == {2}
            assert torch.equal(desk.states(progress)[2]["w"], own)
            ids, _ = server.judge(progress)  # with the snapshot it is judged
            assert ids.tolist() == [0, 1, 2, 3]
    assert bills == [([0, 1, 2, 3], 0)] * 2 + [([0, 1, 3], HEADER.size)] + [([0, 1, 2, 3], 0)] * 2
    assert kinds(desk, 102) == [["down"]] * 3 + [["snapshot"]] + [["down"]]
    states = desk.states(progress)
    assert all(torch.equal(states[k]["theta"], states[0]["theta"]) for k in states) and not progress.lost


@keepers
def test_a_client_with_another_seed_is_found_in_the_first_round_and_counts_in_none(name, tmp_path):
    desk = desk_of(name, tmp_path)
    honest, stranger = desk.client, make(name, desk.algorithm.task, seed=9)

    def client(node):
        found = honest(node)
        if node == 102:
            vars(found).update(algorithm=stranger)
        return found

    desk.client = client
    progress = finished(desk)
    assert sum(SAYS in line for line in desk.said) == 5 and "round 0: client 2" in desk.said[4]
    assert progress.seen.tolist() == [4, 4, -1, 4] and progress.lost == {2}
    assert kinds(desk, 102) == [["down"], *([["snapshot"]] * 4)]


def test_a_client_with_another_seed_is_not_judged_on_a_gpu_either_before_its_first_round(tmp_path, monkeypatch):
    desk = desk_of("pfed1bs-delta", tmp_path)
    honest, stranger = desk.client, make("pfed1bs-delta", desk.algorithm.task, seed=9)

    def client(node):
        found = honest(node)
        vars(found).update(data=desk.data.to(DEVICE), **({"algorithm": stranger} if node == 102 else {}))
        return found

    def on_way(question, node, reply):
        told.extend([(node, reply.error)] if question == "evaluate" else [])
        return [reply]

    desk.client, desk.on_way, told = client, on_way, []
    monkeypatch.setattr(module, "choose", lambda device: DEVICE)
    monkeypatch.setattr(module, "alone", lambda device: nullcontext())
    monkeypatch.setattr(graphs, "enabled", False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with Elsewhere():
        desk.server().judge(start(desk.algorithm, 4))
    wrong = "its replica is not the server's"
    assert told == [(100, ""), (101, ""), (102, wrong), (103, "")]


def test_a_server_that_goes_on_remembers_who_has_lost_its_replica(tmp_path):
    desk = desk_of("signsgd", tmp_path)
    rounds = desk.server().rounds()
    first = next(rounds)
    shelf = Shelf.of(tmp_path, "f", 2, identity(desk.config))
    states = shelf.states()
    states[0]["theta"] += 1
    shelf.put(states)
    second = next(rounds)
    assert first.progress.lost == frozenset() and second.progress.lost == {2}
    progress = finished(desk, resume=second.progress)
    assert kinds(desk, 102)[2] == ["snapshot"] and progress.seen.tolist() == [4] * 4
