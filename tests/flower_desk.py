"""A network in one process: every message passes through Flower's record, every client through its file."""

import json
from functools import cache

from flwr.app import ConfigRecord

from pfed1bs.flower.client import Client
from pfed1bs.flower.link import Reply, Size
from pfed1bs.flower.server import Server
from pfed1bs.flower.settings import read
from pfed1bs.flower.states import Shelf
from pfed1bs.runs import federation, identity, method


@cache
def dealt(run):
    return federation(read(json.loads(run))[0])


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
        self.size, self.asked = Size(), []

    def client(self, node):
        """A new process would know no more than this."""
        client = Client(self.config, self.rules, self.online[node], self.folder)
        vars(client).update(data=self.data, algorithm=self.algorithm)
        return client

    def nodes(self):
        return set(self.online)

    def pause(self, seconds):
        pass

    def ask(self, question, letters, timeout):
        replies = []
        for node, content in letters.items():
            self.asked.append((question, node))
            content = self.before(question, node, copied(content))
            try:
                reply = Reply(node, copied(self.client(node).answer(question, content)))
            except (ValueError, RuntimeError, OSError, KeyError) as error:
                reply = Reply(node, None, str(error))
            replies += self.on_way(question, node, reply)
        return replies

    def server(self, federation="f"):
        """A new server, whose complaints are in `said`."""
        self.said = []
        return Server(self.algorithm, self, self.config, self.rules, federation, self.said.append)

    def states(self, progress, federation="f"):
        """What the clients hold, as the server counts it, by client."""
        found = {}
        for node, k in self.online.items():
            shelf, seen = Shelf.of(self.folder, federation, k, identity(self.config)), int(progress.seen[k])
            found[k] = shelf.take(seen) if seen >= 0 else self.client(node).first
        return found
