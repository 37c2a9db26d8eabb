import pytest
import torch
from torch import nn

from pfed1bs.algorithm import Cohort
from pfed1bs.algorithms import make
from pfed1bs.algorithms.fedbat import FedBAT
from pfed1bs.data import federate, load
from pfed1bs.models import build
from pfed1bs.simulate import simulate
from pfed1bs.task import Task


def cohort(clients: int = 1, round: int = 0) -> Cohort:
    ids = torch.arange(clients)
    return Cohort(0, round, ids, torch.ones_like(ids), torch.full_like(ids, -1))


def method(**options: object) -> FedBAT:
    """Four weights in one tensor and two biases."""
    return make("fedbat", Task(nn.Linear(2, 2)), **options)


def binarised(fedbat: FedBAT, u: torch.Tensor, alpha: torch.Tensor, name: str = "test") -> torch.Tensor:
    start, update, model = torch.ones_like(u), torch.zeros_like(u), torch.zeros_like(u)
    fedbat.binarise(start + u, start, alpha, cohort(len(u)), name, update, model)
    assert torch.equal(model, start + update)
    return update


def test_the_mean_of_bin_is_u_cut_at_alpha():
    u = torch.tensor([-0.03, -0.004, 0.0, 0.007, 0.5, -0.5])  # four weights, two biases
    drawn = binarised(method(), u.expand(20_000, -1), torch.full((20_000, 1), 0.01))
    assert drawn[:, :4].abs().unique().tolist() == pytest.approx([0.01])
    assert torch.allclose(drawn[:, :4].mean(0), u[:4].clamp(-0.01, 0.01), atol=0.0003)  # 4 standard deviations
    assert torch.equal(drawn[:, 4:], u[4:].expand(20_000, -1))


def test_draws_differ_between_steps_and_rounds():
    u, alpha = torch.zeros(1, 6), torch.ones(1, 1)
    names = [binarised(method(), u.repeat(50, 1), alpha.repeat(50, 1), name) for name in ("fedbat/5", "fedbat/6")]
    assert 60 < int((names[0] != names[1]).sum()) < 140  # of 200 coins


def test_gradients_follow_the_published_rules():
    # |u| > alpha in the first and third place: no gradient to u there, sign(u) to alpha.
    u = torch.tensor([[3.0, 0.5, -2.0, -0.5, 7.0, 7.0]])
    update = torch.tensor([[1.0, -1.0, -1.0, -1.0, 7.0, 7.0]])
    grad = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]])
    slope = method(mu=0.0).descend(1 + u, torch.ones(1, 6), update, grad, torch.ones(1, 1), None)
    assert grad.tolist() == [[0, 20, 0, 40, 50, 60]]
    assert slope.tolist() == [[10 * 1 + 20 * (-1 - 0.5) + 30 * -1 + 40 * (-1 + 0.5)]]


def test_weights_descend_with_ridge_and_momentum():
    # |u| > alpha in the third place of the weights; biases follow their gradient as it is.
    start, w = torch.ones(1, 6), torch.tensor([[1.5, 0.5, 4.0, 1.0, 2.0, 3.0]])
    grad, velocity = torch.full((1, 6), 10.0), torch.full((1, 6), 8.0)
    method(lr=0.5, mu=2.0, momentum=0.25).descend(w, start, torch.ones(1, 6), grad, torch.ones(1, 1), velocity)
    assert grad.tolist() == [[10 + 3 + 2, 10 + 1 + 2, 0 + 8 + 2, 10 + 2 + 2, 10 + 4 + 2, 10 + 6 + 2]]
    assert w.tolist() == [[1.5 - 7.5, 0.5 - 6.5, 4 - 5, 1 - 7, 2 - 8, 3 - 9]]


def test_alpha_starts_at_the_mean_magnitude_and_stays_in_its_range():
    fedbat = method(rho=2.0)
    assert fedbat.magnitudes(torch.tensor([[2.0, -1, 4, -3, 100, 100]]), torch.ones(1, 6)).tolist() == [[2.5]]
    alpha = fedbat.alpha(torch.tensor([[0.01, 1.0, 1e-9]]), torch.tensor([[0.5, 0.0, 0.0]]))
    assert alpha[0].tolist() == pytest.approx([0.01 * 2.718281828, 0.05, 5e-4])


def test_a_warm_up_of_all_steps_trains_like_fedavg():
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    task = Task(build("mlp", data.shape, data.num_classes))
    last = [
        next(iter(simulate(algorithm, data, rounds=1, steps=4, batch=8))).progress
        for algorithm in (make("fedbat", task, warm_up=1.0), make("fedavg", task))
    ]
    assert torch.equal(last[0].clients["w"], last[1].clients["w"])
    biases = torch.cat([torch.arange(p.slice.start, p.slice.stop) for p in task.parts if p.kind == "bias"])
    assert torch.equal(last[0].server["w"][biases], last[1].server["w"][biases])
    assert not torch.equal(last[0].server["w"], last[1].server["w"])


@pytest.mark.parametrize(("model", "bits"), [("mlp", 211_840), ("vgg8", 322_800)])
def test_messages_have_the_published_size(model, bits):
    shape = (1, 28, 28) if model == "mlp" else (3, 32, 32)
    up = make("fedbat", Task(build(model, shape, 10))).up
    assert sum(codec.size for codec in up.values()) == (bits + 7) // 8
