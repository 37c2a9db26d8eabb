"""Ferret: coordinates by hand, directions as specified, and an estimate that is right in the mean."""

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.algorithms.ferret import Ferret
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.task import Task


class Given(Ferret):
    """Two blocks of two weights, with the directions (1, -1), (1, 1) and (2, 0)."""

    def bases(self, round):
        yield slice(0, 2), slice(0, 2), torch.tensor([[1.0, -1], [1, 1]]), 0.5
        yield slice(2, 4), slice(2, 3), torch.tensor([[2.0, 0]]), 2.0


def method(weights, **options):
    return make("ferret", Task(nn.Linear(weights, 1, bias=False)), **options)


def test_coordinates_and_the_move_by_hand():
    algorithm = Given(Task(nn.Linear(4, 1, bias=False)), share=0.75, server_lr=0.5)
    x = torch.tensor([[3.0, 1, 4, 9], [0, 0, 0, 1]])
    # <x, v> = 2, 4 over 0.5 * 2, and 8 over 2 * 1
    assert algorithm.coordinates(x, 0).tolist() == [[2, 4, 4], [0, 0, 0]]
    # 2 (1, -1) + 4 (1, 1) = (6, 2), 4 (2, 0) = (8, 0), half of it
    assert algorithm.move({"coordinates": torch.tensor([2.0, 4, 4])}, 0).tolist() == [3, 1, 4, 0]


def test_the_server_moves_by_the_mean_of_the_coordinates():
    algorithm = Given(Task(nn.Linear(4, 1, bias=False)), share=0.75)
    server, _ = algorithm.init(2)
    who = Cohort(0, 0, torch.tensor([0, 1]), torch.tensor([1, 3]), torch.tensor([-1, -1]))
    said = [{"coordinates": torch.tensor([4.0, 0, 0])}, {"coordinates": torch.tensor([0.0, 4, 0])}]
    after = algorithm.aggregate(server, said, who)
    assert after["coordinates"].tolist() == [1, 3, 0]
    assert torch.equal(after["w"], server["w"] + torch.tensor([4.0, 2, 0, 0]))


@pytest.mark.parametrize(("d", "expected"), [(64, 0.3326), (4096, 0.33332)])
def test_directions_are_normal_numbers_within_their_bounds(d, expected):
    algorithm = method(d, share=16 / d)
    [(at, own, v, rho)] = algorithm.bases(0)
    assert at == slice(0, d) and own == slice(0, 16) and v.shape == (16, d)
    assert rho * d == pytest.approx(expected, abs=5e-5 if d == 64 else 5e-6)
    assert float(v.abs().max()) <= d**-0.5 and float(v.abs().max()) > 0.99 * d**-0.5
    many = torch.cat([v for round in range(20) for _, _, v, _ in algorithm.bases(round)])
    assert float(many.double().square().mean()) == pytest.approx(rho, rel=0.02)  # 20,480 numbers or more
    assert abs(float(many.double().mean())) < 0.02 * d**-0.5


def test_the_decoded_update_is_right_in_the_mean_and_has_the_known_error():
    algorithm, x = method(64, share=0.25), torch.randn(64, generator=torch.Generator().manual_seed(0))
    found = torch.stack(
        [algorithm.move({"coordinates": algorithm.coordinates(x[None], round)[0]}, round) for round in range(1000)]
    )
    errors = (found - x).square().sum(1) / x.square().sum()
    assert float(errors.mean()) == pytest.approx((64 - 0.2) / 16, rel=0.04)
    assert float((found.mean(0) - x).square().sum() / x.square().sum()) < 1.5 * 4 / 1000


def test_the_mean_of_decoded_updates_is_the_decoded_mean():
    algorithm = method(700, share=0.1, block=256)
    x = torch.randn(5, 700, generator=torch.Generator().manual_seed(0))
    each = algorithm.coordinates(x, 3)
    decoded = torch.stack([algorithm.move({"coordinates": own}, 3) for own in each]).mean(0)
    torch.testing.assert_close(algorithm.move({"coordinates": each.mean(0)}, 3), decoded, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("n", "options"), [(203_530, {}), (10_000, {"share": 1e-4, "block": 4096}), (3, {})])
def test_blocks_have_all_weights_and_all_coordinates_and_directions_of_their_own(n, options):
    algorithm = method(n, **options)
    blocks = list(algorithm.bases(0))
    for place, whole in ((0, n), (1, algorithm.up["coordinates"].shape[0])):
        edges = [block[place] for block in blocks]
        assert edges[0].start == 0 and edges[-1].stop == whole
        assert all(a.stop == b.start and a.stop > a.start for a, b in zip(edges, edges[1:], strict=False))
    assert len(blocks) == (50 if n == 203_530 else 1)
    assert all(v.shape == (own.stop - own.start, at.stop - at.start) for at, own, v, _ in blocks)
    if len(blocks) > 1:
        a, b = blocks[0][2][0, :4000], blocks[1][2][0, :4000]
        assert abs(float(a @ b / a.norm() / b.norm())) < 0.1  # 6 standard deviations
    assert not torch.equal(blocks[0][2], next(algorithm.bases(1))[2])
