"""Dropout under every method: clients computed one by one, or all at once, draw the same."""

import pytest
from torch import nn

from pfed1bs.algorithms import REGISTRY
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.task import Task
from promise import assert_messages, assert_same, short


def model():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 10)
    )


@pytest.mark.parametrize("name", REGISTRY)
def test_clients_draw_the_same_alone_and_together(name, threads):
    threads(1)
    data = federate(load("digits"), 3, "iid", cap=20)
    size = {"rounds": 2, "steps": 2, "batch": 8, "device": "cpu"}
    together, alone = ([*simulate(short(name, Task(model())), data, chunk=chunk, **size)] for chunk in (None, 1))
    assert_messages(together, alone)
    assert_same(together[-1].progress.clients, alone[-1].progress.clients)
    keys = together[-1].progress.clients["buffer/4.key"]
    assert len(keys.unique()) == 3 and not (keys == Task(model()).buffers(3)["buffer/4.key"]).any()
