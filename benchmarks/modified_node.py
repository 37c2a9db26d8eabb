"""A node that speaks Flower's fleet API itself and answers what it likes; for benchmarks/hostile.py."""

import struct
import threading
import zlib

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from pfed1bs.flower.grid import content_of, record
from pfed1bs.wire.messages import HEADER, encode

POLL = 4.0  # seconds between looks
MB = 10**6
UNSENT = "announced and never sent"


class Broken(ConfigRecord):
    """A record whose bytes are none, under their right name."""

    def deflate(self):
        return add_header_to_object_body(b"\xff" * 50, ConfigRecord())


def sealed(message, payload=None, **changed):
    """A message with other header fields or another payload, and a checksum that is right."""
    names = ("version", "kind", "fingerprint", "round", "coordinates", "samples")
    fields = dict(zip(names, struct.unpack("<BBHIII", message[:16]), strict=True)) | changed
    head, body = struct.pack("<BBHIII", *fields.values()), message[HEADER.size :] if payload is None else payload
    return head + struct.pack("<I", zlib.crc32(head + body)) + body


def scaled(message, scale):
    """The same signs with another scale, the last four bytes."""
    return sealed(message, message[HEADER.size : -4] + struct.pack("<f", scale))


def train_kinds(client, round, good, noise):
    """Answers to a round that a server must not count: contents, records, or errors, by name."""
    said = {"partition": client, "round": round, "up": good, "log/loss": [0.5], "log/rest": [0.0]}
    short, body = noise(100), good[HEADER.size :]

    def up(data):
        return {**said, "up": data}

    foreign = RecordDict({"pfed1bs": ConfigRecord(said), "more": ConfigRecord({"a": 1})})
    arrays = RecordDict({"pfed1bs": ArrayRecord({"w": Array(torch.zeros(3).numpy())})})
    return {
        "random bytes": up(noise(len(good))),
        "random bytes with a right header": up(sealed(good, noise(len(body) + 7))),
        "one bit flipped": up(good[:30] + bytes([good[30] ^ 1]) + good[31:]),
        "wrong version": up(sealed(good, version=250)),
        "wrong kind": up(sealed(good, kind=0)),
        "another layout": up(sealed(good, fingerprint=7)),
        "too short": up(sealed(good, body[:-9])),
        "too long": up(sealed(good, body + short)),
        "cut in the header": up(good[:11]),
        "a claim of 2^32 - 1 coordinates": up(sealed(good, coordinates=2**32 - 1)),
        "replay of an earlier round": up(sealed(good, round=max(0, round - 1)) if round else sealed(good, round=9)),
        "another sample count": up(sealed(good, samples=2**32 - 1)),
        "scale NaN": up(scaled(good, float("nan"))),
        "scale infinite": up(scaled(good, float("inf"))),
        "scale -10": up(scaled(good, -10.0)),
        "loss 1e300": {**said, "log/loss": [1e300]},
        "loss NaN": {**said, "log/loss": [float("nan")]},
        "a log of a thousand numbers": {**said, "log/loss": [0.5] * 1000},
        "another client's answer": {**said, "partition": 0},
        "another round's answer": {**said, "round": round + 1},
        "a text for a message": up("message"),
        "states of rounds that are to come": {**said, "held": [2**62, 10**6]},
        "nothing": {},
        "two records": foreign,
        "arrays": arrays,
        "parts that are no message": RecordDict({"pfed1bs": Broken(said)}),
        "an error of 5 MB": Error(0, "/home/secret/" + "x" * 5 * MB),
        "60 MB": up(good + bytes(60 * MB)),
    }


def evaluate_kinds(client, round):
    """Scores that nobody can have."""
    said = {"partition": client, "round": round}
    return {
        "a score of 1e15 samples": {**said, "score/personal": [0.0, 1e15, 0.1]},
        "a loss of 1e300": {**said, "score/personal": [5.0, 10.0, 1e300]},
        "a score of NaN": {**said, "score/personal": [float("nan")] * 3},
        "more right than samples": {**said, "score/personal": [11.0, 10.0, 0.1]},
        "no score": said,
    }


def query_kinds(client):
    """Introductions that admit nobody."""
    said = {"partition": client % 3, "samples": 50, "held": [0]}
    return {
        "a claim of 1e9 samples": {**said, "samples": 10**9},
        "the place of another": said,
        "no such partition": {**said, "partition": 10**6},
        "samples below 1": {**said, "samples": -5},
    }


class Node(threading.Thread):
    """A client with a registered key; `answer(client, question, content)` says what goes back.

    That is its kind, the content, how often it is sent, and after how many seconds.
    """

    def __init__(self, client, keys, address, answer):
        super().__init__(daemon=True)
        self.client, self.answer, self.address, self.keys = client, answer, address, keys
        self.leave, self.sent = threading.Event(), []

    def run(self):
        path = self.keys / f"node{self.client}"
        pair = load_ssh_private_key(path.read_bytes(), None), load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        with http_request_response(self.address, False, str(self.keys / "ca.crt"), pair, 2, 30.0) as connection:
            while not self.leave.wait(POLL):
                try:
                    self.turn(*connection)
                except (Exception, RunNotRunningException) as error:  # noqa: BLE001 (the run is over, or was broken off)
                    self.sent.append({"client": self.client, "kind": "", "link": type(error).__name__})

    def turn(self, node, receive, send, get_run, get_fab, pull, push, confirm):
        """Look for a question, and answer it."""
        if not (found := receive()):
            return
        message, tree = found
        run, number = message.metadata.run_id, message.metadata.message_id
        contents = {one.object_id: pull(run, one.object_id) for one in iterate_object_tree(tree)}
        question = inflate_object_from_contents(number, contents)
        confirm(run, number)
        question.metadata.__dict__["_message_id"] = number
        content = content_of(question.content)
        asked = question.metadata.message_type
        kind, answer, times, late = self.answer(self.client, asked, content)
        self.leave.wait(late)
        line = {"client": self.client, "asked": asked, "round": content.get("round", -1), "kind": kind}
        self.sent.append(line)
        for _ in range(times):
            line["link"] = self.say(question, answer, send, push if kind != UNSENT else lambda *_: None)

    def say(self, question, answer, send, push):
        """Send an answer; what the link made of it."""
        body = answer if isinstance(answer, RecordDict | Error) else record(answer)
        reply = Message(body, reply_to=question)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        try:
            wanted, session = send(reply, get_object_tree(reply), 0.1)
            for number, one in get_all_nested_objects(reply).items():
                if number in wanted:
                    push(question.metadata.run_id, session, number, one.deflate())
        except (Exception, RunNotRunningException) as error:  # noqa: BLE001 (whatever the gate or the SuperLink says)
            status = getattr(getattr(error, "response", None), "status_code", "")
            return f"refused {status}".strip() if status else type(error).__name__
        return "taken" if wanted else "refused"


def honest_message(algorithm, round, samples):
    """A message of the right form, of no honest origin: all signs +, and a small scale."""
    content = {name: torch.ones(codec.shape) for name, codec in algorithm.up.items()}
    content = {name: value * (1e-3 if value.dim() == 0 else 1.0) for name, value in content.items()}
    return encode(algorithm.up, content, kind="up", round=round, samples=samples)
