"""Recorded graphs: the bits of plain calls, results that stay, and what must not be recorded."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.core import graphs
from pfed1bs.core.graphs import Graphs
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine.pending import Pending, Unknown
from pfed1bs.engine.recorder import _Sized
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import decode


def model():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def federation(clients=4, each=30):
    x = torch.randn(clients * each, 12, generator=stream(0, "x"))
    y = torch.randint(3, (clients * each,), generator=stream(0, "y"))
    rows = torch.arange(clients * each).view(clients, each)
    return Federation(x, y, tuple(rows[:, :20]), tuple(rows[:, 20:]), torch.arange(clients * each), 3)


def test_tensors_of_the_cpu_are_left_alone():
    assert Graphs()("key", lambda own: own, {"x": torch.zeros(2)}) is None


@pytest.mark.parametrize("error", [RuntimeError("not permitted when stream is capturing"), torch.OutOfMemoryError()])
def test_work_that_cannot_be_recorded_is_tried_once_and_leaves_the_random_state(monkeypatch, error):
    tried, states, streams, ended = [], [], [], []

    def work(own):
        tried.append(work)
        raise error

    random = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=states.append)
    fakes = {
        "CUDAGraph": SimpleNamespace,
        "graph": lambda graph, pool, **_: nullcontext(),
        "graph_pool_handle": lambda: "its memory",
        "default_generators": (random,),
        "current_device": lambda: 0,
        "current_stream": lambda: SimpleNamespace(device="that of the work"),
        "set_stream": lambda stream: streams.append(stream.device),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        monkeypatch.setattr(torch._C, name, lambda *given: ended.append(given), raising=False)
    monkeypatch.setattr(graphs, "_aside", lambda device: None)
    recorded = Graphs()
    assert [recorded._graph("key", work, {}) for _ in range(4)] == [None] * 4
    assert tried == [work] and states == ["before"] and streams == ["that of the work"]
    assert ended == [(0, "its memory")] * 2


def test_the_graphs_that_were_not_used_for_longest_are_given_up(monkeypatch):
    def record(self, work, given):
        self.recorded = True

    monkeypatch.setattr(graphs._Graph, "record", record)
    recorded = Graphs()
    for key in range(10):
        assert recorded._graph(key, max, {}) is None and recorded._graph(key, max, {}).recorded
        assert key < 1 or recorded._graph(1, max, {}).recorded  # in use
    assert len(recorded._known) == graphs.LIMIT == 8
    assert [recorded._graph(key, max, {}) for key in (0, 2)] == [None, None]  # as if they were new


@pytest.mark.parametrize("enabled, able", [(True, True), (True, False), (False, True)])
def test_work_is_timed_as_it_will_run(monkeypatch, enabled, able):
    done, states, streams, times = [], [], [], [9, 8, 7, 11, 10]
    before = SimpleNamespace(device="that of the work")

    class Recording:
        def __init__(self, graph, pool, stream, capture_error_mode):
            assert stream == ("aside", before.device)
            done.append("record")

        def __enter__(self):
            pass

        def __exit__(self, *error):
            if not able:
                raise RuntimeError("not permitted when stream is capturing")

    def event(enable_timing):
        return SimpleNamespace(
            record=lambda: done.append("|"), synchronize=lambda: None, elapsed_time=lambda end: times.pop()
        )

    random = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=states.append)
    fakes = {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: done.append("replay")),
        "graph": Recording,
        "graph_pool_handle": lambda: (0, 1),
        "Event": event,
        "default_generators": (random,),
        "current_device": lambda: 0,
        "current_stream": lambda: before,
        "set_stream": streams.append,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "_aside", lambda device: ("aside", device))
    monkeypatch.setattr(graphs, "enabled", enabled)
    assert graphs.milliseconds(lambda: done.append("work")) == 7
    run = "replay" if enabled and able else "work"
    assert done == ["work", "work", *(["record", "work"] if enabled else []), run, *["|", run, "|"] * 5]
    assert states == (["before"] if enabled and not able else [])
    assert streams == [before] * enabled  # also after a recording that failed


def test_a_recorded_cohort_knows_its_clients_and_samples_and_nothing_else():
    cohort = _Sized(3, torch.tensor([5, 6, 7]), Pending(torch.device("cpu")))
    assert len(cohort.ids) == 3 and cohort.sizes.tolist() == [5, 6, 7]
    for name in ("seed", "seen", "weights", "uniform", "integers", "rows", "shares"):
        with pytest.raises(Unknown, match=name):
            getattr(cohort, name)
    for asked in (lambda: cohort.ids.tolist(), lambda: cohort.ids[0], lambda: list(cohort.ids)):
        with pytest.raises(Unknown, match="clients' numbers"):
            asked()


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
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    second = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(7)
    for expected in (first, second):
        assert torch.equal(torch.rand(4, device="cuda"), expected)
    for value in (None, [2.0, 2.0]):
        found = recorded("fine", lambda own: {"y": own["x"] * 2}, {"x": torch.ones(2).cuda()})
        assert (found and found["y"].tolist()) == value


@pytest.mark.gpu
def test_memory_is_given_back_after_work_that_cannot_be_recorded():
    recorded = Graphs()
    for _ in range(2):
        recorded("waits", lambda own: {"y": own["x"] * own["x"].sum().item()}, {"x": torch.ones(2).cuda()})
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.empty(1 << 28, device="cuda")  # 1 GiB
    assert torch.cuda.memory_reserved() >= before + (1 << 30)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before + (1 << 28)


OPTIONS = [
    *((name, {}) for name in REGISTRY),
    ("pfed1bs-delta", {"keep": "best", "trial": 2, "again": 1, "margin": 0}),
    ("pfed1bs-delta", {"keep": "mean"}),
    ("pfed1bs-delta", {"keep": "ft", "scales": "layer", "feedback": True}),
    ("pfed1bs-delta", {"momentum": 0.9, "snapshots": "coded"}),
    ("pfed1bs", {"start": "own", "train": "all", "code": "entropy"}),
    ("pfed1bs", {"projection": "gaussian", "ratio": 0.5}),
    ("obcsaa", {"decode": "each"}),
]


@pytest.mark.gpu
@pytest.mark.parametrize("name, options", OPTIONS)
def test_rounds_have_the_same_bytes_with_and_without_graphs(monkeypatch, name, options):
    def rounds():
        task = Task(model())
        return list(
            simulate(make(name, task, **options), federation(), rounds=6, steps=3, batch=8, sampled=3, device="cuda")
        )

    recorded = rounds()
    monkeypatch.setattr(graphs, "enabled", False)
    for ours, plain in zip(recorded, rounds(), strict=True):
        assert ours.uplinks == plain.uplinks and ours.traffic == plain.traffic
        for key, value in plain.progress.clients.items():
            assert torch.equal(ours.progress.clients[key], value), key
        for key, value in plain.log.items():
            assert torch.equal(ours.log[key], value), key


@pytest.mark.gpu
def test_after_a_round_from_the_same_state_sketch_bits_agree_away_from_zero():
    task = Task(model())
    method, last = make("pfed1bs", task, lam=0.1, ratio=0.5), {}
    start = list(simulate(method, federation(), rounds=2, steps=3, batch=8, device="cpu"))[-1].progress
    for device in ("cpu", "cuda"):
        [last[device]] = simulate(method, federation(), rounds=3, steps=3, batch=8, device=device, resume=start)
    weights = {device: done.progress.clients["w"].cpu() for device, done in last.items()}
    assert torch.allclose(weights["cpu"], weights["cuda"], atol=1e-5)
    heights = method.sketch.forward(weights["cpu"])
    bits = [
        torch.stack([decode(method.up, data, kind="up", round=2)["sketch"] for data in done.uplinks])
        for done in last.values()
    ]
    away = heights.abs() >= 1e-5
    assert away.float().mean() > 0.99 and torch.equal(bits[0][away], bits[1][away])


@pytest.mark.gpu
def test_convolutions_on_several_streams_and_in_our_kernels_agree_with_stacked_ones(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's default: 3.7 % after eight layers
    task = Task(build("vgg8", (3, 32, 32), 10))
    w, buffers = task.init(0).repeat(5, 1).cuda(), {name: value.cuda() for name, value in task.buffers(5).items()}
    x = torch.randn(5, 8, 3, 32, 32, generator=stream(0, "x")).cuda()
    y = torch.randint(10, (5, 8), generator=stream(0, "y")).cuda()
    ways = task._network._ways
    found = {}
    for way in ("stacked", "lanes", "fanned", "kernels"):
        ways._fastest[x.shape] = way
        for _ in range(3):  # as it is, recorded, replayed
            *gradients, after = task.gradient(w, x, y, buffers)
            found[way] = [*gradients, task.logits(w, x, after), after]
        task._graphs = Graphs()
    for way in ("lanes", "fanned", "kernels"):
        for ours, theirs in zip(found[way][:3], found["stacked"][:3], strict=True):
            assert (ours - theirs).norm() < 1e-3 * theirs.norm()
        for name, value in found[way][3].items():
            assert torch.allclose(value, found["stacked"][3][name], rtol=1e-2, atol=1e-4), name


@pytest.mark.gpu
def test_a_network_with_convolutions_measures_its_ways_once():
    task = Task(build("vgg8", (3, 32, 32), 10))
    w, buffers = task.init(0).repeat(2, 1).cuda(), {name: value.cuda() for name, value in task.buffers(2).items()}
    before = w.clone()
    task.gradient(w, torch.randn(2, 4, 3, 32, 32).cuda(), torch.zeros(2, 4, dtype=torch.int64).cuda(), buffers)
    [fastest] = task._network._ways._fastest.values()
    assert fastest in ("stacked", "lanes", "fanned", "kernels") and torch.equal(w, before)
    assert not torch.backends.cudnn.benchmark
