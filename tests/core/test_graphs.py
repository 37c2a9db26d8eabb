"""Recorded graphs: the bits of plain calls, results that stay, and what must not be recorded."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.core import graphs
from pfed1bs.core.graphs import Graphs
from pfed1bs.core.pending import Pending, Unknown
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine.recorder import _Sized
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.task import Task


def model():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def federation(clients=4, each=30):
    x = torch.randn(clients * each, 12, generator=stream(0, "x"))
    y = torch.randint(3, (clients * each,), generator=stream(0, "y"))
    rows = torch.arange(clients * each).view(clients, each)
    return Federation(x, y, tuple(rows[:, :20]), tuple(rows[:, 20:]), torch.arange(clients * each), 3)


def test_tensors_of_the_cpu_are_left_alone():
    assert Graphs()("key", lambda own: own, {"x": torch.zeros(2)}) is None


def test_a_recorded_cohort_knows_its_size_and_nothing_else():
    cohort = _Sized(3, Pending(torch.device("cpu")))
    assert len(cohort.ids) == 3
    for name in ("seed", "sizes", "seen", "weights", "uniform", "integers", "rows", "shares"):
        with pytest.raises(Unknown, match=name):
            getattr(cohort, name)


@pytest.mark.gpu
@pytest.mark.parametrize("call", ["descend", "gradient"])
def test_replayed_steps_have_the_bits_of_plain_ones(monkeypatch, call):
    def steps(task):
        w = task.init(0).repeat(4, 1).cuda()
        for step in range(5):
            x = torch.randn(4, 8, 12, generator=stream(step, "x")).cuda()
            y = torch.randint(3, (4, 8), generator=stream(step, "y")).cuda()
            if call == "descend":
                w, loss, _ = task.descend(w, x, y, {}, 0.1, 0.01)
            else:
                grad, loss, _ = task.gradient(w, x, y, {})
                w = w - 0.1 * grad
            yield w, loss

    replayed = list(steps(Task(model())))
    monkeypatch.setattr(graphs, "enabled", False)
    for (w, loss), (plain_w, plain_loss) in zip(replayed, steps(Task(model())), strict=True):
        assert torch.equal(w, plain_w) and torch.equal(loss, plain_loss)


@pytest.mark.gpu
def test_replays_leave_inputs_and_earlier_results_as_they_are():
    recorded = Graphs()
    results = []
    for value in range(4):
        given = {"x": torch.full((3,), float(value), device="cuda")}
        found = recorded("double", lambda own: {"y": own["x"].mul_(2)}, given)
        results.append(None if found is None else found["y"].tolist())
        assert given["x"].tolist() == [float(value)] * 3
    assert results == [None, [2.0] * 3, [4.0] * 3, [6.0] * 3]


@pytest.mark.gpu
def test_work_that_waits_for_the_device_is_not_recorded_and_harms_nothing():
    recorded = Graphs()
    torch.cuda.manual_seed(7)
    first = torch.rand(4, device="cuda")
    for _ in range(3):
        assert (
            recorded("waits", lambda own: {"y": own["x"] * own["x"].sum().item()}, {"x": torch.ones(2).cuda()}) is None
        )
    second = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(7)
    for expected in (first, second):
        assert torch.equal(torch.rand(4, device="cuda"), expected)
    for value in (None, [2.0, 2.0]):
        found = recorded("fine", lambda own: {"y": own["x"] * 2}, {"x": torch.ones(2).cuda()})
        assert (found and found["y"].tolist()) == value


@pytest.mark.gpu
@pytest.mark.parametrize("name", REGISTRY)
def test_rounds_have_the_same_bytes_with_and_without_graphs(monkeypatch, name):
    def rounds():
        task = Task(model())
        return list(simulate(make(name, task), federation(), rounds=6, steps=3, batch=8, device="cuda"))

    recorded = rounds()
    monkeypatch.setattr(graphs, "enabled", False)
    for ours, plain in zip(recorded, rounds(), strict=True):
        assert ours.uplinks == plain.uplinks and ours.traffic == plain.traffic
        for key, value in plain.progress.clients.items():
            assert torch.equal(ours.progress.clients[key], value), key
        for key, value in plain.log.items():
            assert torch.equal(ours.log[key], value), key
