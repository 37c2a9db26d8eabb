"""A Flower app that has nothing to do with this package: every node pulls the weights towards its own target."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dropin_grid import Desk, identity
from pfed1bs.flower import OneBit, OneBitFedAvg

N, RATIO = 300, 0.5


def target(node):
    return np.random.default_rng(node).normal(3.0, 1.0, N).astype(np.float32)


def model():
    """What the server begins with: weights, statistics of a layer, and a counter."""
    return ArrayRecord(
        {
            "a": Array(np.zeros((10, 20), np.float32)),
            "bn.running_var": Array(np.ones(3, np.float32)),
            "bn.num_batches_tracked": Array(np.array(0)),
            "b": Array(np.zeros(100, np.float32)),
        }
    )


def stepped(record, node, rate=0.2):
    """The model after a node's training."""
    arrays = {name: array.numpy().copy() for name, array in record.items()}
    a, b = np.split(target(node), [200])
    arrays["a"] += rate * (a.reshape(10, 20) - arrays["a"])
    arrays["b"] += rate * (b - arrays["b"])
    arrays["bn.running_var"] = np.full(3, node, np.float32)
    arrays["bn.num_batches_tracked"] += 1
    return arrays


def toy(change=lambda arrays, message: arrays):
    """The app; `change(arrays, message)` may spoil what train returns. `app.given` is what it was handed."""
    app = ClientApp()
    app.given = []

    @app.train()
    def train(message, context):
        app.given.append((context.node_id, message.content))
        arrays = stepped(message.content["arrays"], context.node_id)
        metrics = MetricRecord({"num-examples": context.node_id - 100, "steps": int(arrays["bn.num_batches_tracked"])})
        record = ArrayRecord({name: Array(np.asarray(value)) for name, value in change(arrays, message).items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        app.given.append((context.node_id, message.content))
        arrays = message.content["arrays"]
        steps = int(arrays["bn.num_batches_tracked"].numpy())
        metrics = MetricRecord({"sum": float(arrays["a"].numpy().sum()), "steps": steps, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message, context):
        return Message(message.content, reply_to=message)

    return app


def federated(rounds=3, nodes=4, share=1.0, first=model, app=None, state=None, inner=None, client=None, **options):
    """Desk, strategy and result of a federation of toys; options are the desk's."""
    client = client or OneBit(app or toy(), first=first, state=state)
    inner = inner or FedAvg(share, share, min_train_nodes=1, min_evaluate_nodes=1)
    strategy = OneBitFedAvg(inner, ratio=RATIO, first=first)
    desk = Desk(client, nodes, **options)
    with identity(1):
        result = strategy.start(desk, model(), num_rounds=rounds)
    return desk, strategy, result
