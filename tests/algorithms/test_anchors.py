"""Anchors: everybody rounds the shared model to the same bits, and a snapshot takes four bits a weight."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from messages import VECTORS
from pfed1bs.algorithms import make
from pfed1bs.algorithms.base import anchors
from pfed1bs.algorithms.base.anchors import Anchors, advised, layout, period
from pfed1bs.compressors.eden import CODEBOOKS
from pfed1bs.core.rng import bits, key, stream
from pfed1bs.core.votes import sign
from pfed1bs.data import federate, load
from pfed1bs.engine.exchange import agreeing, hear
from pfed1bs.engine.rounds import Schedule, begin, prepare, simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.checkpoint import load as load_progress
from pfed1bs.runs.checkpoint import save
from pfed1bs.wire.messages import HEADER, decode, encode, fixed_size
from promise import assert_same
from tiny import linear

DATA = federate(load("digits"), 12, "iid", cap=20)
TASK = Task(build("mlp", DATA.shape, DATA.num_classes))
SIZE = Schedule(rounds=24, sampled=1, steps=1, batch=4)
CODED = {"ratio": 0.25, "snapshots": "coded"}  # an anchor every three rounds


def coded():
    return make("pfed1bs-delta", TASK, **CODED)


def away(rounds=24, algorithm=None, **fields):
    """Rounds of one client out of twelve, who is away for most of them."""
    return list(simulate(algorithm or coded(), DATA, SIZE, rounds=rounds, **fields))


def by_hand(x, seed, round):
    """The code of x, one number after the other."""
    word = bits(key(key(seed, 5), 2, round), len(x))
    y = [float(v) * (1 if word[i // 8] >> i % 8 & 1 else -1) for i, v in enumerate(x)]
    levels, scales, start = [], [], 0
    for size in (1 << i for i in reversed(range(32)) if len(x) >> i & 1):
        block, h = y[start : start + size], 1
        while h < size:
            for i in range(size):
                if not i & h:
                    block[i], block[i + h] = block[i] + block[i + h], block[i] - block[i + h]
            h *= 2
        block = [v / sqrt(size) for v in block]
        half = list(CODEBOOKS[4])
        book = [-c for c in reversed(half)] + half
        root = sqrt(sum(v * v for v in block) / size)
        near = [min(range(16), key=lambda j, v=v: abs(book[j] * root - v)) for v in block]
        levels += near
        scales.append(sum(v * v for v in block) / sum(book[j] * v for j, v in zip(near, block, strict=True)))
        start += size
    return levels, scales


class Few(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 2)  # 14 = 8 + 4 + 2 weights

    def forward(self, x):
        return self.out(x)


FEW = Task(Few())


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-1000, 1000), min_size=14, max_size=14), st.integers(0, 2**64 - 1), st.integers(1, 50))
def test_a_code_is_the_one_computed_by_hand(x, seed, round):
    if any(not any(x[a:b]) for a, b in ((0, 8), (8, 12), (12, 14))):
        return
    levels, scales = by_hand(x, seed, round)
    code = Anchors(FEW, seed, 1).code(torch.tensor(x).float(), round)
    assert code["levels"].tolist() == levels
    assert (1e5 * code["scales"]).tolist() == pytest.approx(scales, rel=1e-3)


@pytest.mark.parametrize("vector", VECTORS["codes"])
def test_the_documented_code_is_the_one_of_the_document(vector):
    x, seed, round = vector["difference"], int(vector["seed"], 16), vector["round"]
    code = Anchors(FEW, seed, 1).code(torch.tensor(x).float(), round)
    assert code["levels"].tolist() == vector["levels"] == by_hand(x, seed, round)[0]
    assert code["scales"].tolist() == pytest.approx(vector["scales"], rel=1e-3)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=14, max_size=14), st.integers(1, 50))
def test_who_computes_a_code_and_who_is_sent_it_hold_the_same_bits(x, round):
    anchors = Anchors(FEW, 3, 1)
    code = anchors.code(torch.tensor(x), round)
    data = encode(layout(14), code, kind="snapshot", round=round)
    assert len(data) == fixed_size(layout(14)) == HEADER.size + 7 + 3 * 4
    sent = anchors.value(decode(layout(14), data, kind="snapshot", round=round), round)
    assert torch.equal(sent, anchors.value(code, round))
    theta = FEW.init(3) + torch.tensor(x)
    held = anchors.settled(torch.stack([theta, theta + 1, theta]), round)
    assert torch.equal(held[0], held[2])
    for row, own in zip(held, (theta, theta + 1), strict=False):
        assert torch.equal(row, anchors.settled(own[None], round)[0])
        assert torch.equal(row, anchors.kept({}, own, round)["theta"])


def test_a_coordinate_just_below_a_bound_has_the_level_below_it():
    """Of 65536 and 44920 the bound between levels 10 and 11 is 44920.1: a wrong digit in it would be seen."""
    x = torch.tensor([65536.0 + 44920, 65536 - 44920])  # what one butterfly makes of them, up to signs and order
    for round in range(1, 9):
        levels = Anchors(linear(), 0, 1).code(x, round)["levels"].tolist()
        assert sorted(max(level, 15 - level) for level in levels) == [10, 12]  # 15 - level is that of the negative


def test_the_scale_of_a_code_counts_in_the_units_of_the_document():
    """Steps 2 to 4 of docs/wire.md in whole numbers: with other units than 2^16 the last digits are others."""
    y = torch.tensor([1.0, 0.3, -0.7, 0.12])
    u = [round(v * 65536) for v in y.tolist()]
    half = [round(1e5 * c) for c in CODEBOOKS[4]]
    book = [-c for c in reversed(half)] + half
    energy = sum(v * v for v in u)
    size = sqrt(energy / 4) / 1e5
    near = [min(range(16), key=lambda j, v=v: abs(book[j] * size - v)) for v in u]
    levels, scale = anchors._coded(y)
    assert levels.tolist() == near
    assert scale == energy / sum(book[j] * v for j, v in zip(near, u, strict=True)) * 1.0 / 65536


def test_models_that_equal_the_first_are_coded_once(monkeypatch):
    coded, seen = anchors._coded, []
    monkeypatch.setattr(anchors, "_coded", lambda block: seen.append(block) or coded(block))
    theta = FEW.init(0) + torch.arange(14.0)
    Anchors(FEW, 0, 1).settled(torch.stack([theta, theta, theta + 1, theta]), 1)
    assert len(seen) == 2 * 3  # two models, three blocks


def test_a_code_has_a_tenth_of_error_and_the_right_length_along_what_it_stands_for():
    task = Task(build("mlp", (1, 28, 28), 10))
    anchors, x = Anchors(task, 0, 1), torch.randn(task.n, generator=torch.Generator().manual_seed(0)) ** 3
    for round in (1, 2):
        found = anchors.value(anchors.code(x, round), round) - task.init(0)
        assert float((found - x).norm() / x.norm()) == pytest.approx(0.0975, abs=0.003)
        assert float(found @ x / (x @ x)) == pytest.approx(1, abs=1e-3)


def test_errors_of_different_anchors_are_independent():
    x = torch.randn(TASK.n, generator=torch.Generator().manual_seed(1))
    anchors = Anchors(TASK, 0, 1)
    lost = [anchors.value(anchors.code(x, round), round) - TASK.init(0) - x for round in range(1, 9)]
    assert float(sum(lost).norm() / lost[0].norm()) == pytest.approx(sqrt(8), rel=0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_do_not_become_finite(bad):
    theta = FEW.init(0)
    theta[3] = bad
    assert not bool(torch.isfinite(Anchors(FEW, 0, 1).kept({}, theta, 1)["theta"]).all())


def test_first_weights_are_a_code_of_their_own():
    anchors = Anchors(FEW, 4, 10)
    assert torch.equal(anchors.value(anchors.first(), 0), FEW.init(4))
    assert torch.equal(anchors.kept({}, FEW.init(4), 10)["theta"], FEW.init(4))


def test_a_snapshot_of_the_mlp_has_half_a_byte_for_a_weight():
    assert fixed_size(layout(203_530)) == 20 + 101_765 + 4 * 8  # 203,530 is a sum of eight powers of two
    assert period(203_530, 2_569) == 9  # 101,817 / (4 * 2,569)


def test_bits_a_weight_and_snapshots_follow_from_the_share_of_clients_in_a_round():
    task = Task(build("mlp", (1, 28, 28), 10))
    rules = [
        (method.m, method.anchors.every if method.anchors else 0)
        for method in (make("pfed1bs-delta", task, share=share) for share in (0, 1, 0.25, 0.1, 0.01, 0.001))
    ]
    assert rules == [(20353, 0), (20353, 0), (10176, 0), (6436, 0), (2035, 91), (643, 242)]
    assert advised(0.25) == 0.05 and anchors.away(0.499, 2) and not anchors.away(0.5, 2)
    assert make("pfed1bs-delta", task, ratio=0.1, share=0.01).m == 20353
    assert make("pfed1bs-delta", task, share=0.001, snapshots="float32").anchors is None


def kinds(algorithm, now):
    news = prepare(algorithm, now, DATA.sizes, SIZE.seed, SIZE.sampled).news
    return [(item.kind, item.round) for item in news[0]]


def test_a_client_that_was_away_long_gets_the_code_of_the_last_anchor_and_the_broadcasts_after_it():
    algorithm, seen = coded(), []
    now, every = begin(algorithm, 12), algorithm.anchors.every
    for done in away(rounds=60, algorithm=algorithm):
        items = kinds(algorithm, now)
        if items[0][0] == "snapshot":
            seen.append(done.number % every)
            assert items == [("snapshot", done.number - done.number % every)] + [
                ("down", r) for r in range(done.number - done.number % every + 1, done.number + 1)
            ]
            assert done.cohort.seen.tolist()[0] < done.number - done.number % every
        now = done.progress
        assert "differing" not in done.log
    assert len(set(seen)) > 1  # at anchors and between them


def test_all_clients_hold_the_bits_of_the_server_and_the_model_is_rounded_at_anchors_only():
    algorithm = coded()
    every, before = algorithm.anchors.every, None
    assert every == 3
    for done in away(algorithm=algorithm):
        now, t = done.progress, done.number + 1
        rounded = algorithm.anchors.value({k: now.server[k] for k in ("levels", "scales")}, algorithm.anchor(t))
        assert torch.equal(now.server["theta"], rounded) == (t % every == 0)
        assert "differing" not in done.log
        assert before is None or not torch.equal(before, now.server["theta"])
        before = now.server["theta"]


def test_own_models_follow_the_step_at_an_anchor_and_not_the_rounding():
    algorithm = coded()
    _, clients = algorithm.init(2)
    v = sign(torch.randn(algorithm.m, generator=stream(0, "v")))
    said = {"signs": v, "scale": torch.full(algorithm.down["scale"].shape, 0.1)}
    for round, rounded in ((2, False), (3, True)):
        after, moved = algorithm.absorb(clients, said, round), clients["theta"] + algorithm.heard(said, round - 1)
        assert torch.equal(after["theta"], moved) != rounded
        assert torch.allclose(after["w"], moved, atol=1e-6)  # which began where theta did
    assert not torch.allclose(after["theta"], moved, atol=1e-4)


def test_save_and_resume_equals_uninterrupted_with_coded_snapshots(tmp_path):
    algorithm = coded()
    whole = away(algorithm=algorithm)
    for cut in (7, 9, 11):  # before, at and after an anchor
        save(tmp_path / "checkpoint.safetensors", whole[cut - 1].progress, "{}")
        rest = away(algorithm=algorithm, resume=load_progress(tmp_path / "checkpoint.safetensors", "{}"))
        assert [done.uplinks for done in rest] == [done.uplinks for done in whole[cut:]]
        assert [done.traffic for done in rest] == [done.traffic for done in whole[cut:]]
        assert_same(rest[-1].progress.server, whole[-1].progress.server)
        assert_same(rest[-1].progress.clients, whole[-1].progress.clients)


@pytest.mark.parametrize("at", [8, 9, 10])
def test_a_damaged_replica_recovers_with_a_coded_snapshot(at):
    algorithm, size = coded(), {"sampled": None, "steps": 1, "batch": 4}
    *_, done = simulate(algorithm, DATA, rounds=at, **size)
    now = done.progress
    now.clients["theta"][5] += 0.1
    bad, good = simulate(algorithm, DATA, rounds=at + 2, resume=now, **size)
    assert 5 not in bad.cohort.ids and float(bad.log["differing"]) == 1 and bad.progress.lost == {5}
    assert 5 in good.cohort.ids and "differing" not in good.log and not good.progress.lost
    assert good.traffic.catch_up == fixed_size(layout(TASK.n)) + (at + 1) % 3 * fixed_size(algorithm.down) - (
        fixed_size(algorithm.down) if (at + 1) % 3 else 0  # the broadcast of the round itself is no catch-up
    )
    theta = good.progress.clients["theta"]
    assert all(torch.equal(own, theta[0]) for own in theta)


def test_a_bit_that_differs_after_a_coded_snapshot_and_the_broadcasts_behind_it_is_found():
    algorithm = coded()
    *_, done = away(rounds=23)
    told = prepare(algorithm, replace(done.progress, seen=torch.full((12,), 2)), DATA.sizes, 0, None).news[:2]
    assert [(item.kind, item.round) for item in told[1]] == [("snapshot", 21), ("down", 22), ("down", 23)]
    after, _ = hear(algorithm, algorithm.init(2)[1], told)
    assert agreeing(algorithm, after, told).tolist() == [True, True]
    after["theta"] = after["theta"].clone()
    after["theta"].view(torch.int32)[1, 3] ^= 1
    assert agreeing(algorithm, after, told).tolist() == [True, False]


def test_the_bytes_of_a_returning_client_are_those_of_the_cheaper_way():
    algorithm, short = coded(), 0
    snapshot, message, every = fixed_size(layout(TASK.n)), fixed_size(algorithm.down), algorithm.anchors.every
    for done in away(rounds=60, algorithm=algorithm)[1:]:
        missed = done.number - int(done.cohort.seen[0])
        first = HEADER.size - message if int(done.cohort.seen[0]) < 0 else 0  # the broadcast of round 0 is empty
        ways = missed * message + first, snapshot + done.number % every * message
        assert done.traffic.down == min(ways)
        short += ways[1] < ways[0]
    assert short > 3
