"""Every method with all its kinds of options on a GPU that is not there: its tensors meet none of the CPU."""

from dataclasses import fields, replace
from itertools import zip_longest
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from elsewhere import DEVICE, Away, Elsewhere, Mixed
from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.core import graphs
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine import memory, rounds
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.exchange import agreeing
from pfed1bs.engine.rest import resting
from pfed1bs.engine.rounds import begin, prepare, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.engine.turns import Turn
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


WIDE = Task(nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 3)))
CODED = {"snapshots": "coded", "ratio": 0.3}  # an anchor every second round
FORMS = [(name, TASK, {}) for name in REGISTRY if algorithm_class(name).replicates] + [("pfed1bs-delta", WIDE, CODED)]


def joined(server, client, rounds):
    """What a client alone on the GPU comes to that joins after so many rounds of the others, and what it is sent."""
    now, only = begin(server, 4), torch.tensor([0])
    for done in simulate(server, replace(DATA, newcomers=only), rounds=rounds, device="cpu", **SIZE):
        now = done.progress
    news = prepare(server, now, DATA.sizes, 0, None).news[:1]
    state = {name: value.to("cuda") for name, value in client.init(1)[1].items()}
    cohort = Cohort(0, now.round, only, DATA.sizes[:1], now.seen[:1])
    work = Turn(client, DATA.to(DEVICE), state, news, cohort, *SIZE.values(), places=only)(only)
    return work, [(item.kind, item.round) for item in news[0]]


@pytest.fixture
def gpu_of_clients(gpu, monkeypatch):
    """The server's rounds are computed by the processor."""
    monkeypatch.setattr(rounds, "choose", torch.device)


@pytest.mark.parametrize("name, task, options", FORMS)
def test_a_client_alone_on_a_gpu_that_joins_late_is_found_if_its_seed_is_another(gpu_of_clients, name, task, options):
    server, stranger = make(name, task, **options), make(name, task, seed=1, **options)
    sent = []
    for count in (0, 1, 13):
        (work, told), (found, _) = joined(server, server, count), joined(server, stranger, count)
        assert work.messages and not work.differing and list(found.differing) == [0] and not found.messages
        sent.append(told)
    assert sent[0] == [("down", 0)]
    if name == "pfed1bs-delta":
        assert sent[1] == [("down", 0), ("down", 1)]
        assert sent[2] == ([("snapshot", 12), ("down", 13)] if options else [("snapshot", 13)])


class Otherwise(PFed1BSDelta):
    """On a GPU that rounds products otherwise."""

    def heard(self, said, round):
        step = super().heard(said, round)
        return step * (1 + 2**-20) if step.is_cuda else step


@pytest.mark.parametrize("count", [2, 13])
def test_a_client_whose_gpu_rounds_otherwise_is_no_stranger(gpu_of_clients, count):
    server = make("pfed1bs-delta", WIDE, **CODED)
    for seed, found in ((0, []), (1, [0])):
        work, told = joined(server, Otherwise(WIDE, seed, **CODED), count)
        assert list(work.differing) == found and told[-1] == ("down", count)


def test_copies_on_a_gpu_are_compared_with_the_server_only_where_they_differ(gpu):
    method = make("pfed1bs-delta", TASK)
    now = begin(method, 4)
    news, theta = prepare(method, now, DATA.sizes, 0, None).news, now.clients["theta"]
    for moved, right in (([0] * 4, [True] * 4), ([1] * 4, [True] * 4), ([0, 1, 0, 0], [True, False, True, True])):
        held = {"theta": (theta + torch.tensor(moved)[:, None]).to("cuda")}
        assert agreeing(method, held, news).tolist() == right


@pytest.mark.parametrize("count", [1, 2])
def test_first_weights_that_are_damaged_are_found_on_a_gpu_however_late_it_joins(gpu_of_clients, count):
    class Damaged(PFed1BSDelta):
        def init(self, clients):
            server, states = super().init(clients)
            theta = states["theta"].clone()
            theta.view(torch.int32)[0, 3] ^= 1
            return server, {**states, "theta": theta}

    work, told = joined(make("pfed1bs-delta", TASK), Damaged(TASK, 0), count)
    assert told[0] == ("down", 0) and list(work.differing) == [0]


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
