"""Clients that fail, lie, repeat themselves or come back: no message but a valid one changes anything."""

import random

import pytest
import torch

from flower_desk import Desk
from pfed1bs.flower.client import Client
from pfed1bs.flower.link import Reply
from pfed1bs.flower.server import Stopped, start
from pfed1bs.wire import read_header

RUN = {"rounds": 3, "clients": 4, "steps": 2, "batch": 8, "data.cap": 60, "data.partition": "dirichlet:0.5"}
DELTA = {**RUN, "algorithm.name": "pfed1bs-delta"}


def same(ours, theirs):
    return set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def finished(desk, **options):
    *_, last = desk.server().rounds(**options)
    return last.progress


def without(tmp_path, run, absent):
    """Progress and client states of a run in which `absent` maps rounds to the clients that are not there."""
    desk = Desk(run, tmp_path)
    server, everyone, progress = desk.server(), desk.online, start(desk.algorithm, desk.config.clients)
    for round in range(desk.config.rounds):
        desk.online = {node: k for node, k in everyone.items() if k not in absent.get(round, ())}
        progress = server.round(progress, wanted=1).progress
    desk.online = everyone
    return progress, desk.states(progress)


def assert_missed(desk, tmp_path, run, progress, absent):
    """The run went as if the clients had not been there in those rounds."""
    expected, states = without(tmp_path / "reference", run, absent)
    assert torch.equal(progress.seen, expected.seen) and same(progress.server, expected.server)
    found = desk.states(progress)
    assert all(same(found[k], states[k]) for k in states)


def replaced(reply, **keys):
    return Reply(reply.node, {**reply.content, **keys})


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


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


def test_a_second_answer_does_not_count_whatever_it_says(tmp_path):
    def on_way(question, node, reply):
        return [reply, replaced(reply, up=flipped(reply.content["up"], 30))] if question == "train" else [reply]

    desk = Desk(DELTA, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert sum("it has answered already" in line for line in desk.said) == 12
    assert_missed(desk, tmp_path, DELTA, progress, {})


def test_an_answer_of_an_earlier_round_is_refused_even_under_the_number_of_this_one(tmp_path):
    old = {}

    def on_way(question, node, reply):
        if question != "train":
            return [reply]
        old.setdefault(node, reply.content["up"])
        return [replaced(reply, up=old[node])] if node == 101 else [reply]

    desk = Desk(DELTA, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert any("round is 0, expected 2" in line for line in desk.said)
    assert_missed(desk, tmp_path, DELTA, progress, {1: [1], 2: [1]})


def hostile(generator, reply, earlier):
    """A reply with something wrong: a record of nonsense, damaged bytes, a lie, or a message that is not its own."""
    content = dict(reply.content)
    up = content.get("up") or b"\0" * 40
    other = generator.choice([b"", *earlier])
    at, value = generator.randrange(len(up)), generator.choice([-1, 2**31, 2**63 - 1, True, 1.5, "1", b"1", [1]])
    damage = generator.choice(["flip", "cut", "grow", "noise", "replay", "key", "lose", "add", "empty"])
    if damage == "flip":
        content["up"] = flipped(up, at)
    elif damage == "cut":
        content["up"] = up[:at]
    elif damage == "grow":
        content["up"] = up + generator.randbytes(generator.randrange(1, 50))
    elif damage == "noise":
        content["up"] = generator.randbytes(len(up))
    elif damage == "replay":
        content["up"] = other
    elif damage == "key":
        content[generator.choice(sorted(content))] = value
    elif damage == "lose":
        content.pop(generator.choice([key for key in sorted(content) if not key.startswith("log/")]))
    elif damage == "add":
        content[generator.choice(["held", "log/loss", "log/up_bytes", "score/personal"])] = value
    else:
        content = {}
    return Reply(reply.node, content)


def test_three_hundred_hostile_messages_change_no_vote(tmp_path):
    """Every reply comes after a hostile twin, and once a hostile one alone; only true replies may count."""
    generator, earlier, sent = random.Random(0), [], []

    def on_way(question, node, reply):
        if question != "train":
            return [reply]
        old = [up for up in earlier if read_header(up).round < reply.content["round"]]
        twins = [hostile(generator, reply, old) for _ in range(7)]
        twins = [twin for twin in twins if changed(twin, reply)]
        sent.extend(twins)
        earlier.append(reply.content["up"])
        strangers = [Reply(999, reply.content), Reply(node + 1, dict(reply.content, partition=0, round=5))]
        alone = reply.content["round"] == 3 and node == 103
        return twins + ([] if alone else [reply]) + strangers

    run = {**DELTA, "rounds": 12}
    desk = Desk(run, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert len(sent) > 300
    assert_missed(desk, tmp_path, run, progress, {3: [3]})


def changed(twin, reply):
    """Whether the server should refuse it: it is not the true reply with harmless differences."""
    keys = ("up", "round", "partition")
    logs = {key: value for key, value in reply.content.items() if key.startswith("log/")}
    harmless = all(twin.content.get(key) == reply.content[key] for key in keys) and "held" not in twin.content
    harmless &= not any(isinstance(twin.content.get(key), bool) for key in keys)
    return not (harmless and all(twin.content.get(key) == value for key, value in logs.items()))


def test_two_hundred_damaged_questions_raise_nothing_but_refusals_and_change_no_state(tmp_path):
    desk = Desk(DELTA, tmp_path)
    server, asked = desk.server(), []
    desk.before = lambda question, node, content: asked.append((question, node, content)) or content
    (first, second, third) = server.rounds()
    before = desk.states(second.progress)
    generator, refused = random.Random(1), 0
    for i in range(200):
        question, node, content = [item for item in asked if item[0] == "train"][generator.randrange(4, 12)]
        damaged, client = dict(content), Client(desk.config, desk.rules, desk.online[node], tmp_path)
        vars(client).update(data=desk.data, algorithm=desk.algorithm)
        news = damaged["news"][0]
        at = generator.randrange(len(news))
        damage = i % 8
        if damage == 0:
            damaged["news"] = [flipped(news, at)]
        elif damage == 1:
            damaged["news"] = [news[:at]]
        elif damage == 2:
            damaged["news"] = damaged["news"] * 2
        elif damage == 3:
            damaged["news"] = []
        elif damage == 4:
            damaged["round"] = generator.choice([-1, damaged["round"] + 1, 2**62, "1", 1.0])
        elif damage == 5:
            damaged["base"] = generator.choice([-2, damaged["round"], 2**40, None])
        elif damage == 6:
            damaged["federation"] = generator.choice(["", "../f", "a/b", "f" * 40 + "\0", 3])
        else:
            damaged["news"] = [generator.randbytes(len(news))]
        try:
            answer = client.answer("train", damaged)
        except ValueError:
            refused += 1
        else:
            assert set(answer) == {"partition", "round", "held"}  # it has no such state, and says so
    assert refused >= 100
    assert all(same(desk.states(second.progress)[k], state) for k, state in before.items())


def test_a_claim_above_the_cap_is_not_admitted_and_an_honest_count_is_all_that_votes(tmp_path):
    def on_way(question, node, reply):
        return [replaced(reply, samples=10**9) if question == "query" and node == 103 else reply]

    desk = Desk({**DELTA, "max_samples": 500}, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert any("claims 1000000000 samples; 1 .. max_samples = 500" in line for line in desk.said)
    assert_missed(desk, tmp_path, DELTA, progress, {0: [3], 1: [3], 2: [3]})


def test_a_message_under_another_sample_count_than_it_was_admitted_with_is_refused(tmp_path):
    def on_way(question, node, reply):
        return [replaced(reply, samples=reply.content["samples"] + 1) if question == "query" and node == 100 else reply]

    desk = Desk(DELTA, tmp_path, on_way)
    finished(desk)
    assert sum("client 0 is not counted: sample count is" in line for line in desk.said) == 3


def test_a_node_cannot_take_the_place_of_a_client_that_answers(tmp_path):
    desk = Desk(DELTA, tmp_path / "ours")
    desk.online[50] = 2  # asked after the true one only because of its number, so give it the place first
    desk.online[200] = 2
    progress = finished(desk)
    assert any("node 102 is not admitted: client 2 is node 50, which answers" in line for line in desk.said)
    assert any("node 200 is not admitted: client 2 is node 50, which answers" in line for line in desk.said)
    assert progress.seen.tolist() == [2, 2, 2, 2]


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


def test_a_damaged_state_file_keeps_the_client_out_and_is_left_as_it_is(tmp_path):
    desk = Desk(DELTA, tmp_path)
    next(desk.server().rounds())
    path = tmp_path / "f-1.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="damaged or cut off"):
        desk.client(101).answer("query", {"federation": "f"})
    assert desk.client(100).answer("query", {"federation": "f"})["held"] == [0]


def test_the_message_of_a_client_says_nothing_but_what_the_method_says(tmp_path):
    desk = Desk(DELTA, tmp_path)
    desk.on_way = lambda question, node, reply: replies.append((question, reply.content)) or [reply]
    replies = []
    server = desk.server()
    done = next(server.rounds())
    server.judge(done.progress)
    for question, content in replies:
        expected = {"query": {"samples", "held"}, "train": {"round", "up", "log/loss"}}
        assert set(content) == {"partition"} | expected.get(question, {"round", "score/personal", "score/global"})
        if question == "train":
            assert read_header(content["up"]).round == 0
