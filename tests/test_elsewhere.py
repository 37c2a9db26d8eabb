"""Every method with all its kinds of options on a GPU that is not there: its tensors meet none of the CPU."""

from dataclasses import fields
from itertools import zip_longest
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from elsewhere import DEVICE, Away, Elsewhere, Mixed
from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.core import graphs
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine import memory, rounds
from pfed1bs.engine.rest import resting
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.nn.task import Task

EVERY = torch.arange(48)
OWN = tuple(EVERY.view(4, 12))
DATA = Federation(torch.randn(48, 6, generator=stream(0, "inputs")), EVERY % 3, OWN, OWN, EVERY, 3)
TASK = Task(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
SHORT = {"trial": 1, "again": 1, "moves": 2}  # for a trial within two rounds, and few directions
OTHER = {"momentum": 0.5, "epsilon": 1.0}  # numbers that change what is computed
SIZE = {"steps": 2, "batch": 4}


def variants(name):
    """What a method does by itself, and with all its options of a kind at their second value, their third, ..."""
    found, kinds, others = algorithm_class(name), get_type_hints(algorithm_class(name)), []
    for field in fields(found):
        kind = kinds[field.name]
        values = (True, False) if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
        others.append([(field.name, value) for value in values if value != field.default])
    short = {field.name: value for field in fields(found) if (value := {**SHORT, **OTHER}.get(field.name))}
    return [{}, *({**short, **dict(filter(None, row))} for row in zip_longest(*others))]


@pytest.fixture
def gpu(monkeypatch):
    """It can be asked for; work on it is not recorded, and kernels are left to torch."""
    monkeypatch.setattr(graphs, "enabled", False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(memory, "free", lambda device: 1 << 40)
    monkeypatch.setattr(rounds, "choose", lambda device: DEVICE)
    with Elsewhere():
        yield


@pytest.mark.parametrize("name, options", [(name, options) for name in REGISTRY for options in variants(name)])
def test_no_method_mixes_tensors_of_two_devices(gpu, name, options):
    method = resting(make(name, TASK, **options), 1.0)
    *_, last = simulate(method, DATA, rounds=2, sampled=3, device="cuda", **SIZE)
    assert all(isinstance(value, Away) for value in last.progress.clients.values())
    assert not any(isinstance(value, Away) for value in {**last.progress.server, **last.log}.values())
    evaluate(method, DATA, last.progress, **SIZE)


def test_the_gpu_that_is_not_there_refuses_what_a_gpu_refuses(gpu):
    here, away = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3).to("cuda")
    assert away.is_cuda and not away.is_cpu and away.device == DEVICE and here.is_cpu
    assert isinstance(away + 1, Away) and isinstance(away + torch.tensor(1.0), Away)  # numbers go anywhere
    assert isinstance(here.to(away), Away) and isinstance(torch.zeros(2, device=away.device), Away)
    assert type(away.cpu()) is torch.Tensor and away.tolist() == here.tolist()
    assert isinstance(away[torch.tensor([1])], Away) and all(isinstance(row, Away) for row in away)
    assert here.copy_(away) is here and away.add_(1) is away and here[0, 0] == 0  # memory of its own
    away[0] = here[0]
    mixed = [
        lambda: away + here,
        lambda: here.add_(away),
        lambda: torch.stack([away[0, 0], here[0, 0]]),
        lambda: here[away.long()],
        lambda: away.index_select(0, torch.tensor([1])),
        lambda: away.__setitem__(torch.tensor([1]), here[1:]),
        lambda: torch.add(away, 1, out=here),
        lambda: torch.where(away > 1, here, 0.0),
    ]
    for call in mixed:
        with pytest.raises(Mixed):
            call()
    with pytest.raises(TypeError, match="use .cpu"):
        np.asarray(away)
