"""Target: the contents that Flower carries; it needs Flower."""

from collections.abc import Callable
from functools import cache

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import nn

from network import SAMPLES, drawn
from pfed1bs.algorithms import make
from pfed1bs.engine.rounds import begin
from pfed1bs.flower.client import checked
from pfed1bs.flower.grid import content_of
from pfed1bs.flower.link import Content, Reply, Size, messages, numbers, reals, text, whole
from pfed1bs.flower.roster import Member
from pfed1bs.flower.server import Server
from pfed1bs.flower.settings import read
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import encode


@cache
def server() -> Server:
    """A server with one member; nothing is sent."""
    config, rules = read({"clients": 2, "algorithm.name": "pfed1bs-delta", "rounds": 2})

    class Nobody:
        size = Size()

    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    found = Server(make("pfed1bs-delta", task), Nobody(), config, rules, "f", lambda line: None)  # type: ignore[arg-type]
    found.roster.members[0] = Member(7, SAMPLES, None)
    return found


def record(data: bytes) -> None:
    """Bytes of a record are no record, or its content is refused or believed by the rules."""
    try:
        content = content_of(RecordDict({"pfed1bs": ConfigRecord.inflate(data, {})}))
    except Exception:  # noqa: BLE001 (what Flower's own reader says of bytes that are none of its records)
        return
    believe(content)


def believe(content: Content) -> None:
    """Everything that a server and a client look up in a content: a value, or a ValueError."""
    one, now = server(), begin(server().algorithm, 2)
    reply, read = Reply(7, content), one._reader(now)
    looks: list[Callable[[], object]] = [
        lambda: one.roster._member(reply),
        lambda: one._answer(now, 0, reply, True, read),
        lambda: one._answer(now, 0, reply, False, read),
        lambda: one._scores(one._content(now, 0, reply)),
        lambda: [whole(content, key) for key in ("base", "round")],
        lambda: [text(content, "federation"), numbers(content, "held"), reals(content, "log/")],
        lambda: checked(one.algorithm, messages(content, "news"), 0, 1),
    ]
    for look in looks:
        try:
            look()
        except ValueError:
            continue


def seeds() -> dict[str, list[bytes]]:
    """Valid records."""
    draws = torch.Generator().manual_seed(0)
    up = server().algorithm.up
    said = encode(up, {name: drawn(codec, draws) for name, codec in up.items()}, kind="up", round=0, samples=SAMPLES)
    contents: list[dict[str, object]] = [
        {"partition": 0, "samples": 10, "held": [1, 2]},
        {"partition": 0, "round": 0, "up": said, "log/loss": [0.5]},
        {"partition": 0, "round": 0, "score/personal": [5.0, 10.0, 0.7]},
        {"federation": "f", "round": 1, "base": 0, "news": [said], "speak": True},
    ]
    return {"records": [ConfigRecord(content).deflate() for content in contents]}  # type: ignore[arg-type]


TARGETS = {"records": record}
