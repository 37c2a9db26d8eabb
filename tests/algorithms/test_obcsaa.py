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
    algorithm, x = method(decode="sum", votes=votes, support="client"), spikes(0)
    server, _ = algorithm.init(2)
    after = algorithm.aggregate(server, said(algorithm, torch.stack([x, x])), cohort([1, 3]))
    move = after["w"] - server["w"]
    assert float(move @ x / move.norm() / x.norm()) > 0.99
    assert float(move.norm()) == pytest.approx(float(x.norm()), rel=1e-3)


def test_the_union_lets_more_coordinates_move_than_one_client_keeps():
    updates = torch.stack([spikes(1), spikes(2)])
    moved = {}
    for support in ("client", "union"):
        algorithm = method(decode="sum", support=support)
        moved[support] = int((algorithm.mean(said(algorithm, updates), cohort([1, 1])) != 0).sum())
    assert moved == {"client": 10, "union": 20}


def test_a_client_of_few_samples_has_no_part_in_the_majority_and_one_in_the_mean_of_the_votes():
    updates, part = torch.stack([spikes(1), spikes(2)]), {}
    for votes in ("hard", "soft"):
        algorithm = method(decode="sum", votes=votes, iterations=1)
        mean = algorithm.mean(said(algorithm, updates), cohort([1, 3])).float()
        part[votes] = float(mean @ updates[0] / mean.norm() / updates[0].norm())
    assert part["hard"] == 0 and part["soft"] > 0.3


@pytest.mark.parametrize("options", [{}, {"decode": "sum", "support": "client"}])
def test_clients_that_did_not_move_have_no_vote(options):
    algorithm, x = method(**options), spikes(0)
    mean = algorithm.mean(said(algorithm, torch.stack([torch.zeros(N), x])), cohort([9, 1])).float()
    assert float(mean @ x / mean.norm() / x.norm()) > 0.99
    assert float(mean.norm()) == pytest.approx(float(x.norm()) / 10, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"decode": "sum", "support": "client"}])
def test_without_norms_the_step_has_the_length_of_the_server(options):
    algorithm, x = method(norm=False, server_lr=0.25, **options), spikes(0)
    server, _ = algorithm.init(1)
    after = algorithm.aggregate(server, said(algorithm, x[None]), cohort([1]))
    assert float((after["w"] - server["w"]).norm()) == pytest.approx(0.25, rel=1e-3)


def test_each_update_is_reconstructed_with_its_own_length_and_then_averaged():
    algorithm, updates = method(iterations=100), torch.stack([spikes(1), 3 * spikes(2)])
    messages = said(algorithm, updates)
    mean = algorithm.mean(messages, cohort([1, 3]))
    single = [algorithm.compressor.decompress(message, cohort([1])) for message in messages]
    assert torch.allclose(mean, (0.25 * single[0] + 0.75 * single[1]).double())
    true = 0.25 * updates[0] + 0.75 * updates[1]
    assert float(mean.float() @ true / mean.norm() / true.norm()) > 0.99
    assert float(mean.norm() / true.norm()) == pytest.approx(1, rel=0.01)


def test_a_sum_of_many_updates_is_not_reconstructed_where_each_of_them_is():
    """Ten clients of ten entries and 1024 signs: the sum has ten signs for each of its entries."""
    updates = torch.stack([spikes(seed) for seed in range(10)])
    true, who = updates.mean(0), cohort([1] * 10)
    found = {}
    for decode in ("each", "sum"):
        algorithm = method(decode=decode, iterations=30)
        mean = algorithm.mean(said(algorithm, updates), who).float()
        found[decode] = float(mean @ true / mean.norm() / true.norm()), float(mean.norm() / true.norm())
    assert found["each"][0] > 0.98 and found["each"][1] == pytest.approx(1, abs=0.03)
    assert found["sum"][0] < 0.8 and found["sum"][1] > 2.5  # as long as one of them, not as their mean


def test_a_run_is_told_that_a_sum_may_have_too_many_entries():
    assert method().remark == method(decode="sum", support="client").remark == ""
    assert "1,024 signs stand for 10 entries" in method(decode="sum").remark
    assert "with more than 5 clients in a round" in method(decode="sum").remark


@pytest.mark.parametrize(("sparsity", "kept"), [(0.01, 1), (0.5, 2), (1.0, 4)])
def test_a_client_keeps_its_share_of_the_coordinates_and_at_least_one(sparsity, kept):
    assert make("obcsaa", Task(nn.Linear(2, 2, bias=False)), sparsity=sparsity).compressor.kappa == kept
