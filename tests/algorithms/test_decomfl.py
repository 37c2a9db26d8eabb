"""DeComFL: slopes by hand, the error of the estimate, and everybody on the mean of the clients' ways."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import decomfl, make
from pfed1bs.algorithms.decomfl import DeComFL
from pfed1bs.core.rng import stream
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task


@dataclass(frozen=True)
class Surface:
    """A loss of the weights alone: half their squared length, or a slope times them."""

    start: torch.Tensor
    slope: torch.Tensor | None = None

    @property
    def n(self):
        return len(self.start)

    def init(self, seed):
        return self.start

    def buffers(self, clients):
        return {}

    def losses(self, w, x, y, buffers):
        return (w.square().sum(1) / 2 if self.slope is None else w @ self.slope), {}


class Given(DeComFL):
    """The direction (1, -1), always."""

    def along(self, round, step, like):
        yield torch.tensor([1.0, -1.0])


def batches(name="train", steps=None):
    return iter([(None, None)] * steps)


def one(round=0):
    return Cohort(0, round, torch.tensor([0]), torch.tensor([1]), torch.tensor([round - 1]))


@pytest.mark.parametrize(("difference", "expected"), [("central", -1.0), ("forward", -0.9)])
def test_the_slope_of_half_the_squared_length_along_one_direction(difference, expected):
    # (|(1.1, 1.9)|^2 - |(0.9, 2.1)|^2) / 2 / 0.2 = (2.41 - 2.61) / 0.2, or (2.41 - 2.5) / 0.1
    options = {"moves": 1, "directions": 1, "radius": 0.1, "step": 0.5, "mu": 0.0, "difference": difference}
    algorithm = Given(Surface(torch.tensor([1.0, 2.0])), **options)
    state, said = algorithm.local(algorithm.init(1)[1], {}, one(), batches)
    torch.testing.assert_close(said["scalars"], torch.tensor([[[expected]]]), rtol=1e-5, atol=0)
    torch.testing.assert_close(state["w"], torch.tensor([[1 - 0.5 * expected, 2 + 0.5 * expected]]))


def test_everybody_repeats_the_steps_with_ridge_and_velocity():
    algorithm = Given(Surface(torch.tensor([1.0, 2.0])), moves=2, directions=1, step=0.5, mu=0.1, beta=0.5)
    server, clients = algorithm.init(1)
    messages = [{"scalars": torch.tensor([[1.0], [3.0]])}, {"scalars": torch.tensor([[3.0], [-1.0]])}]
    two = Cohort(0, 0, torch.tensor([0, 1]), torch.tensor([1, 99]), torch.tensor([-1, -1]))  # equal weights: means 2, 1
    after = algorithm.aggregate(server, messages, two)
    # v = 2 (1, -1) + 0.1 (1, 2) = (2.1, -1.8), w = (-0.05, 2.9)
    # v = (1, -1) + 0.1 (-0.05, 2.9) + 0.5 (2.1, -1.8) = (2.045, -1.61), w = (-1.0725, 3.705)
    torch.testing.assert_close(after["w"], torch.tensor([-1.0725, 3.705]))
    torch.testing.assert_close(after["velocity"], torch.tensor([2.045, -1.61]))
    heard = algorithm.absorb(clients, {"scalars": after["scalars"]}, 1)
    assert torch.equal(heard["theta"][0], after["w"]) and torch.equal(heard["velocity"][0], after["velocity"])


@pytest.mark.parametrize(("draw", "expected"), [("normal", 10.1), ("signs", 9.9)])
def test_the_estimate_of_a_gradient_has_no_bias_and_the_known_error(draw, expected):
    slope = torch.randn(100, generator=torch.Generator().manual_seed(0))
    surface = Surface(torch.zeros(100), slope)
    algorithm = DeComFL(surface, moves=1, directions=10, step=1.0, mu=0.0, radius=1.0, draw=draw)
    _, clients = algorithm.init(1)
    found = -torch.stack([algorithm.local(clients, {}, one(round), batches)[0]["w"][0] for round in range(1000)])
    errors = (found - slope).square().sum(1) / slope.square().sum()
    assert float(errors.mean()) == pytest.approx(expected, rel=0.05)  # (n + 1) / P, (n - 1) / P; 3 standard errors
    assert float((found.mean(0) - slope).square().sum() / slope.square().sum()) < 1.5 * expected / 1000


def test_directions_are_the_same_for_all_clients_and_new_in_every_round_and_step():
    algorithm = make("decomfl", Task(nn.Linear(50, 20)), directions=2)
    drawn = [z for round in (0, 1) for step in (0, 1) for z in algorithm.along(round, step, torch.zeros(1))]
    again = list(replace(algorithm, lr=0.1).along(1, 0, torch.zeros(1)))
    assert torch.equal(again[0], drawn[4]) and torch.equal(again[1], drawn[5])
    products = torch.stack(drawn) @ torch.stack(drawn).T / 1020
    assert float((products - torch.eye(8)).abs().max()) < 0.2  # 6 standard deviations


@pytest.mark.parametrize("options", [{}, {"beta": 0.9, "mu": 0.01}])
def test_the_shared_model_is_the_plain_mean_of_the_clients_models(options):
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    task = Task(build("mlp", data.shape, data.num_classes))
    algorithm = make("decomfl", task, moves=3, directions=4, step=0.01, **options)
    for done in simulate(algorithm, data, rounds=3, sampled=3, batch=8):
        mean = done.progress.clients["w"][done.cohort.ids].mean(0)
        way = mean - done.progress.clients["theta"][done.cohort.ids[0]]
        assert float((done.progress.server["w"] - mean).norm() / way.norm()) < 1e-4  # float32


def test_statistics_of_the_model_change_once_in_a_step():
    data = federate(load("digits"), 2, "iid", cap=40)
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)))
    algorithm = make("decomfl", task, moves=3, directions=5)
    *_, done = simulate(algorithm, data, rounds=2, batch=8)
    assert done.progress.clients["buffer/2.num_batches_tracked"].tolist() == [6, 6]


def test_messages_do_not_grow_with_the_model():
    for width in (1, 100):
        assert make("decomfl", Task(nn.Linear(width, 2))).up["scalars"].size == 400


def test_moves_are_as_many_as_the_losses_of_so_many_gradients_allow():
    assert make("decomfl", Task(nn.Linear(1, 2)), directions=7).afforded(10) == {"moves": 2}  # of 15 losses each, of 30
    forward = make("decomfl", Task(nn.Linear(1, 2)), directions=8, difference="forward", moves=4)
    assert forward.afforded(10) == {"moves": 3} and forward.gradients(10) == 12


def test_a_round_draws_its_directions_once_and_again_where_there_is_no_room(monkeypatch):
    def drawn(room):
        names = []

        def named(seed, *name):
            names.append(name)
            return stream(seed, *name)

        monkeypatch.setattr(decomfl, "ROOM", room)
        monkeypatch.setattr(decomfl, "stream", named)
        decomfl._round.cache_clear()
        algorithm = DeComFL(Surface(torch.tensor([1.0, 2.0, 3.0])), moves=2, directions=2)
        server, clients = algorithm.init(1)
        for round in range(2):
            received = algorithm.broadcast(server, one(round))
            clients = algorithm.absorb(clients, received, round) if received else clients
            clients, said = algorithm.local(clients, received, one(round), batches)
            server = algorithm.aggregate(server, [{name: value[0] for name, value in said.items()}], one(round))
        return server["w"], names

    kept, once = drawn(12)
    bare, often = drawn(11)
    assert torch.equal(kept, bare)
    assert len(once) == len(set(once)) == 8 and set(often) == set(once) and len(often) > len(once)
