"""A network in one process: every message passes through Flower's record, every client through its file."""

import json
from functools import cache

import torch
from flwr.app import ConfigRecord

from pfed1bs.flower.client import Client
from pfed1bs.flower.link import LATE, Reply, Size, Ticket
from pfed1bs.flower.server import Server, start
from pfed1bs.flower.settings import read
from pfed1bs.flower.states import Shelf
from pfed1bs.runs.folder import identity
from pfed1bs.runs.run import federation, method


@cache
def dealt(run):
    return federation(read(json.loads(run))[0])


RUN = {"rounds": 3, "clients": 4, "steps": 2, "batch": 8, "data.cap": 60, "data.partition": "dirichlet:0.5"}
DELTA = {**RUN, "algorithm.name": "pfed1bs-delta"}


def copied(content):
    """What is left of a content after it was serialised and read again."""
    return dict(ConfigRecord.inflate(ConfigRecord(dict(content)).deflate()))


class Desk:
    """A link whose nodes are clients at hand; `on_way(question, node, reply)` may change, drop or double replies."""

    def __init__(self, run, folder, on_way=None, before=None):
        self.config, self.rules = read(run)
        self.folder, self.data = (
            folder,
            dealt(json.dumps({k: v for k, v in run.items() if not k.startswith("algorithm.")})),
        )
        self.algorithm = method(self.config, self.data.shape, self.data.num_classes)
        self.online = {100 + k: k for k in range(self.config.clients)}
        self.on_way = on_way or (lambda question, node, reply: [reply])
        self.before = before or (lambda question, node, content: content)
        self.size, self.asked, self.inbox = Size(), [], []

    def client(self, node):
        """A new process would know no more than this."""
        client = Client(self.config, self.rules, self.online[node], self.folder)
        vars(client).update(data=self.data, algorithm=self.algorithm)
        return client

    def nodes(self):
        return set(self.online)

    def pause(self, seconds):
        pass

    def post(self, question, letters, timeout):
        replies = []
        for node, content in letters.items():
            self.asked.append((question, node))
            content = self.before(question, node, copied(content))
            try:
                reply = Reply(node, copied(self.client(node).answer(question, content)))
            except (ValueError, RuntimeError, OSError, KeyError) as error:
                reply = Reply(node, None, str(error))
            replies += self.on_way(question, node, reply)
        silent = {*letters} - {reply.node for reply in replies}
        self.inbox.append(replies + [Reply(node, None, LATE) for node in sorted(silent)])
        return Ticket({str(len(self.inbox) - 1): -1}, 0.0)

    def collect(self, ticket):
        (number, _) = ticket.waiting.popitem()
        return self.inbox[int(number)]

    def server(self, federation="f"):
        """A new server, whose complaints are in `said`."""
        self.said = []
        return Server(self.algorithm, self, self.config, self.rules, federation, self.said.append)

    def states(self, progress, federation="f"):
        """What the clients hold, as the server counts it, by client."""
        found = {}
        for node, k in self.online.items():
            shelf, seen = Shelf.of(self.folder, federation, k, identity(self.config)), int(progress.seen[k])
            found[k] = shelf.states()[seen] if seen >= 0 else self.client(node).first
        return found


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
