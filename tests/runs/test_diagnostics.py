"""Potential and distances against numbers worked out by hand."""

from math import isnan, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import penalty
from pfed1bs.core.votes import pack, sign
from pfed1bs.data import Federation
from pfed1bs.engine.answers import listen
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.task import Task
from pfed1bs.runs.diagnostics import group_hamming, hamming, label_groups, objectives, potential


def federation(sizes=(1, 3), labels=(0, 1, 0, 1)):
    """Clients with samples one, two, three, ... of one feature; nothing to test on."""
    parts = torch.arange(sum(sizes)).split(sizes)
    x = torch.arange(1.0, sum(sizes) + 1)[:, None]
    return Federation(x, torch.tensor(labels), parts, tuple(p[:0] for p in parts), torch.arange(len(x)), num_classes=2)


def method(**options):
    """Two weights, one measurement; without D the first row of H gives Phi w = (w_0 + w_1), all others w_0 - w_1."""
    return PFed1BS(Task(nn.Linear(1, 2, bias=False)), ratio=0.5, use_D=False, **options)


def plus_or_minus(algorithm):
    """The sign c of Phi w = w_0 + c w_1."""
    return float(algorithm.sketch.matrix()[0, 1])


def test_objective_adds_loss_penalty_and_ridge_of_every_client():
    algorithm, data = method(lam=0.5, mu=0.1, gamma=1e6), federation()
    c = plus_or_minus(algorithm)
    clients = {"w": torch.tensor([[0.0, 0.0], [3.0, c]])}  # Phi w = 0, 4
    found = objectives(algorithm, data, {"consensus": pack(torch.tensor([-1.0]))}, clients)
    gap = 3 - c
    losses = [log(1 + 2.718281828459045 ** (s * gap)) for s in (2, -3, 4)]  # labels 1, 0, 1 of samples 2, 3, 4
    expected = [log(2), sum(losses) / 3 + 0.5 * (4 + 4) + 0.05 * 10]
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_potential_weighs_the_clients_by_their_samples():
    algorithm, data = method(lam=0.5, mu=0.1), federation()
    server, clients = algorithm.init(2)
    own = objectives(algorithm, data, server, clients)
    assert potential(algorithm, data, server, clients) == pytest.approx(float(own[0] + 3 * own[1]) / 4, rel=1e-12)


def test_potential_before_the_first_vote_follows_the_choice_of_v0():
    data, w = federation(), torch.tensor([[0.5, 0.25], [-1.0, 2.0]])
    values = {}
    for v0 in ("zero_masked", "zero_literal", "sketch"):
        algorithm = method(lam=1.0, mu=0.0, v0=v0)
        server, _ = algorithm.init(2)
        values[v0] = potential(algorithm, data, server, {"w": w}, round=0)
    q = algorithm.sketch.forward(w)[:, 0]
    shares, first = torch.tensor([0.25, 0.75]), sign(algorithm.sketch.forward(algorithm.task.init(0)))
    shrinkage = float(shares @ q.abs()) - log(2) / 1e4
    assert values["zero_literal"] - values["zero_masked"] == pytest.approx(shrinkage, rel=1e-4)
    misfit = float(shares @ (q.abs() - first * q)) - log(2) / 1e4
    assert values["sketch"] - values["zero_masked"] == pytest.approx(misfit, abs=1e-4)


@pytest.mark.parametrize("size, chunk", [(1, None), (2, 1), (256, 2), (3, 2)])
def test_potential_does_not_depend_on_how_much_is_computed_at_once(size, chunk):
    algorithm, data = method(lam=0.1, start="own"), federation((1, 3, 2), (0, 1, 0, 1, 1, 0))
    server, clients = algorithm.init(3)
    whole = potential(algorithm, data, server, clients)
    assert potential(algorithm, data, server, clients, size=size, chunk=chunk) == pytest.approx(whole, rel=1e-6)


def test_potential_uses_the_running_statistics_of_every_client():
    class Normed(nn.Sequential):
        def __init__(self):
            super().__init__(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2, bias=False))

    algorithm, data = PFed1BS(Task(Normed()), lam=0.0, mu=0.0, ratio=0.5), federation((2, 2))
    _, clients = algorithm.init(2)
    clients = {**clients, "w": torch.tensor([[1.0, 0.0], [1.0, 0.0]])}
    mean = "buffer/0.running_mean"
    moved = {**clients, mean: clients[mean] + torch.tensor([[0.0], [3.0]])}
    server = {"consensus": pack(torch.ones(1))}
    before, after = (objectives(algorithm, data, server, state) for state in (clients, moved))
    assert before[0] == after[0]
    assert after[1] == pytest.approx((log(2) + log(1 + 2.718281828459045)) / 2, rel=1e-4)  # logits 0 and 1


def test_penalty_of_a_stack_is_the_penalty_of_each_row():
    algorithm = method()
    w = torch.randn(4, 3, 2, generator=stream(0, "w"))
    whole = penalty(algorithm.sketch, w, torch.ones(1), 7.0)
    assert whole.shape == (4, 3)
    assert whole[2, 1] == pytest.approx(float(penalty(algorithm.sketch, w[2, 1], torch.ones(1), 7.0)), rel=1e-6)


def test_hamming_counts_the_differing_bits_of_every_pair():
    z = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 1, -1, -1], [-1, -1, -1, -1, -1]])
    expected = torch.tensor([[0, 0.4, 1], [0.4, 0, 0.6], [1, 0.6, 0]], dtype=torch.float64)
    assert torch.allclose(hamming(z), expected, rtol=0, atol=1e-15)
    assert torch.allclose(hamming(pack(z), 5), expected, rtol=0, atol=1e-15)


@given(st.integers(1, 70), st.integers(1, 4), st.integers(0, 1000))
def test_hamming_of_packed_sketches_is_that_of_their_signs(m, clients, seed):
    z = sign(torch.randn(clients, m, generator=stream(seed, "z")))
    differing = (z[:, None] != z).double().mean(-1)
    assert torch.allclose(hamming(z), differing, rtol=0, atol=1e-15)
    assert torch.equal(hamming(pack(z), m), hamming(z))


def test_hamming_of_long_sketches_is_summed_block_by_block(monkeypatch):
    monkeypatch.setattr("pfed1bs.runs.diagnostics.BLOCK", 2)
    z = sign(torch.randn(3, 37, generator=stream(0, "z")))
    assert torch.allclose(hamming(pack(z), 37), (z[:, None] != z).double().mean(-1), rtol=0, atol=1e-15)


def test_packed_sketches_need_their_number_of_bits():
    with pytest.raises(ValueError, match="pass m as well"):
        hamming(torch.zeros(2, 3, dtype=torch.uint8))


def test_group_means_are_over_pairs_of_different_clients():
    distances = torch.tensor([[0, 0.1, 0.5], [0.1, 0, 0.7], [0.5, 0.7, 0]])
    assert group_hamming(distances, torch.tensor([4, 4, 2])) == pytest.approx((0.1, 0.6))
    within, between = group_hamming(distances, torch.tensor([0, 1, 2]))
    assert isnan(within)
    assert between == pytest.approx(1.3 / 3)


def test_clients_with_the_same_labels_form_a_group():
    groups = label_groups(federation((2, 1, 3, 1), (0, 1, 1, 1, 0, 1, 0)))
    assert groups[0] == groups[2]
    assert len(set(groups.tolist())) == 3


def test_the_messages_of_a_round_give_the_distances_of_the_models_that_sent_them():
    algorithm = PFed1BS(Task(nn.Linear(1, 2)), ratio=1.0, start="own")
    data = federation((2, 2, 2), (0, 1, 0, 1, 1, 0))
    (round,) = simulate(algorithm, data, rounds=1, steps=2, batch=2, device="cpu")
    packed = torch.stack([message["sketch"] for message in listen(algorithm, round.uplinks, round.cohort)])
    z = sign(algorithm.sketch.forward(round.progress.clients["w"]))
    assert torch.equal(hamming(packed, 4), hamming(z))
