"""Answers as Flower's grid fetches them: one that does not come whole, or is no message, holds up no other."""

from time import monotonic, sleep, time
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from dropin_grid import identity
from pfed1bs.flower.grid import GridLink, Timely, record
from pfed1bs.flower.link import LATE, Ticket, ask

RUN = 3


class Store:
    """A SuperLink that holds announced answers, told once each, and such parts of them as were sent."""

    def __init__(self):
        self.answers, self.parts, self.asked, self.later = [], {}, 0, []

    def hold(self, answer, missing=(), changed=None):
        contents = {number: one.deflate() for number, one in get_all_nested_objects(answer).items()}
        contents = {number: data for i, (number, data) in enumerate(contents.items()) if i not in missing}
        answer.metadata.__dict__["_message_id"] = answer.object_id
        self.answers.append((message_to_proto(answer), changed or get_object_tree(answer)))
        self.parts |= contents

    def PullMessages(self, request):  # noqa: N802 (Flower's name)
        told, self.answers = self.answers, []
        for answer in self.later:  # it comes when the first look is over
            self.hold(answer)
        self.later = []
        return SimpleNamespace(
            messages_list=[proto for proto, _ in told], message_object_trees=[tree for _, tree in told]
        )

    def PullObject(self, request):  # noqa: N802
        self.asked += 1
        content = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=True, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        pass


def answer_to(node, content):
    about = Metadata(
        run_id=RUN,
        message_id="",
        src_node_id=node,
        dst_node_id=1,
        reply_to_message_id=f"question {node}",
        group_id="",
        created_at=1.0,
        ttl=60.0,
        message_type="train",
    )
    return make_message(metadata=about, content=record(content) if isinstance(content, dict) else content)


@pytest.fixture
def store():
    return Store()


class Grid(HttpGrid):
    """Flower's, whose questions are numbered by their nodes and go nowhere."""

    def __init__(self, store):
        vars(self).update(_run=SimpleNamespace(run_id=RUN), _client=store, node=Node(node_id=1))

    def push_messages(self, messages):
        return [f"question {message.metadata.dst_node_id}" for message in messages]


def collected(store, nodes, seconds, patience=60.0):
    ticket = Ticket({f"question {node}": node for node in nodes}, monotonic() + seconds, patience)
    return {reply.node: reply for reply in GridLink(Grid(store)).collect(ticket)}


def test_an_answer_that_was_announced_and_never_sent_is_late_and_holds_up_no_other(store):
    store.hold(answer_to(7, {"a": 1}), missing={0})
    store.hold(answer_to(8, {"a": 2}))
    began = monotonic()
    found = collected(store, (7, 8), 0.5)
    assert monotonic() - began < 20
    assert found[7].error == LATE and found[8].content == {"a": 2}


def test_an_answer_that_comes_while_another_is_waited_for_in_vain_is_in_time(store):
    store.hold(answer_to(7, {"a": 1}), missing={0})
    store.later = [answer_to(8, {"a": 2})]
    with identity(1):
        found = {reply.node: reply for reply in ask(GridLink(Grid(store)), "train", {7: {}, 8: {}}, 2.0)}
    assert found[7].error == LATE and found[8].content == {"a": 2}


def test_flowers_own_loop_does_not_wait_longer_for_one_that_announces_than_for_one_that_is_silent(store, monkeypatch):
    monkeypatch.setattr(http_grid, "time", SimpleNamespace(time=time, sleep=lambda seconds: sleep(seconds / 10)))
    store.hold(answer_to(7, {"a": 1}), missing={0})
    store.later = [answer_to(8, RecordDict({f"{i}": ConfigRecord({"b": i}) for i in range(9)}))]
    broken = answer_to(9, {"a": 3})
    store.hold(broken)
    store.parts |= dict.fromkeys(get_all_nested_objects(broken), b"no message")
    with identity(1):
        asked = [Message(record({}), node, "train") for node in (7, 8, 9)]
    began = monotonic()
    found = {one.metadata.reply_to_message_id: one for one in Timely(Grid(store)).send_and_receive(asked, timeout=3.0)}
    assert monotonic() - began < 20 and [*sorted(found)] == [f"question {node}" for node in (7, 8, 9)]
    assert LATE in found["question 7"].error.reason and len(found["question 8"].content) == 9
    assert "it is no message" in found["question 9"].error.reason
    assert Timely(Grid(store)).node.node_id == 1  # in all else it is the grid


def test_an_introduction_lies_longer_at_the_superlink_than_a_round_and_an_evaluation_take(store):
    sent, grid = {}, Grid(store)
    grid.push_messages = lambda messages: [
        sent.update({one.metadata.message_type: one.metadata.ttl}) or "" for one in messages
    ]
    with identity(1):
        for question in ("query", "train", "evaluate"):
            GridLink(grid).post(question, {7: {}}, 60.0)
    assert sent["query"] > 3 * 60 and sent["train"] == sent["evaluate"] == 61


def test_patience_with_introductions_ends_before_the_time_of_the_question(store):
    store.hold(answer_to(7, {"a": 1}), missing={0})
    began = monotonic()
    assert collected(store, (7,), 600, patience=0.5)[7].error == LATE
    assert monotonic() - began < 20


def test_bytes_that_are_no_message_are_refused_and_hold_up_no_other(store):
    broken = answer_to(7, {"a": 1})
    store.hold(broken)
    (number,) = [number for number, one in get_all_nested_objects(broken).items() if isinstance(one, ConfigRecord)]
    store.parts[number] = add_header_to_object_body(b"\xff" * 9, ConfigRecord())
    content = ConfigRecord({"a": 5}).deflate()
    store.hold(answer_to(9, {"a": 3}), changed=ObjectTree(object_id=get_object_id(content)))
    store.parts[get_object_id(content)] = content
    store.hold(answer_to(8, {"a": 2}))
    found = collected(store, (7, 8, 9), 5)
    assert "it is no message: DecodeError" in found[7].error and "no message but a ConfigRecord" in found[9].error
    assert found[8].content == {"a": 2}


def test_an_answer_of_many_parts_is_refused_before_they_are_asked_for(store):
    many = RecordDict({"pfed1bs": ConfigRecord({"a": 1})} | {f"{i}": ConfigRecord({"a": i}) for i in range(50)})
    store.hold(answer_to(7, many))
    assert "an answer has 3 parts, got" in collected(store, (7,), 5)[7].error
    assert store.asked == 0


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [
        (ErrorCode.MESSAGE_UNAVAILABLE, "Error: Message Unavailable - it may have expired", LATE),
        (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "Error: Reply Message Unavailable", LATE),
        (
            ErrorCode.MESSAGE_UNAVAILABLE,
            "Failed to pull object: it is no message",
            "it is no message (Flower's code 3)",
        ),
        (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "out of memory", "out of memory (Flower's code 2)"),
    ],
)
def test_who_lets_the_time_of_a_question_go_by_is_late_also_by_the_clock_of_the_superlink(store, code, reason, told):
    store.hold(make_message(metadata=answer_to(7, {"a": 1}).metadata, error=Error(code, reason)))
    assert collected(store, (7,), 5)[7].error.endswith(told)
