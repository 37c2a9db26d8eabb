"""A Flower network in one process: real messages, contexts and apps; replies may be lost, and nodes restart."""

import random
from contextlib import contextmanager

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from pfed1bs.flower.dropin_letters import deflated

RUN = 7


@contextmanager
def identity(node):
    """Messages are made in the name of a node; Flower sets that in every process of its own."""
    before = [TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id]
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, node, 1
    try:
        yield
    finally:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before


class Desk(Grid):
    """Nodes 101, 102, ... with the partitions 0, 1, ...; `app(message, context)` answers for all of them."""

    def __init__(self, app, nodes, run_config=None, node_config=None, lost=0.0, restarts=0.0, seed=0):
        self.app, self.lost, self.restarts, self.chance = app, lost, restarts, random.Random(seed)
        self.run_config, self.node_config = run_config or {}, node_config or {}
        self.contexts = {101 + k: self.context(101 + k) for k in range(nodes)}
        self.up = self.down = 0
        self.errors = []  # what nodes complained of
        self.sent, self.came = [], []  # (node, records, the drop-in's own one), of messages and of replies

    def context(self, node):
        own = {"partition-id": node - 101, **self.node_config}
        return Context(RUN, node, own, RecordDict(), self.run_config)

    def set_run(self, run):
        pass

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return [*self.contexts]

    def restart(self, node):
        self.contexts[node] = self.context(node)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if self.chance.random() < self.restarts:
                self.restart(node)
            self.down += deflated(message)
            self.sent.append(noted(node, message))
            reply = self.answer(node, message)
            if self.chance.random() >= self.lost:
                self.up += deflated(reply)
                self.came.append(noted(node, reply))
                replies.append(reply)
        return replies

    def answer(self, node, message):
        message.metadata.__dict__["_message_id"] = "1"
        with identity(node):
            try:
                return self.app(message, self.contexts[node])
            except (ValueError, RuntimeError, KeyError) as error:
                self.errors.append(str(error))
                return Message(Error(2, str(error)), reply_to=message)


def noted(node, message):
    content = message.content if message.has_content() else {}
    return node, [*content], dict(content.get("onebit", {}))
