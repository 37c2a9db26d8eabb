"""Clients that fail, die, come late or lose their disk: the round goes on without them, and nothing is lost."""

import pytest
import torch

from flower_desk import DELTA, RUN, Desk, assert_missed, finished, flipped, replaced, same
from pfed1bs.flower.link import Reply, told, without_folders
from pfed1bs.flower.server import Stopped, start
from pfed1bs.flower.states import Shelf
from pfed1bs.runs.folder import identity

ASLEEP = ("evaluate", 102)
FAULTS = {
    "it raised": lambda reply: [Reply(reply.node, None, "it raised")],
    "no answer in time": lambda reply: [],
    "its message must be bytes": lambda reply: [replaced(reply, up="text")],
    "checksum": lambda reply: [replaced(reply, up=flipped(reply.content["up"], 30))],
    "too short": lambda reply: [replaced(reply, up=reply.content["up"][:-1])],
    "too long": lambda reply: [replaced(reply, up=reply.content["up"] + b"x")],
    "its round is 7": lambda reply: [replaced(reply, round=7)],
    "its partition is 0": lambda reply: [replaced(reply, partition=0)],
    "must be a whole number": lambda reply: [replaced(reply, round=True)],
    "one finite number": lambda reply: [replaced(reply, **{"log/loss": [float("nan")]})],
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_client_that_fails_is_left_out_with_the_reason_and_the_round_goes_on(reason, tmp_path):
    def on_way(question, node, reply):
        faulty = question == "train" and node == 102 and reply.content["round"] == 1
        return FAULTS[reason](reply) if faulty else [reply]

    desk = Desk(DELTA, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert [line for line in desk.said if reason in line and "round 1: client 2 is not counted" in line]
    assert_missed(desk, tmp_path, DELTA, progress, {1: [2]})


def test_a_client_that_sleeps_is_left_in_peace_for_longer_and_longer_and_taken_back(tmp_path):
    asleep = range(1, 7)

    def on_way(question, node, reply):
        return [] if question == "train" and node == 102 and reply.content["round"] in asleep else [reply]

    run = {**RUN, "rounds": 12, "steps": 1, "algorithm.name": "obda"}
    desk = Desk(run, tmp_path, on_way)
    server, answers = desk.server(), []
    for done in server.rounds():
        answers.append(2 in done.cohort.ids.tolist())
    trained = [node for question, node in desk.asked if question == "train"]
    assert trained.count(101) == 12 and trained.count(102) == 9  # not in rounds 3, 5 and 6
    assert answers == [True, *[False] * 6, *[True] * 5]
    assert any("client 2 was too late 2 times in a row; it is asked again in round 4" in line for line in desk.said)
    assert not server.roster.naps


def test_a_client_that_trains_and_never_judges_is_asked_for_its_score_more_and_more_rarely(tmp_path):
    desk = Desk({**RUN, "steps": 1}, tmp_path, lambda question, node, reply: [reply] * ((question, node) != ASLEEP))
    server, progress = desk.server(), start(desk.algorithm, 4)
    for _ in range(8):
        progress = server.round(progress, wanted=1).progress
        server.judge(progress)
    assert desk.asked.count(ASLEEP) == 4 and desk.asked.count(("train", 102)) == 8  # not in 2, 4, 5 and 7
    assert any(
        "client 2 was too late 2 times in a row; it is asked again in evaluation 3" in line for line in desk.said
    )
    desk.on_way = lambda question, node, reply: [reply]
    for _ in range(4):
        server.judge(progress)
    assert not server.roster.naps


def test_sleepers_are_asked_where_nobody_else_is_left(tmp_path):
    roster = Desk(RUN, tmp_path).server().roster
    for client in (0, 1, 1, 2, 2, 2):
        roster.late(client, 5)
    assert roster.awake({0, 1, 2, 3}, 6, 2) == {0, 3} and roster.awake({0, 1, 2, 3}, 7, 2) == {0, 1, 3}
    assert roster.awake({0, 1, 2, 3}, 6, 3) == {0, 1, 2, 3}


def test_a_long_reason_is_one_short_line_of_the_log(tmp_path):
    def on_way(question, node, reply):
        return [Reply(node, None, "no\n\x1b[2J" * 500_000)] if (question, node) == ("train", 102) else [reply]

    desk = Desk({**RUN, "rounds": 1}, tmp_path, on_way)
    finished(desk)
    (line,) = [line for line in desk.said if "not counted" in line]
    assert len(line) < 400 and line.isprintable() and line.endswith(" ...")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("no file /home/ward3/records/x.npz here", "no file x.npz here"),
        ("cannot read '/srv/a b/c.pt': /tmp/d", "cannot read 'a b/c.pt': d"),
        (r"C:\Users\ward3\x.npz is damaged", "x.npz is damaged"),
        ("1/2 of the samples, 3 / 4", "1/2 of the samples, 3 / 4"),
    ],
)
def test_the_server_does_not_hear_where_things_lie_at_a_client(text, left):
    assert without_folders(text) == left == told(text)


def test_too_few_answers_repeat_the_round_and_then_give_the_undisturbed_bits(tmp_path):
    failures = [104, 101, 102]

    def on_way(question, node, reply):
        if question == "train" and reply.content["round"] == 1 and node in failures:
            failures.remove(node)
            return [Reply(node, None, "it died")]
        return [reply]

    run = {**DELTA, "min_clients": 4}
    desk = Desk(run, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert any("round 1: 2 valid answers, 4 are needed; attempt 1 of 3" in line for line in desk.said)
    trained = [node for question, node in desk.asked if question == "train"]
    assert len(trained) == 4 + 6 + 4, "whoever has answered is not asked again"
    assert_missed(desk, tmp_path, run, progress, {})


def test_a_round_without_enough_answers_stops_the_run_with_the_reason(tmp_path):
    desk = Desk(DELTA, tmp_path, lambda question, node, reply: [reply] if question == "query" else [])
    with pytest.raises(Stopped, match="round 0: 0 valid answers, 2 are needed, after 3 attempts"):
        finished(desk)


def test_nobody_there_is_no_vote(tmp_path):
    desk = Desk({**DELTA, "min_clients": 1, "wait": 3.0}, tmp_path)
    desk.online = {}
    with pytest.raises(Stopped, match="0 valid answers, 1 are needed"):
        finished(desk)


def test_a_server_that_lost_a_round_repeats_it_with_the_same_bits(tmp_path):
    desk = Desk(DELTA, tmp_path / "ours")
    rounds = desk.server().rounds()
    first = next(rounds)
    next(rounds)  # the clients have done round 1, but the server dies before it is written down
    progress = finished(desk, resume=first.progress)
    assert_missed(desk, tmp_path, DELTA, progress, {})


@pytest.mark.parametrize("name", ["pfed1bs", "pfed1bs-delta", "signsgd", "fedavg", "dispfl"])
def test_a_client_whose_disk_was_lost_begins_again_and_catches_up(name, tmp_path):
    run = {**RUN, "rounds": 5, "algorithm.name": name}
    desk = Desk(run, tmp_path / "ours")
    server, progress = desk.server(), start(desk.algorithm, 4)
    for round in range(5):
        if round == 3:
            (tmp_path / "ours" / "f-2.safetensors").unlink()
        progress = server.round(progress, wanted=1).progress
        if round == 3:
            assert any(
                "client 2 is not counted: it holds the states of rounds [], not that of 2" in x for x in desk.said
            )
            assert progress.seen.tolist() == [3, 3, 2, 3]
    assert any("client 2 has lost the state of round 2; it goes on from -1" in line for line in desk.said)
    assert progress.seen.tolist() == [4, 4, 4, 4]
    states = desk.states(progress)
    if "theta" in states[2]:
        assert torch.equal(states[2]["theta"], states[0]["theta"])


def test_a_client_never_throws_its_model_away_for_a_server_with_an_old_checkpoint(tmp_path):
    desk = Desk(DELTA, tmp_path)
    server = desk.server()
    progress = list(server.rounds())[-1].progress
    held = desk.states(progress)
    with pytest.raises(Stopped):
        finished(desk)  # a new server that believes that nothing has happened yet
    assert any("forgotten that this client is in round 1" in line for line in desk.said)
    found = desk.states(progress)
    assert all(same(found[k], state) for k, state in held.items())


def test_a_second_process_of_a_client_does_not_write_what_the_first_one_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("pfed1bs.flower.states.PATIENCE", 0)
    desk = Desk({**RUN, "rounds": 1}, tmp_path)
    shelf = Shelf.of(tmp_path, "f", 2, identity(desk.config))
    with shelf.alone():
        finished(desk)
    assert any("client 2 is not counted: another process works on f-2.safetensors" in line for line in desk.said)
    assert not shelf.states() and Shelf.of(tmp_path, "f", 1, identity(desk.config)).states()


def test_a_damaged_state_file_keeps_the_client_out_and_is_left_as_it_is(tmp_path):
    desk = Desk(DELTA, tmp_path)
    next(desk.server().rounds())
    path = tmp_path / "f-1.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged or cut off"):
        desk.client(101).answer("query", {"federation": "f"})
    assert desk.client(100).answer("query", {"federation": "f"})["held"] == [0]
