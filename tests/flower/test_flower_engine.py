"""What the engine promises holds in a network too: who rests, and how often an answer is decoded."""

from itertools import islice

import pytest
import torch

from flower_desk import RUN, Desk, same
from pfed1bs.algorithms.base.trial import ALONE, PROX, Trial
from pfed1bs.engine import rest as resting
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rounds import simulate
from pfed1bs.flower.serving import serve
from pfed1bs.runs import checkpoint

FEW = {**RUN, "algorithm.name": "pfed1bs-delta", "rounds": 40, "sampled": 2, "rest": 1e9}  # who has taken part rests


@pytest.fixture
def tired(monkeypatch):
    """However many samples a client has, they do not keep it awake."""
    monkeypatch.setattr(resting, "LEFT", float("inf"))


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


def test_a_client_at_rest_that_chooses_anew_wakes_and_the_network_goes_on_as_the_simulator_does(
    tmp_path, monkeypatch, tired
):
    options = {"algorithm.keep": "best", "algorithm.trial": 2, "algorithm.again": 2, "data.cap": 5000}
    desk = Desk({**FEW, **options, "sampled": 4, "rounds": 14}, tmp_path)
    first, asked = int(desk.data.sizes[0]), []
    assert len({*desk.data.sizes.tolist()}) == 4  # a client is known by its samples

    def verdict(self, sums, sizes, old):
        """Client 0 is alone after its second trial, the others after their first."""
        asked.extend(sizes.tolist())
        trials = [(size, (asked.count(size) + 1) // 2) for size in sizes.tolist()]  # a trial has two rounds
        return torch.tensor([ALONE if one in {(first, 2), *others} else PROX for one in trials]).to(old)

    others = {(size, 1) for size in desk.data.sizes.tolist()} - {(first, 1)}
    monkeypatch.setattr(Trial, "verdict", verdict)
    over_network = list(desk.server().rounds())
    asked.clear()
    simulated = list(simulate(desk.algorithm, desk.data, rounds=14, steps=2, batch=8))
    marks = [done.log["rest"].tolist() for done in simulated]
    assert [1, 0, 0, 0] in marks and [0, 1, 1, 1] in marks  # client 0 rested before all do
    assert [done.log["rest"].tolist() for done in over_network] == marks
    assert [done.last for done in over_network] == [done.last for done in simulated] == [*[False] * 10, True]


@pytest.mark.parametrize("before", [1, 3])
def test_a_network_that_goes_on_knows_who_rests(tmp_path, tired, before):
    whole, path = list(Desk(FEW, tmp_path / "whole").server().rounds()), tmp_path / "checkpoint.safetensors"
    desk = Desk(FEW, tmp_path / "ours")
    done = list(islice(desk.server().rounds(), len(whole) - before))
    checkpoint.save(path, done[-1].progress, "{}")
    done += desk.server().rounds(checkpoint.load(path, "{}"))
    assert [one.cohort.ids.tolist() for one in done] == [one.cohort.ids.tolist() for one in whole]
    assert [one.uplinks for one in done] == [one.uplinks for one in whole] and done[-1].last
    ours, theirs = desk.states(done[-1].progress), Desk(FEW, tmp_path / "whole").states(whole[-1].progress)
    assert all(same(ours[k], theirs[k]) for k in theirs)


def test_a_network_that_has_come_to_rest_adds_no_round(tmp_path, tired):
    run = {**FEW, "out": str(tmp_path / "run")}
    ended = []
    for more in ({}, {"resume": True}, {"resume": True, "rounds": 50}):
        desk = Desk({**run, **more}, tmp_path)
        folder = serve(desk, desk.config, desk.rules)
        ended.append((folder / "metrics.jsonl").read_bytes())
        assert (desk.asked == []) is bool(more)
    assert ended == [ended[0]] * 3 and 1 < len(ended[0].splitlines()) < 40


@pytest.mark.parametrize(("client", "restarted"), [(1, False), (2, True)])  # says so when asked, or to a new server
def test_a_client_at_rest_that_has_lost_its_state_is_awake_until_it_rests_again(tmp_path, tired, client, restarted):
    desk = Desk({**FEW, "min_clients": 1}, tmp_path)
    server = desk.server()
    now = list(islice(server.rounds(), 6))[-1].progress
    assert now.resting == {1, 2, 3}
    (tmp_path / f"f-{client}.safetensors").unlink()
    done = (desk.server() if restarted else server).round(now, wanted=4)
    assert 0 in done.cohort.ids and not done.last  # as it would be
    assert done.progress.resting == {0, 1, 2, 3} - {client}
    later = [(client in one.cohort.ids, one.last) for one in desk.server().rounds(done.progress)]
    assert later == [*[(False, False)] * (len(later) - 1), (True, True)]


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
