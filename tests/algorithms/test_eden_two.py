"""EDEN both ways: a round by hand, no bias either way, and a rotation for the server alone."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.nn.task import Task
from tiny import aggregated, cohort


def method(weights=2, **options):
    return make("eden-two", Task(nn.Linear(weights, 1, bias=False)), **options)


def test_a_round_of_two_clients_by_hand():
    algorithm = method(bits=1.0, server_lr=0.5)
    server, _ = algorithm.init(2)
    # Whatever the signs D are, the rotated (3, 1) is +-4 and +-2 over sqrt(2); |y|^2 / |y|_1 = 10 / (6 / sqrt(2)), and
    # the signs turned back are sqrt(2) at the larger weight: (10/3, 0).
    said = algorithm.update.compress(torch.tensor([[3.0, 1], [1, 3]]), cohort())
    after = aggregated(algorithm, server, said)
    # The mean is 1/4 (10/3, 0) + 3/4 (0, 10/3) = (5/6, 5/2), and the answer (0, |q|^2 / (5/2)) = (0, 25/9).
    torch.testing.assert_close(after["w"] - server["w"], torch.tensor([0, 0.5 * 25 / 9]))
    assert torch.equal(after["w"], server["w"] + algorithm.move(after, 0))


@pytest.mark.parametrize(("n", "bits", "expected"), [(1024, 0.1, 14.7), (1024, 0.3, 4.24), (1024, 1, 0.571)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_answer_has_no_bias_and_the_published_error(n, bits, expected, share):
    algorithm, q = (
        method(n, bits=share * bits, down_bits=bits),
        torch.randn(n, generator=torch.Generator().manual_seed(0)),
    )
    found = torch.stack([algorithm.move(algorithm.answered(q, round), round) for round in range(400)])
    assert torch.allclose(found @ q / (q @ q), torch.ones(400), atol=1e-5)  # <estimate, q> = |q|^2 every time
    errors = (found - q).square().sum(1) / (q @ q)
    assert float(errors.mean()) == pytest.approx(expected, rel=0.04)  # pi / (2 b) - 1
    assert float((found.mean(0) - q).square().sum() / (q @ q)) == pytest.approx(expected / 400, rel=0.2)


def test_padding_lowers_the_error_by_its_share():
    algorithm, q = method(700, bits=0.3), torch.randn(700, generator=torch.Generator().manual_seed(0))
    found = torch.stack([algorithm.move(algorithm.answered(q, round), round) for round in range(400)])
    error = float(((found - q).square().sum(1) / (q @ q)).mean())
    assert error == pytest.approx((torch.pi / 0.6 - 1) * 700 / 1024, rel=0.04)


def test_the_server_has_a_rotation_that_no_client_has():
    algorithm = method(1000)
    own = algorithm.answer._signs(algorithm.speaker(3))
    for client in range(20):
        who = cohort(3).rows(slice(0, 1))
        other = algorithm.update._signs(type(who)(0, 3, torch.tensor([client]), who.sizes, who.seen))
        assert abs(float(own @ other)) < 160  # 5 standard deviations of 1000 coins


@pytest.mark.parametrize("bits", [0.1, 1, 1.5])
def test_no_update_is_no_move(bits):
    algorithm = method(100, bits=bits)
    assert torch.equal(algorithm.move(algorithm.answered(torch.zeros(100), 5), 5), torch.zeros(100))


def test_bits_of_the_two_ways_are_chosen_apart():
    algorithm = method(1024, bits=0.25, down_bits=2.0)
    assert {name: codec.size for name, codec in algorithm.up.items()} == {"fine": 32, "scale": 4}
    assert {name: codec.size for name, codec in algorithm.down.items()} == {"coarse": 256, "scale": 4}
    assert method(1024, bits=0.5).down == method(1024, bits=0.5).up
