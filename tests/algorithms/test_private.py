"""Randomised response on one-bit messages: numbers by hand, what is left of a message, where it is refused."""

from math import exp, log, sqrt

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.algorithms.base.private import REHEARSAL, composed, concentrated, kept, randomised
from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Cohort
from pfed1bs.flower.settings import read
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Signs


def cohort(clients=3, round=0):
    return Cohort(0, round, torch.arange(clients), torch.ones(clients, dtype=torch.int64), torch.full((clients,), -1))


def test_epsilon_and_its_concentrated_form_lead_to_each_other_and_rounds_add_up():
    rho = concentrated(3.0, 1e-5)
    assert rho + 2 * sqrt(rho * log(1e5)) == pytest.approx(3.0)
    assert composed(3.0, 1) == pytest.approx(3.0)
    assert composed(3.0, 4) == pytest.approx(4 * rho + 4 * sqrt(rho * log(1e5)))  # sqrt(4) of the second term


def test_a_single_bit_is_flipped_as_often_as_randomised_response_says():
    b = sqrt(2 * concentrated(3.0))
    assert (1 - kept(3.0, 1)) / 2 == pytest.approx(1 / (1 + exp(b)))


def test_bits_are_turned_over_with_their_probability_each_client_and_round_by_itself():
    z = torch.ones(3, 40_000)
    first, again, later = (randomised(z, cohort(round=t), 300.0) for t in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later) and not torch.equal(first[0], first[1])
    assert {*first.unique().tolist()} == {-1.0, 1.0}
    torch.testing.assert_close(first.mean(1), torch.full((3,), kept(300.0, 40_000)), atol=0.02, rtol=0)  # 4 / sqrt(m)
    assert torch.equal(randomised(z[:, :4], cohort(), 1e6), z[:, :4])


def test_the_scale_of_a_private_message_depends_on_nothing_and_makes_up_for_the_flips():
    method = make("pfed1bs-delta", Task(build("mlp", (1, 8, 8), 10)), epsilon=50.0, loudness=0.01)
    said = {"signs": torch.ones(3, method.m), "scale": torch.tensor([1.0, 20.0, 300.0])}
    found = method.private(said, cohort())
    assert found["scale"].tolist() == pytest.approx([0.01 / kept(50.0, method.m)] * 3)
    louder = make("pfed1bs-delta", method.task)
    assert method.size(cohort()) < louder.size(cohort()) == 1.0  # the step follows the noise


@pytest.mark.parametrize(("name", "field"), [("pfed1bs", "sketch"), ("pfed1bs-delta", "signs")])
def test_clients_of_both_methods_turn_bits_over_and_whoever_starts_is_told_what_it_is_not(name, field):
    task = Task(build("mlp", (1, 8, 8), 10))

    def heard(**options):
        method = make(name, task, **options)
        clients, some = method.init(3)[1], cohort()
        x, y = torch.randn(3, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(3, 4).long()
        batches = type("Batches", (), {"steps": 1, "__call__": lambda self, *_, **__: iter([(x, y)])})()
        said = method.local(clients, {}, some, batches)[1][field]
        assert isinstance(method.up[field], Signs) and method.remark == (REHEARSAL if options else "")
        return said

    differs = (heard() != heard(epsilon=20.0)).float().mean()
    assert 0.4 < float(differs) < 0.5


def test_a_federation_refuses_privacy_whose_noise_its_server_knows():
    with pytest.raises(UserError, match="noise from the seed, which the server knows"):
        read({"algorithm.name": "pfed1bs-delta", "algorithm.epsilon": 10.0})
