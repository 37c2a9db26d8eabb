import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.algorithms.obcsaa import OBCSAA
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import Message

N = 2048


def method(**options: object) -> OBCSAA:
    return make("obcsaa", Task(nn.Linear(N, 1, bias=False)), ratio=0.5, sparsity=10 / N, **options)


def cohort(sizes: list[int]) -> Cohort:
    ids = torch.arange(len(sizes))
    return Cohort(0, 0, ids, torch.tensor(sizes), torch.full_like(ids, -1))


def said(algorithm: OBCSAA, updates: torch.Tensor) -> list[Message]:
    message = algorithm.compressor.compress(updates, cohort([1] * len(updates)))
    packed = {**message, "signs": algorithm.up["signs"].pack(message["signs"])}
    return [{name: field[i] for name, field in packed.items()} for i in range(len(updates))]


def spikes(seed: int) -> torch.Tensor:
    """Ten values at random places; neighbours would see few different rows of the transform."""
    x = torch.zeros(N)
    x[torch.randperm(N, generator=torch.Generator().manual_seed(seed))[:10]] = torch.linspace(1, 2, 10)
    return x


@pytest.mark.parametrize("votes", ["hard", "soft"])
def test_clients_that_agree_move_the_model_where_and_as_far_as_they_want(votes):
    algorithm, x = method(votes=votes, support="client"), spikes(0)
    server, _ = algorithm.init(2)
    after = algorithm.aggregate(server, said(algorithm, torch.stack([x, x])), cohort([1, 3]))
    move = after["w"] - server["w"]
    assert float(move @ x / move.norm() / x.norm()) > 0.99
    assert float(move.norm()) == pytest.approx(float(x.norm()), rel=1e-3)


def test_the_union_lets_more_coordinates_move_than_one_client_keeps():
    updates = torch.stack([spikes(1), spikes(2)])
    moved = {}
    for support in ("client", "union"):
        algorithm = method(support=support)
        moved[support] = int((algorithm.mean(said(algorithm, updates), cohort([1, 1])) != 0).sum())
    assert moved == {"client": 10, "union": 20}


def test_clients_that_did_not_move_have_no_vote():
    algorithm, x = method(support="client"), spikes(0)
    mean = algorithm.mean(said(algorithm, torch.stack([torch.zeros(N), x])), cohort([9, 1]))
    assert float(mean @ x / mean.norm() / x.norm()) > 0.99
    assert float(mean.norm()) == pytest.approx(float(x.norm()) / 10, rel=1e-3)


def test_without_norms_the_step_has_the_length_of_the_server():
    algorithm, x = method(norm=False, server_lr=0.25), spikes(0)
    server, _ = algorithm.init(1)
    after = algorithm.aggregate(server, said(algorithm, x[None]), cohort([1]))
    assert float((after["w"] - server["w"]).norm()) == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize(("sparsity", "kept"), [(0.01, 1), (0.5, 2), (1.0, 4)])
def test_a_client_keeps_its_share_of_the_coordinates_and_at_least_one(sparsity, kept):
    assert make("obcsaa", Task(nn.Linear(2, 2, bias=False)), sparsity=sparsity).compressor.kappa == kept
