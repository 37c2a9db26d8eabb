"""What the engine promises holds in a network too: who rests, and how often an answer is decoded."""

import pytest
import torch

from flower_desk import RUN, Desk, same
from pfed1bs.engine import rest as resting
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rounds import simulate


def test_a_network_rests_and_ends_as_the_simulator_does(tmp_path, monkeypatch):
    monkeypatch.setattr(resting, "LEFT", float("inf"))
    told = {**RUN, "algorithm.name": "pfed1bs-delta", "rounds": 6, "rest": 1e9}
    desk = Desk(told, tmp_path)
    over_network = list(desk.server().rounds())
    simulated = list(simulate(desk.algorithm, desk.data, rounds=6, steps=2, batch=8))
    assert len(over_network) == len(simulated) == 1 and over_network[-1].last
    assert over_network[0].uplinks == simulated[0].uplinks
    for k, state in desk.states(over_network[-1].progress).items():
        assert same(state, rows(simulated[-1].progress.clients, torch.tensor([k])))


def test_a_network_ends_when_all_have_said_that_they_rest_also_in_rounds_before(tmp_path, monkeypatch):
    monkeypatch.setattr(resting, "LEFT", float("inf"))
    desk = Desk({**RUN, "algorithm.name": "pfed1bs-delta", "rounds": 12, "sampled": 2, "rest": 1e9}, tmp_path)
    rounds = list(desk.server().rounds())
    met = {client for done in rounds for client in done.cohort.ids.tolist()}
    assert 1 < len(rounds) < 12 and met == set(range(4)) and [done.last for done in rounds] == [
        *[False] * (len(rounds) - 1), True
    ]  # fmt: skip


@pytest.mark.parametrize("run", [RUN, {**RUN, "algorithm.code": "entropy"}, {**RUN, "algorithm.name": "fedavg"}])
def test_a_server_decodes_an_answer_when_it_comes_and_when_it_is_counted(tmp_path, decoded, run):
    desk = Desk(run, tmp_path)
    rounds = list(desk.server().rounds())
    up = [*desk.algorithm.up]
    assert len(rounds) == 3 and up != [*desk.algorithm.down]
    assert decoded.count(up) == 2 * 3 * 4


def test_until_then_a_server_keeps_the_bytes_of_an_answer_alone(tmp_path):
    desk = Desk({**RUN, "algorithm.name": "fedpaq"}, tmp_path)
    server, kept = desk.server(), []
    counted = server._counted
    server._counted = lambda now, plan, answers, *rest: (
        kept.extend(answers.values()) or counted(now, plan, answers, *rest)
    )
    list(server.rounds())
    assert len(kept) == 12 and all({*vars(answer)} == {"up", "samples", "log"} for answer in kept)
    assert all(type(value) is float for answer in kept for value in answer.log.values())
