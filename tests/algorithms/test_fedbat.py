import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.algorithms.base.binarised import noise
from pfed1bs.algorithms.fedbat import FedBAT
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from tiny import cohort as tiny_cohort
from tiny import given, linear


def cohort(clients: int = 1, round: int = 0) -> Cohort:
    ids = torch.arange(clients)
    return Cohort(0, round, ids, torch.ones_like(ids), torch.full_like(ids, -1))


def method(**options: object) -> FedBAT:
    """Four weights in one tensor and two biases."""
    return make("fedbat", Task(nn.Linear(2, 2)), **options)


def binarised(fedbat: FedBAT, u: torch.Tensor, alpha: torch.Tensor, name: str = "test") -> torch.Tensor:
    """Bin(u, alpha); a model that starts at 0 is nothing else, and one from 1 is 1 more."""
    v, models = torch.cat([u[:, :4] / (2 * alpha), u[:, 4:]], 1), []
    for start in (torch.zeros_like(u), torch.ones_like(u)):
        models.append(torch.zeros_like(u))
        fedbat.bin.draw(v, start, alpha, noise(cohort(len(u)), name, torch.empty_like(u)), models[-1])
    assert torch.equal(models[1], 1 + models[0])
    return models[0]


def test_the_mean_of_bin_is_u_cut_at_alpha():
    u = torch.tensor([-0.03, -0.004, 0.0, 0.007, 0.5, -0.5])  # four weights, two biases
    update = binarised(method(), u.expand(20_000, -1), torch.full((20_000, 1), 0.01))
    assert update[:, :4].abs().unique().tolist() == pytest.approx([0.01])
    assert torch.allclose(update[:, :4].mean(0), u[:4].clamp(-0.01, 0.01), atol=0.0003)  # 4 standard deviations
    assert torch.equal(update[:, 4:], u[4:].expand(20_000, -1))


def test_noise_of_every_height_adds_up_to_u_cut_at_alpha():
    heights = ((torch.arange(8) + 0.5) / 8 - 0.5)[:, None].repeat(1, 6)  # -7/16, -5/16 .. 7/16
    v, update = torch.tensor([-2.0, -0.25, 0.125, 0.5, 3.0, 3.0]).expand(8, -1), torch.empty(8, 6)
    method().bin.draw(v, torch.zeros(8, 6), torch.full((8, 1), 0.5), heights, update)  # alpha 1/2: u is v
    assert update.mean(0).tolist() == [-0.5, -0.25, 0.125, 0.5, 3.0, 3.0]


def test_noise_fills_the_range_evenly():
    drawn = noise(cohort(2), "test", torch.empty(2, 100_001))
    assert (torch.histc(drawn[0], 10, -0.5, 0.5) - 10_000).abs().max() < 400  # 4 standard deviations
    assert drawn.abs().max() <= 0.5 and not torch.equal(drawn[0], drawn[1])


def test_draws_differ_between_steps_and_rounds():
    u, alpha = torch.zeros(1, 6), torch.ones(1, 1)
    names = [binarised(method(), u.repeat(50, 1), alpha.repeat(50, 1), name) for name in ("fedbat/5", "fedbat/6")]
    assert 60 < int((names[0] != names[1]).sum()) < 140  # of 200 coins


def test_gradients_follow_the_published_rules():
    # alpha is 1, and |u| > alpha in the first and third place: no gradient to u there, sign(u) to alpha.
    u = torch.tensor([[3.0, 0.5, -2.0, -0.5, 7.0, 7.0]])
    update = torch.tensor([[1.0, -1.0, -1.0, -1.0, 7.0, 7.0]])
    grad = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]])
    slope = method().bin.slope(u / 2, update / 2, grad)
    assert grad.tolist() == [[0, 20, 0, 40, 50, 60]]
    assert slope.tolist() == [[10 * 1 + 20 * (-1 - 0.5) + 30 * -1 + 40 * (-1 + 0.5)]]


def test_weights_descend_with_ridge_and_momentum():
    # alpha goes from 1 to 2, so u = 2 v becomes u = 4 v; biases have u = v.
    start, u = torch.ones(1, 6), torch.tensor([[0.5, -0.5, 3.0, 0.0, 1.0, 2.0]])
    v, grad, velocity = u / torch.tensor([2.0, 2, 2, 2, 1, 1]), torch.full((1, 6), 10.0), torch.full((1, 6), 8.0)
    one = torch.ones(1, 1)
    method(lr=0.5, mu=2.0, momentum=0.25).bin.descend(v, start, grad, velocity, one, 2 * one)
    assert velocity.tolist() == [[2 + 10 + 3, 2 + 10 + 1, 2 + 10 + 8, 2 + 10 + 2, 2 + 10 + 4, 2 + 10 + 6]]
    assert v.tolist() == [[-7 / 4, -7 / 4, -7 / 4, -7 / 4, 1 - 8, 2 - 9]]  # 0.5 - 7.5, -0.5 - 6.5, 3 - 10, 0 - 7


def test_alpha_starts_at_the_mean_magnitude_and_stays_in_its_range():
    fedbat = method(rho=2.0)
    assert fedbat.bin.magnitudes(torch.tensor([[1.0, -2, 3, -4, 100, 100]])).tolist() == [[2.5]]
    alpha = fedbat.alpha(torch.tensor([[0.01, 1.0, 1e-9]]), torch.tensor([[0.5, 0.0, 0.0]]))
    assert alpha[0].tolist() == pytest.approx([0.01 * 2.718281828, 0.05, 5e-4])


def test_alpha_follows_the_loss_between_its_bounds_and_rests_at_them():
    def sent(**bounds):
        fedbat = make("fedbat", linear(), lr=0.5, mu=0.0, **bounds)
        return fedbat.local(fedbat.init(2)[1], {"w": torch.tensor([0.3, -0.2])}, tiny_cohort(), given())[1]["scales"]

    steps = sent(alpha_max=10.0)[:, 0]  # the mean magnitudes after the first step are 0.19 and 0.73
    assert steps[0] < 0.03 and steps[1] > 1
    assert sent(alpha_max=0.18)[0].tolist() == [pytest.approx(0.18)]
    assert sent(alpha_min=0.75, alpha_max=10.0)[1].tolist() == [pytest.approx(0.75)]


def test_a_warm_up_of_all_steps_trains_like_fedavg():
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    task = Task(build("mlp", data.shape, data.num_classes))
    last = [
        next(iter(simulate(algorithm, data, rounds=1, steps=4, batch=8))).progress
        for algorithm in (make("fedbat", task, warm_up=1.0), make("fedavg", task))
    ]
    assert torch.allclose(last[0].clients["w"], last[1].clients["w"], rtol=0, atol=1e-7)  # start + (w - start)
    biases = torch.cat([torch.arange(p.slice.start, p.slice.stop) for p in task.parts if p.kind == "bias"])
    assert torch.equal(last[0].server["w"][biases], last[1].server["w"][biases])
    assert not torch.equal(last[0].server["w"], last[1].server["w"])


@pytest.mark.parametrize(("model", "bits"), [("mlp", 211_840), ("vgg8", 322_800)])
def test_messages_have_the_published_size(model, bits):
    shape = (1, 28, 28) if model == "mlp" else (3, 32, 32)
    up = make("fedbat", Task(build(model, shape, 10))).up
    assert sum(codec.size for codec in up.values()) == (bits + 7) // 8
