"""Clients that lie, repeat themselves or send rubbish: no message but a valid one changes anything."""

import json
import random

import pytest

from flower_desk import DELTA, RUN, Desk, assert_missed, finished, flipped, replaced, same
from pfed1bs.flower.client import Client
from pfed1bs.flower.link import Reply, logged
from pfed1bs.flower.server import start
from pfed1bs.flower.serving import serve
from pfed1bs.wire.messages import read_header


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


@pytest.mark.parametrize("asked", ["query", "train"])
def test_who_says_that_it_holds_a_million_states_fills_no_log(asked, tmp_path):
    def on_way(question, node, reply):
        return [replaced(reply, held=[*range(10**6)]) if (question, node) == (asked, 102) else reply]

    desk = Desk({**RUN, "rounds": 1, "wait": 0.0}, tmp_path, on_way)
    finished(desk)
    assert any("it says that it holds 1000000 states; a client keeps two" in line for line in desk.said)
    assert max(map(len, desk.said)) < 400


def test_a_node_cannot_take_the_place_of_a_client_that_answers(tmp_path):
    desk = Desk(DELTA, tmp_path / "ours")
    desk.online[50] = 2  # asked after the true one only because of its number, so give it the place first
    desk.online[200] = 2
    progress = finished(desk)
    assert any("node 102 is not admitted: client 2 is node 50, which answers" in line for line in desk.said)
    assert any("node 200 is not admitted: node 102 says too that it is client 2" in line for line in desk.said)
    assert not any("client 2 is node 102, " in line or "client 2 is node 200, " in line for line in desk.said)
    assert progress.seen.tolist() == [2, 2, 2, 2]


def test_a_rival_that_was_believed_while_a_client_was_silent_does_not_make_the_server_forget_its_states(tmp_path):
    """Its word that states are lost counts when it has worked, and it never does."""
    silent, rival = [], 999

    def on_way(question, node, reply):
        if node == rival:
            return [replaced(reply, samples=50, held=[0])] if question == "query" else [Reply(node, None, "no")]
        return [] if (question, node) in silent else [reply]

    desk = Desk({**DELTA, "clients": 5}, tmp_path, on_way)
    server, progress = desk.server(), start(desk.algorithm, 5)
    for round in range(5):
        if round == 2:
            desk.online[rival] = 1
            silent += [("query", 101), ("train", 101)]
        if round == 4:
            del desk.online[rival]
            silent.clear()
            server = desk.server()  # goes on, and knows what was written down
        progress = server.round(progress, wanted=1).progress
        assert progress.seen.tolist() == [round, 1 if round in (2, 3) else round, *[round] * 3]
        assert server.roster.members[1].node == (rival if round == 3 else 101)


def test_a_client_that_works_keeps_its_place_although_its_answer_to_who_it_is_is_late(tmp_path):
    rival, late = 999, []

    def on_way(question, node, reply):
        return late if question == "query" and node == 101 and rival in desk.online else [reply]

    desk = Desk({**DELTA, "min_clients": 4}, tmp_path, on_way)
    server, progress = desk.server(), start(desk.algorithm, 4)
    progress = server.round(progress, wanted=1).progress
    desk.online[rival] = 1
    server.round(progress, wanted=1)
    assert server.roster.members[1].node == 101 and rival in server.roster.refused
    server.roster.refresh(desk, 1.0)  # now its answer is found to be late
    assert server.roster.members[1].node == 101 and 101 not in server.roster.refused


def test_the_message_of_a_client_says_nothing_but_what_the_method_says(tmp_path):
    desk = Desk(DELTA, tmp_path)
    desk.on_way = lambda question, node, reply: replies.append((question, reply.content)) or [reply]
    replies = []
    server = desk.server()
    done = next(server.rounds())
    server.judge(done.progress)
    for question, content in replies:
        expected = {"query": {"samples", "held"}, "train": {"round", "up", "log/loss", "log/apart", "log/rest"}}
        assert set(content) == {"partition"} | expected.get(question, {"round", "score/personal", "score/global"})
        if question == "train":
            assert read_header(content["up"]).round == 0


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


def test_a_second_answer_does_not_count_whatever_it_says(tmp_path):
    def on_way(question, node, reply):
        return [reply, replaced(reply, up=flipped(reply.content["up"], 30))] if question == "train" else [reply]

    desk = Desk(DELTA, tmp_path / "ours", on_way)
    progress = finished(desk)
    assert sum("it has answered already" in line for line in desk.said) == 12
    assert_missed(desk, tmp_path, DELTA, progress, {})


def test_a_pinned_client_cannot_be_taken_over_while_it_is_away(tmp_path):
    for pin, admitted in ((False, True), (True, False)):
        run = {**DELTA, "pin": pin, "out": str(tmp_path / f"run{pin}")}
        desk = Desk({**run, "rounds": 1}, tmp_path / str(pin))
        serve(desk, desk.config, desk.rules)
        again = Desk({**run, "resume": True}, tmp_path / str(pin))
        del again.online[102]
        again.online[300] = 2
        serve(again, again.config, again.rules)
        said = (tmp_path / f"run{pin}" / "events.log").read_text()
        assert ("client 2 is node 300" in said) is admitted
        assert ("node 300 is not admitted: client 2 is pinned to node 102" in said) is not admitted


@pytest.mark.parametrize(
    ("score", "told"),
    [
        ([1.7e308] * 3, "counts more samples or loss"),
        ([1e12, 1e12, 0.1], "counts more samples or loss"),
        ([5.0, 10.0, 1e9], "counts more samples or loss"),
        ([5.0, 10.0, float("inf")], "right answers, samples and loss"),
    ],
)
def test_scores_that_nobody_can_have_are_refused(score, told, tmp_path):
    server = Desk(RUN, tmp_path).server()
    with pytest.raises(ValueError, match=told):
        server._scores({"score/personal": score})
    assert server._scores({"score/personal": [5.0, 10.0, 0.7]}) == {"personal": [5.0, 10.0, 0.7]}


def test_a_client_that_leaves_numbers_out_takes_them_from_nobody(tmp_path):
    def on_way(question, node, reply):
        left = {key: value for key, value in reply.content.items() if key not in ("log/loss", "score/global")}
        return [Reply(node, left) if node == 100 else reply]

    desk = Desk({**DELTA, "rounds": 1, "out": str(tmp_path / "run")}, tmp_path, on_way)
    serve(desk, desk.config, desk.rules)
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["loss"] > 0 and line["accuracy_global"] > 0 and line["judged"] == 3


def test_a_loss_that_single_precision_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="too large a number"):
        logged({"log/loss": [1e300]})
