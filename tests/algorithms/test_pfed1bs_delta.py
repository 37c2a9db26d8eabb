"""pFed1BS-Delta: what the two one-bit stages keep of every client, and replicas that never drift."""

import math

import pytest
import torch
from torch import nn

from pfed1bs.algorithms.base.onebit import Code, layers, unbiased
from pfed1bs.algorithms.base.trial import ALONE, FT, PROX, Trial, verdict
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.core.sketch import Rotation, srht
from pfed1bs.core.votes import sign
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.task import Task

N, M = 1024, 102


def decoded(updates: torch.Tensor, shares: torch.Tensor, round: int, rotate: bool = True) -> torch.Tensor:
    """What everybody adds to the shared model in one round, step size 1, from updates (S, N)."""
    phi = srht(N, M, 0, round)
    a = phi.forward(updates)
    q = (shares[:, None] * unbiased(a)[:, None] * sign(a)).sum(0)
    turn = Rotation(M, 0, round)
    r = turn.forward(q) if rotate else q
    v = unbiased(r) * sign(r)
    return phi.adjoint(turn.backward(v) if rotate else v)


def influences(shares: list[float], norms: list[float], rotate: bool, rounds: int = 4000) -> torch.Tensor:
    """beta_k / p_k: how much of client k's update the shared model receives, averaged over projections."""
    updates = torch.zeros(len(shares), N)
    basis = torch.linalg.qr(torch.randn(N, len(shares), generator=torch.Generator().manual_seed(1)))[0].T
    updates = basis * torch.tensor(norms)[:, None]
    weights = torch.tensor(shares)
    total = sum(decoded(updates, weights, round, rotate) @ updates.T for round in range(rounds)) / rounds
    return total / (weights * updates.square().sum(1))


@pytest.mark.parametrize(
    ("shares", "norms"),
    [
        ([0.5, 0.5], [1.0, 0.7]),
        ([0.5, 0.3, 0.2], [1.0, 1.0, 1.0]),
        ([0.3, 0.25, 0.2, 0.15, 0.1], [1.0, 0.9, 1.2, 1.0, 0.8]),
    ],
)
def test_with_the_second_rotation_every_client_keeps_its_share(shares, norms):
    beta = influences(shares, norms, rotate=True)
    # The weakest client's own noise after 4000 rounds is about 2 %; the bar is 5 %.
    assert (beta - 1).abs().max() < 0.05, beta


def test_without_it_the_smaller_of_two_clients_is_silenced():
    beta = influences([0.5, 0.5], [1.0, 0.7], rotate=False, rounds=1000)
    assert beta[0] > 1.3 and beta[1].abs() < 0.15


def test_one_bit_of_a_sketch_is_an_unbiased_estimate_of_the_update():
    x = torch.randn(N, generator=torch.Generator().manual_seed(2))
    mean = torch.zeros(N)
    for round in range(2000):
        phi = srht(N, M, 3, round)
        a = phi.forward(x)
        mean += phi.adjoint(unbiased(a) * sign(a)) / 2000
    # Each estimate has relative variance (pi/2) N/M - 1 = 14.8: the mean of 2000 errs by sqrt(14.8 / 2000) = 8.6 %.
    assert (mean - x).norm() / x.norm() < 0.1
    assert abs(float(mean @ x / x.square().sum()) - 1) < 0.02


def test_noise_of_both_stages_is_as_derived():
    """E|decoded|^2 = (pi/2)^2 (n/m) sum p_k^2 |x_k|^2 for orthogonal updates of many clients (docs/delta.md)."""
    clients = 16
    updates = torch.linalg.qr(torch.randn(N, clients, generator=torch.Generator().manual_seed(4)))[0].T
    shares = torch.full((clients,), 1 / clients)
    sizes = [float(decoded(updates, shares, round).square().sum()) for round in range(400)]
    expected = (math.pi / 2) ** 2 * N / M * float((shares.square() * updates.square().sum(1)).sum())
    assert sum(sizes) / len(sizes) == pytest.approx(expected, rel=0.1)


def test_rotation_is_orthogonal_for_any_length():
    for m in (1, 2, 7, 102):
        turn = Rotation(m, 5, 1)
        dense = turn.forward(torch.eye(m))
        assert torch.allclose(dense @ dense.T, torch.eye(m), atol=1e-6)
        assert torch.allclose(turn.backward(turn.forward(torch.arange(m) + 0.0)), torch.arange(m) + 0.0, atol=1e-5)


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
    alone = srht(10, 5, 1, 3).forward(torch.ones(10))
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
    [{"keep": "ft"}, {"keep": "prox"}, {"keep": "best", "trial": 3}, {"scales": "layer"}, {"feedback": True}],
)
def test_replicas_of_returning_clients_equal_the_shared_model(options):
    method = PFed1BSDelta(Task(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))), ratio=0.5, **options)
    before = None
    for done in simulate(method, toy(), rounds=8, sampled=2, steps=2, batch=4):
        if before is not None:  # theta at the clients of a round is what the server had before it
            assert torch.equal(done.progress.clients["theta"][done.cohort.ids], before.expand(2, -1))
        before = done.progress.server["theta"]
    assert done.traffic.catch_up >= 0


def test_own_models_follow_the_shared_one_except_where_a_client_stays_alone():
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), keep="best")
    _, clients = method.init(2)
    clients["choice"] = torch.tensor([PROX, ALONE])
    after = method.absorb(clients, {"theta": clients["theta"][0] + 1}, 5)
    assert torch.equal(after["w"] - clients["w"], torch.tensor([1.0, 0.0])[:, None].expand(2, 18))
    assert torch.equal(after["scout/prox"], clients["scout/prox"] + 1)
    still = PFed1BSDelta(method.task, follow=False).absorb(clients, {"theta": clients["theta"][0] + 1}, 5)
    assert torch.equal(still["w"], clients["w"])


def test_the_step_is_one_until_noise_would_be_five_times_an_update():
    def step(clients: int, ratio: float, **options: float) -> float:
        ids = torch.arange(clients)
        cohort = Cohort(0, 3, ids, torch.full((clients,), 50), torch.zeros_like(ids))
        return PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=ratio, **options).size(cohort)

    assert step(20, 0.1) == 1.0  # noise of (pi / 2) sqrt(1 / (20 * 0.1)) = 1.1 updates
    assert step(5, 0.01) == pytest.approx(5 / (math.pi / 2 * 20**0.5))
    assert step(5, 0.01, step=0.5, decay=0.1) == pytest.approx(0.5 / 1.3)


def test_catch_up_is_the_missed_messages_or_the_model_whichever_is_shorter():
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=0.5)
    rounds = list(simulate(method, toy(), rounds=30, sampled=1, steps=1, batch=4))
    empty, one, whole = 20, 20 + 2 + 4, 20 + 4 * 18  # round 0; header, nine signs, scale; header, weights
    missed = {one, 2 * one, 3 * one, empty + one, empty + 2 * one}
    assert {done.traffic.down for done in rounds[1:]} <= missed | {whole}
    assert max(done.traffic.down for done in rounds) == whole


def test_a_trial_holds_back_a_quarter_of_the_samples_the_same_in_every_batch():
    trial = Trial(Task(nn.Linear(8, 2)), 0.1, 0.1, seed=0)
    x = torch.randn(1, 4000, 8, generator=torch.Generator().manual_seed(7))
    held = trial.held(x)
    assert 0.2 < float(held.float().mean()) < 0.3
    assert torch.equal(trial.held(x.flip(1)), held.flip(1))
    seen, labels = trial.visible(x, torch.arange(4000)[None])
    assert not trial.held(seen).any()
    assert torch.equal(x[0][labels[0]], seen[0])


def test_a_choice_needs_evidence():
    sizes = torch.tensor([400, 400, 400, 40])
    counts = torch.tensor(
        [[90.0, 50, 50, 100, 40], [51.0, 50, 50, 100, 40], [50.0, 90, 50, 100, 40], [60.0, 50, 50, 100, 40]]
    )
    assert verdict(counts, sizes, margin=1.0).tolist() == [ALONE, PROX, FT, PROX]


def test_a_client_whose_labels_contradict_the_others_does_not_stay_with_fine_tuning():
    data = toy(4)
    odd = data.train[0].tolist() + data.test[0].tolist()
    data.labels[odd] = 1 - data.labels[odd]
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), lr=0.5, ratio=1.0, keep="best", trial=8, margin=0.5)
    *_, done = simulate(method, data, rounds=20, steps=4, batch=8)
    assert done.progress.clients["choice"][0] != FT
    assert done.log["work"].tolist() == [2.0] * 4


def test_a_client_whose_trial_is_over_is_not_touched_by_the_trials_of_others():
    method = PFed1BSDelta(Task(nn.Linear(8, 2)), ratio=0.5, keep="best", trial=2)
    runs = [list(simulate(method, toy(), rounds=6, sampled=2, steps=2, batch=4, chunk=chunk)) for chunk in (None, 1)]
    together, alone = (run[-1].progress.clients for run in runs)
    assert {int(turns) for turns in together["turns"]} != {2}  # some clients are past their trial, some are not
    assert all(torch.equal(together[name], alone[name]) for name in together)
