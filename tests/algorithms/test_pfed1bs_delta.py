"""pFed1BS-Delta: what the two one-bit stages keep of every client, and replicas that never drift."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from pfed1bs.algorithms.base.onebit import Code, layers, unbiased
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.core.sketch import Rotation, srht
from pfed1bs.core.votes import pack, sign, unpack
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.task import Task

N, M = 1024, 102


class Once:
    """One step on one sample a client: at weights 0 the update is (x, -x) for inputs 2 x and label 0."""

    steps = 1

    def __init__(self, updates):
        self.inputs = 2 * updates[:, None, : N // 2]

    def __call__(self, name="train", steps=None):
        yield self.inputs, torch.zeros(len(self.inputs), 1, dtype=torch.int64)


def antisymmetric(count, seed):
    """Orthonormal updates (count, N) of the form (x, -x)."""
    x = torch.linalg.qr(torch.randn(N // 2, count, generator=torch.Generator().manual_seed(seed)))[0].T
    return torch.cat([x, -x], 1) / 2**0.5


METHOD = PFed1BSDelta(
    Task(nn.Sequential(nn.Linear(N // 2, 2, bias=False))), lr=1.0, mu=0.0, ratio=0.1, keep="ft", step=1.0
)


@cache
def begun(clients, **options):
    """The method, its server and its clients, with weights 0."""
    method = replace(METHOD, **options)
    return method, *({**state, "theta": 0 * state["theta"]} for state in method.init(clients))


def decoded(updates: torch.Tensor, sizes: list[int], round: int, **options) -> torch.Tensor:
    """What everybody adds to the shared model in one round of the method from updates (S, N)."""
    method, server, clients = begun(len(updates), **options)
    ids = torch.arange(len(updates))
    cohort = Cohort(0, round, ids, torch.tensor(sizes), ids)
    clients, said = method.local(clients, {}, cohort, Once(updates))
    torch.testing.assert_close(clients["w"], updates)
    messages = [{"signs": pack(signs), "scale": scale} for signs, scale in zip(*said.values(), strict=True)]
    server = method.aggregate(server, messages, cohort)
    heard = {"signs": unpack(server["signs"], method.m), "scale": server["scale"]}
    moved = method.absorb(clients, heard, round + 1)["theta"]
    assert torch.equal(moved, server["theta"].expand_as(moved))
    return server["theta"]


def influences(sizes: list[int], norms: list[float], rounds: int, **options) -> torch.Tensor:
    """beta_k / p_k: how much of client k's update the shared model receives, averaged over projections."""
    updates = antisymmetric(len(sizes), 1) * torch.tensor(norms)[:, None]
    total = sum(decoded(updates, sizes, round, **options) @ updates.T for round in range(rounds)) / rounds
    weights = torch.tensor(sizes) / sum(sizes)
    return total / (weights * updates.square().sum(1))


@pytest.mark.parametrize(
    ("sizes", "norms"),
    [
        ([50, 50], [1.0, 0.7]),
        ([50, 30, 20], [1.0, 1.0, 1.0]),
        ([30, 25, 20, 15, 10], [1.0, 0.9, 1.2, 1.0, 0.8]),
    ],
)
def test_with_the_second_rotation_every_client_keeps_its_share(sizes, norms):
    beta = influences(sizes, norms, rounds=1000)
    # The weakest client's own noise after 1000 rounds is about 4 %; the bar is 11 %.
    assert (beta - 1).abs().max() < 0.11, beta


def test_without_it_the_smaller_of_two_clients_is_silenced():
    beta = influences([50, 50], [1.0, 0.7], rounds=500, rotate=False)
    assert beta[0] > 1.3 and beta[1].abs() < 0.2


def test_the_answer_to_one_client_is_an_unbiased_estimate_of_its_update():
    x = antisymmetric(1, 2)
    mean = sum(decoded(x, [7], round, rotate=False) for round in range(1000)) / 1000
    # Each estimate has relative variance (pi/2) N/M - 1 = 14.8: the mean of 1000 errs by sqrt(14.8 / 1000) = 12 %.
    assert (mean - x).norm() < 0.14
    assert abs(float(mean @ x[0]) - 1) < 0.03


def test_of_two_spikes_one_flip_and_transform_bring_back_the_larger_alone():
    """Every sketched coordinate is +-1 +-0.7, so the smaller spike decides no sign (docs/delta.md, the condition)."""
    x = torch.zeros(N)
    x[0], x[1] = 1.0, 0.7
    codes = [METHOD.code(round) for round in range(500)]
    a = [code.sketch(x) for code in codes]
    mean = sum(code.lift(code.scaled(sign(y), code.scale(y))) for code, y in zip(codes, a, strict=True)) / 500
    assert mean[:2].tolist() == pytest.approx([1.49, 0.0], abs=0.1)


def test_noise_of_both_stages_is_as_derived():
    """E|decoded|^2 = (pi/2)^2 (n/m) sum p_k^2 |x_k|^2 for orthogonal updates of many clients (docs/delta.md)."""
    clients = 16
    updates = antisymmetric(clients, 4)
    sizes = [float(decoded(updates, [3] * clients, round).square().sum()) for round in range(300)]
    assert sum(sizes) / len(sizes) == pytest.approx((math.pi / 2) ** 2 * N / M / clients, rel=0.1)


def test_rotation_is_orthogonal_for_any_length():
    for m in (1, 2, 7, 102):
        turn = Rotation(m, 5, 1)
        dense = turn.forward(torch.eye(m))
        assert torch.allclose(dense @ dense.T, torch.eye(m), atol=1e-6)
        assert torch.allclose(turn.backward(turn.forward(torch.arange(m) + 0.0)), torch.arange(m) + 0.0, atol=1e-5)


@pytest.mark.parametrize("sizes", [(8,), (5, 3)])
def test_a_mean_needs_a_message_for_every_share(sizes):
    said = Code(sizes, 1.0, 0, 0).signed(torch.ones(8))
    message = {"signs": pack(said["signs"]), "scale": said["scale"]}
    with pytest.raises(ValueError, match="needs a share|is shorter"):
        Code(sizes, 1.0, 0, 0).mean([message], torch.tensor([0.25, 0.75]))


def test_an_update_of_zero_has_scale_zero():
    assert unbiased(torch.zeros(3)).item() == 0.0
    assert unbiased(torch.tensor([3.0, -4.0])).item() == pytest.approx(25 / 7)


def test_every_layer_has_a_scale_of_its_own():
    task = Task(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert layers(task) == (36, 10)
    code = Code(layers(task), 0.5, seed=0, round=3)
    x = torch.cat([1000 * torch.ones(36), torch.ones(10)])
    a = code.sketch(x)
    assert a.shape == (18 + 5,) and code.bits == (18, 5)
    alone = srht(10, 5, code.seeds[1], 3).forward(torch.ones(10))
    assert torch.equal(a[18:], alone)  # the large layer leaves no trace in the sketch of the small one
    assert torch.equal(code.scale(a), torch.stack([unbiased(a[:18]), unbiased(alone)]))
    assert torch.allclose(code.scaled(sign(a), code.scale(a))[18:], unbiased(alone) * sign(alone))
    assert torch.allclose(code.turn_back(code.turn(a)), a, atol=1e-3)
    method = PFed1BSDelta(task, ratio=0.5, scales="layer")
    assert method.up["signs"].size == 3 and method.up["scale"].size == 8


def test_feedback_loses_nothing():
    """Sum of the clients' changes = what the shared model got + what both sides still remember."""
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=0.5, keep="ft", feedback=True)
    start, changes = method.task.init(0), torch.zeros(18)
    for done in simulate(method, toy(), rounds=6, steps=2, batch=4):
        clients, server = done.progress.clients, done.progress.server
        changes += (clients["w"] - clients["theta"]).mean(0)
    remembered = clients["error"].mean(0) + server["error"]
    assert remembered.norm() > 0.1 * changes.norm()
    assert torch.allclose(server["theta"] - start + remembered, changes, atol=1e-5)


def test_the_nearest_scale_never_lets_an_error_grow():
    x = torch.randn(20, N, generator=torch.Generator().manual_seed(8))
    for round in range(20):
        code = Code((N,), M / N, 0, round)
        a = code.sketch(x[round])
        error = x[round] - code.lift(code.scaled(sign(a), code.scale(a, shrink=True)))
        assert error.norm() < x[round].norm()


def toy(clients: int = 5) -> Federation:
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randn(clients * 16, 8, generator=generator)
    labels = (inputs[:, 0] > 0).long()
    rows = torch.arange(clients * 16).view(clients, 16)
    return Federation(inputs, labels, tuple(rows[:, :12]), tuple(rows[:, 12:]), torch.arange(clients * 16), 2)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": "ft"},
        {"keep": "mean"},
        {"keep": "best", "trial": 3},
        {"keep": "norms"},
        {"scales": "layer"},
        {"feedback": True},
    ],
)
def test_replicas_of_returning_clients_equal_the_shared_model(options):
    method = PFed1BSDelta(Task(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))), ratio=0.5, **options)
    before = None
    for done in simulate(method, toy(), rounds=8, sampled=2, steps=2, batch=4):
        if before is not None:  # theta at the clients of a round is what the server had before it
            assert torch.equal(done.progress.clients["theta"][done.cohort.ids], before.expand(2, -1))
        before = done.progress.server["theta"]
    assert done.traffic.catch_up >= 0


def test_the_step_is_one_shorter_with_few_bits_and_where_noise_would_be_five_times_an_update():
    def step(clients: int, ratio: float, **options: float) -> float:
        ids = torch.arange(clients)
        cohort = Cohort(0, 3, ids, torch.full((clients,), 50), torch.zeros_like(ids))
        return PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=ratio, **options).size(cohort)

    assert step(20, 0.1) == 1.0  # noise of (pi / 2) sqrt(1 / (20 * 0.1)) = 1.1 updates
    assert step(20, 0.041) == 1.0 and step(20, 0.03) == pytest.approx(0.75**0.5)  # 0.1 is advised
    assert step(20, 0.01) == step(20, 0.003) == 0.5
    assert step(100, 0.01) == step(1000, 0.003) == 1.0  # noise of less than 1.75 updates
    assert step(60, 0.01) == pytest.approx(1.75 / (math.pi / 2 * (100 / 60) ** 0.5))
    assert step(20, 0.001) == pytest.approx(5 / (math.pi / 2 * 50**0.5))  # less than a half
    assert step(20, 0.01, share=0.01) == 1.0  # which is what is advised where clients take part rarely
    assert step(5, 0.021, share=0.25) == 1.0 and step(5, 0.01, share=0.25) == pytest.approx(0.5**0.5)
    assert step(3, 0.01, share=0.01) == pytest.approx(5 / (math.pi / 2 * (100 / 3) ** 0.5))
    assert step(5, 0.01, step=0.6, decay=0.1) == pytest.approx(0.6 / 1.3)
    assert step(5, 0.01, feedback=True) == 1.0  # what a step loses comes back


def test_catch_up_is_the_missed_messages_or_the_model_whichever_is_shorter():
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=0.5)
    rounds = list(simulate(method, toy(), rounds=30, sampled=1, steps=1, batch=4))
    empty, one, whole = 20, 20 + 2 + 4, 20 + 4 * 18  # round 0; header, nine signs, scale; header, weights
    missed = {one, 2 * one, 3 * one, empty + one, empty + 2 * one}
    assert {done.traffic.down for done in rounds[1:]} <= missed | {whole}
    assert max(done.traffic.down for done in rounds) == whole
