"""Descent, potential and theorem on six logistic clients in float64, played by the real method with full batches.

Two classes, nine features of norm at most one and a bias: n = 20 weights, n' = 32, m = 8. Gradients along the way are
recomputed with a dense Phi and the softmax written out, and must end where the method ends.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import log

import pytest
import torch
from torch import Tensor, nn

from pfed1bs.algorithms.local import Local
from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import smooth_l1
from pfed1bs.core.votes import pack, sign
from pfed1bs.data import Federation
from pfed1bs.engine.rounds import begin, simulate
from pfed1bs.nn.task import Task
from pfed1bs.runs.diagnostics import objectives, potential
from tiny import SAMPLES, aggregated, chain, cohort, given, linear, slope

SIZES, EQUAL = (4, 8, 2, 8, 4, 2), (4, 4, 4, 4, 4, 4)
BATCH, STEPS, ROUNDS, CLIENTS, M, PADDED = 8, 5, 12, 6, 8, 32
LAM, MU, GAMMA = 0.05, 0.02, 20.0


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small only wait for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class FullBatch(Federation):
    """Every batch is the client's whole training part, each sample repeated until there are eight: no noise."""

    def batches(self, ids, round, seed, steps, batch):
        rows = torch.stack([self.train[k].repeat(BATCH // len(self.train[k])) for k in ids.tolist()])
        drawn = super().batches(ids, round, seed, steps, batch)
        return replace(drawn, rows=lambda name, count: rows.expand(count, *rows.shape))


@dataclass(frozen=True)
class Turn:
    """One round: potential, models and consensus before and after it."""

    psi: float
    w: Tensor
    v: Tensor
    psi_after: float
    w_after: Tensor
    v_after: Tensor
    squares: Tensor  # (K,) mean over the steps of |grad F~_k|^2, 0 for clients that did not train
    change: float  # of the potential by the new consensus alone, Gamma_1
    sampled: Tensor


def federation(sizes=SIZES, dtype=torch.float64, kind=FullBatch):
    x = torch.randn(sum(sizes), 9, generator=stream(0, "x"), dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    y = (x @ torch.randn(9, generator=stream(0, "truth"), dtype=torch.float64) > 0).long()
    parts = torch.arange(sum(sizes)).split(sizes)
    return kind(x.to(dtype), y, parts, parts, torch.arange(sum(sizes)), num_classes=2)


def smoothness(data):
    """L_F of Lemma 3; a softmax over two classes has curvature 1/2 along features (x, 1)."""
    return (data.inputs.square().sum(1).max().item() + 1) / 2 + LAM * GAMMA * PADDED / M + MU


def logistic(factor=1.0, **options):
    options = {"start": "own", "mu": MU, "gamma": GAMMA, "lam": LAM, "ratio": 0.4, **options}
    return PFed1BS(Task(nn.Sequential(nn.Linear(9, 2)).double()), lr=factor / smoothness(federation()), **options)


def gradients(algorithm, data, phi, w, v):
    """grad F~_k(w_k; v) of every client with dense matrices (Lemma 2)."""
    rows = data.batches(torch.arange(CLIENTS), 0, 0, 1, BATCH).rows("train", 1)[0]
    x, y = data.inputs[rows], data.labels[rows]
    logits = x @ w[:, :18].view(-1, 2, 9).mT + w[:, None, 18:]
    error = (logits.softmax(-1) - nn.functional.one_hot(y, 2)) / BATCH
    task = torch.cat([(error.mT @ x).flatten(1), error.sum(1)], 1)
    mask = 1.0 if algorithm.v0 == "zero_literal" else v.abs()
    return task + LAM * (mask * torch.tanh(GAMMA * w @ phi.T) - v) @ phi + MU * w


@cache
def play(factor=1.0, v0="zero_masked", train="all", sampled=CLIENTS, sizes=SIZES):
    """The method, its data and the rounds of a run, with what the theory says about each."""
    data, algorithm = federation(sizes), logistic(factor, v0=v0, train=train)
    before, turns = begin(algorithm, CLIENTS), []
    phi, shares = algorithm.sketch.matrix(), data.sizes.double() / data.sizes.sum()
    psi = potential(algorithm, data, before.server, before.clients, round=0)
    for round in simulate(algorithm, data, rounds=ROUNDS, sampled=sampled, steps=STEPS, batch=BATCH, device="cpu"):
        now, ids = round.progress, round.cohort.ids
        v, v_after = (algorithm.consensus(at.server, at.round).double() for at in (before, now))
        active = torch.ones(CLIENTS) if algorithm.train == "all" else torch.zeros(CLIENTS).index_fill(0, ids, 1)
        w, squares = before.clients["w"], torch.zeros(CLIENTS, dtype=torch.float64)
        for _ in range(STEPS):
            grad = active[:, None] * gradients(algorithm, data, phi, w, v)
            squares += grad.square().sum(1) / STEPS
            w = w - algorithm.lr * grad
        assert torch.allclose(now.clients["w"], w, rtol=0, atol=1e-13)
        q = w @ phi.T
        mask = 0 if algorithm.v0 == "zero_literal" else v_after.abs() - v.abs()
        change = LAM * float(shares @ (mask * smooth_l1(q, GAMMA) - (v_after - v) * q).sum(1))
        psi_after = potential(algorithm, data, now.server, now.clients, round=now.round)
        turns.append(Turn(psi, before.clients["w"], v, psi_after, w, v_after, squares, change, ids))
        before, psi = now, psi_after
    return algorithm, data, turns


def against(algorithm, data, w, v):
    """F~_k(w_k; v); v = 0 is what clients see in round 0."""
    server, round = ({"consensus": pack(v)}, 1) if v.any() else ({}, 0)
    return objectives(algorithm, data, server, {"w": w}, round=round)


def step_constant(algorithm, data):
    """c_1 = eta R (1 - eta L_F / 2)."""
    return algorithm.lr * STEPS * (1 - algorithm.lr * smoothness(data) / 2)


def test_gradient_is_smooth_with_the_constant_of_lemma_3():
    data, algorithm = federation(), logistic()
    x, y = data.inputs[:8].expand(3000, 8, 9), data.labels[:8].expand(3000, 8)
    v = sign(torch.randn(M, generator=stream(0, "v"), dtype=torch.float64))

    def gradient(w):
        return algorithm.task.gradient(w, x, y, {})[0] + LAM * algorithm.sketch.pull(w, v, GAMMA) + MU * w

    draws = torch.randn(2, 3000, 20, generator=stream(0, "pairs"), dtype=torch.float64)
    scales = 10 ** -torch.linspace(0, 6, 3000, dtype=torch.float64)[:, None]
    a = draws[0] * scales.flip(0)
    b = a + draws[1] * scales
    secants = (gradient(a) - gradient(b)).norm(dim=1) / (a - b).norm(dim=1)
    assert secants.max() <= smoothness(data)
    assert secants.max() > 0.5 * smoothness(data)  # the curvature of the penalty was met


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.9])
@pytest.mark.parametrize("v0", ["zero_masked", "zero_literal", "sketch"])
@pytest.mark.parametrize("train, sampled", [("all", 6), ("all", 3), ("sampled", 3)])
def test_clients_descend_as_lemma_7_says_and_the_potential_falls_up_to_the_change_of_consensus(
    factor, v0, train, sampled
):
    algorithm, data, turns = play(factor, v0, train, sampled)
    shares = data.sizes.double() / data.sizes.sum()
    for turn in turns:
        start, end = (against(algorithm, data, w, turn.v) for w in (turn.w, turn.w_after))
        assert (end - start + step_constant(algorithm, data) * turn.squares).max() <= 1e-12
        assert turn.psi_after == pytest.approx(float(shares @ end) + turn.change, abs=1e-12)
        bound = turn.psi - step_constant(algorithm, data) * float(shares @ turn.squares) + turn.change
        assert turn.psi_after <= bound + 1e-12
        assert turn.psi_after >= -LAM * M * log(2) / GAMMA  # F*: losses and norms are not negative
    assert turns[-1].psi_after < turns[0].psi - 0.1


def test_a_vote_can_raise_the_potential_even_when_everybody_takes_part():
    *_, turns = play(0.5)
    assert max(turn.change for turn in turns[1:]) > 0.01


@pytest.mark.parametrize("sizes", [SIZES, EQUAL])
@pytest.mark.parametrize("v0", ["zero_masked", "zero_literal", "sketch"])
def test_new_consensus_changes_the_potential_by_at_most_twice_the_l1_norm(sizes, v0):
    algorithm, data, turns = play(1.0, v0, "sampled", 4, sizes)
    phi, shares, tied = algorithm.sketch.matrix(), data.sizes.double() / data.sizes.sum(), 0
    for t, turn in enumerate(turns):
        q = turn.w_after @ phi.T
        limit = 2 * LAM * float((shares @ q).abs().sum())
        if v0 == "zero_masked" and t == 0:  # the mask falls off, client by client
            limit = 2 * LAM * float(shares @ q.abs().sum(1))
        assert turn.change <= limit + 1e-15
        assert limit <= 2 * LAM * PADDED**0.5 * float(turn.w_after.norm(dim=1).max())
        votes = data.sizes[turn.sampled].double() @ sign(q[turn.sampled])
        assert votes @ turn.v_after == votes.abs().sum() >= votes @ turn.v
        if t:
            assert torch.equal(turn.v_after[votes == 0], turn.v[votes == 0])
            tied += int((votes == 0).sum())
    assert tied > 0 or sizes is SIZES


@pytest.mark.parametrize("v0", ["zero_masked", "zero_literal", "sketch"])
@pytest.mark.parametrize("sampled", [3, 6])
def test_corrected_theorem_holds_and_is_below_the_printed_one(v0, sampled, record_property):
    algorithm, data, turns = play(1.0, v0, "all", sampled)
    shares, lr, c1 = data.sizes.double() / data.sizes.sum(), algorithm.lr, step_constant(algorithm, data)
    size, pull = (2 * data.inputs.square().sum(1).max().item() + 2) ** 0.5, 2 * LAM * PADDED**0.5  # G, 2 lam sqrt(n')
    first = float(turns[0].w.norm(dim=1).max())
    alpha = 1 - lr * MU * (1 / 2 - 3 * lr * MU)
    c = (2 * lr / MU + 3 * lr**2) * size**2 + (lr / MU + 3 * lr**2) * pull**2
    norms = {
        "seen": max(float(w.norm(dim=1).max()) for turn in turns for w in (turn.w, turn.w_after)),
        "corrected": max(first, (size + pull) / MU),
        "summed once": max(first**2, c / (1 - alpha)) ** 0.5,
        "printed": (first**2 + c / ((1 - alpha) * (1 - alpha**STEPS))) ** 0.5,
    }
    assert list(norms.values()) == sorted(norms.values())
    left = sum(float(shares @ turn.squares) for turn in turns) / ROUNDS
    start = (turns[0].psi + LAM * M * log(2) / GAMMA) / (c1 * ROUNDS)
    spread = CLIENTS * (CLIENTS - sampled) / (sampled * (CLIENTS - 1)) * float(shares.square().sum())
    for name, norm in norms.items():
        corrected = start + pull * norm / c1
        printed = start + 2 * LAM * (PADDED**0.5 * norm + M) / c1 + LAM * 2 * M * spread**0.5 / c1
        record_property(f"corrected bound over mean squared gradient, W {name}", corrected / left)
        assert left <= corrected <= printed


def weights_after(algorithm, sampled=None, clients=6, rounds=4):
    data = federation(EQUAL[:clients], torch.float32, Federation)
    return list(simulate(algorithm, data, rounds=rounds, sampled=sampled, steps=3, batch=2, device="cpu"))


@pytest.mark.parametrize("v0", ["zero_masked", "zero_literal", "sketch"])
@pytest.mark.parametrize("train, momentum", [("sampled", 0.0), ("all", 0.5)])
def test_without_pull_the_models_are_those_of_local_training_bit_for_bit(v0, train, momentum):
    task, shared = Task(nn.Linear(9, 2)), {"mu": 0.01, "momentum": momentum, "train": train}
    ours = weights_after(PFed1BS(task, lam=0.0, v0=v0, **shared), sampled=4)
    alone = weights_after(Local(task, **shared), sampled=4)
    pulled = weights_after(PFed1BS(task, lam=0.1, v0=v0, **shared), sampled=4)
    for one, other in zip(ours, alone, strict=True):
        assert torch.equal(one.progress.clients["w"], other.progress.clients["w"])
    assert not torch.equal(pulled[-1].progress.clients["w"], alone[-1].progress.clients["w"])


def test_training_all_is_training_the_sampled_ones_when_all_are_sampled():
    task = Task(nn.Linear(9, 2))
    sampled, everyone = (weights_after(PFed1BS(task, lam=0.1, train=train)) for train in ("sampled", "all"))
    for one, other in zip(sampled, everyone, strict=True):
        assert torch.equal(one.progress.clients["w"], other.progress.clients["w"])
        assert torch.equal(one.progress.server["consensus"], other.progress.server["consensus"])
        assert (one.uplinks, one.traffic) == (other.uplinks, other.traffic)


def test_one_client_alone_is_its_own_consensus():
    algorithm = PFed1BS(Task(nn.Linear(9, 2)), lam=0.1, ratio=0.4)
    for round in weights_after(algorithm, clients=1):
        v, w = algorithm.consensus(round.progress.server, round.number + 1), round.progress.clients["w"][0]
        assert torch.equal(v, sign(algorithm.sketch.forward(w)))
        assert round.log["ties"] == 0


def test_the_strength_of_the_pull_is_that_of_the_last_step_against_its_gradient():
    algorithm = PFed1BS(linear(), lam=0.5, ratio=1.0, lr=0.1, mu=0.0)
    w, v = torch.tensor([[0.3, -0.2], [0.1, 0.4]]), torch.tensor([1.0, 1.0])
    state, _ = algorithm.local({"w": w}, {"consensus": v}, cohort(1), given())
    for k, told in enumerate(state["log/pull"].tolist()):
        now = w[k]
        for pairs in SAMPLES["train"]:
            grad, pull = torch.tensor(slope(now.tolist(), pairs[k])), algorithm.sketch.pull(now, v, algorithm.gamma)
            now = now - 0.1 * (grad + 0.5 * pull)
        assert told == pytest.approx(float(0.5 * pull.norm() / grad.norm()), rel=1e-4)


def test_a_vote_tells_how_many_bits_it_flipped_and_how_many_are_those_of_the_first_weights():
    old, first, heavy, light = torch.tensor([[1.0, 1, 1], [-1, -1, 1], [1, -1, 1], [-1, 1, -1]])
    server = {"consensus": pack(old), "first": pack(first)}
    after = aggregated(PFed1BS(chain(), ratio=1.0), server, {"sketch": pack(torch.stack([light, heavy]))})
    assert torch.equal(after["consensus"], pack(heavy))
    assert [float(after[f"log/{name}"]) for name in ("flips", "initial", "ties")] == pytest.approx([1 / 3, 2 / 3, 0])
