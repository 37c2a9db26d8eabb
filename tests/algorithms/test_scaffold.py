"""SCAFFOLD: two clients computed by hand, parabolas whose limit is known, and what the controls add up to."""

from dataclasses import dataclass, replace

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.algorithms.fedavg import FedAvg
from pfed1bs.algorithms.scaffold import Scaffold
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from promise import assert_same
from tiny import SAMPLES, aggregated, close, cohort, given, linear, minus, plus, slope

START, C = [0.1, -0.2], [0.05, 0.3]  # what both clients receive
OWN = [[0.2, -0.1], [-0.3, 0.4]]  # their controls
STEPS = [[pairs[k] for pairs in SAMPLES["train"]] for k in (0, 1)]
CONTROL = [((0.5, 1), (1.0, 0)), ((2.0, 0), (-1.0, 0))]


def server():
    return {"w": torch.tensor(START), "c": torch.tensor(C), "clients": torch.tensor(4)}


def states():
    return {"w": torch.zeros(2, 2), "c": torch.tensor(OWN)}


@pytest.mark.parametrize("control", ["path", "start"])
@pytest.mark.parametrize(("weights", "shares"), [("equal", (0.5, 0.5)), ("samples", (0.25, 0.75))])
def test_steps_are_corrected_and_controls_become_mean_gradients(control, weights, shares):
    method = make("scaffold", linear(), lr=0.5, mu=0.1, control=control, weights=weights, server_lr=0.5)
    received = method.broadcast(server(), cohort())
    assert list(received) == list(method.down) == ["w", "c"]
    state, said = method.local(states(), received, cohort(), given(train=SAMPLES["train"], control=CONTROL))
    ways, controls = [], []
    for k, samples in enumerate(STEPS):
        w, gradients = START, []
        for sample in samples:
            gradients.append(plus(slope(w, sample), (0.1, w)))
            w = plus(w, (-0.5, gradients[-1]), (0.5, OWN[k]), (-0.5, C))
        ways.append(w)
        if control == "start":
            gradients = [plus(slope(START, pairs[k]), (0.1, START)) for pairs in CONTROL]
        controls.append(plus([0.0, 0.0], *((0.5, gradient) for gradient in gradients)))
    assert close(state["w"], ways) and close(state["c"], controls)
    assert list(said) == list(method.up) == ["update", "dc"]
    new = aggregated(method, server(), said)
    moves = [minus(way, START) for way in ways]
    assert close(new["w"], plus(START, *((0.5 * share, move) for share, move in zip(shares, moves, strict=True))))
    changes = [minus(new, old) for new, old in zip(controls, OWN, strict=True)]
    assert close(new["c"], plus(C, *((2 / 4 * share, one) for share, one in zip(shares, changes, strict=True))))


@dataclass(frozen=True)
class Parabolas:
    """f_1 = (x - 1)^2 / 2 and f_2 = 3 (x + 1)^2 / 2, one weight, which begins at 0; batches say whose it is."""

    n: int = 1
    parts: tuple = ()
    bn: str = "local"

    def init(self, seed):
        return torch.zeros(1)

    def buffers(self, clients):
        return {}

    def gradient(self, w, x, y, buffers):
        slopes, minima = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [-1.0]])
        return slopes * (w - minima), torch.zeros(2), buffers

    def descend(self, w, x, y, buffers, lr, mu, out=None):
        return w - lr * self.gradient(w, x, y, buffers)[0], torch.zeros(2), buffers  # FedAvg's way


def trajectory(method, rounds):
    """The server's weight after every round of two clients that weigh the same."""
    batches = given(train=[((0.0, 0), (0.0, 0))] * 10, control=[((0.0, 0), (0.0, 0))] * 10)
    server, clients = method.init(2)
    for t in range(rounds):
        both = replace(cohort(t), sizes=torch.tensor([1, 1]))
        clients, said = method.local(clients, method.broadcast(server, both), both, batches)
        messages = [{name: field[i] for name, field in said.items()} for i in (0, 1)]
        server = method.aggregate(server, messages, both)
        yield float(server["w"])


@pytest.mark.parametrize(("control", "second"), [("start", -0.51781), ("path", -0.32326)])
def test_two_parabolas_end_in_the_common_minimum_where_fedavg_does_not(control, second):
    options = {"lr": 0.1, "mu": 0.0}
    corrected = list(trajectory(Scaffold(Parabolas(), control=control, **options), 60))
    plain = list(trajectory(FedAvg(Parabolas(), **options), 60))
    assert corrected[:2] == pytest.approx([-0.16022, second], abs=1e-5)  # the first round is FedAvg's
    assert plain[0] == pytest.approx(-0.16022, abs=1e-5)
    assert corrected[-1] == pytest.approx(-0.5, abs=1e-4) and plain[-1] == pytest.approx(-0.19742, abs=1e-4)


@pytest.mark.parametrize("control", ["path", "start"])
@pytest.mark.parametrize(("sampled", "weights"), [(5, "equal"), (2, "equal"), (5, "samples")])
def test_the_servers_control_is_the_mean_of_the_clients(control, sampled, weights):
    data = federate(load("digits"), 5, "dirichlet:0.5", cap=40)
    method = make("scaffold", Task(build("mlp", data.shape, 10)), control=control, weights=weights)
    for done in simulate(method, data, rounds=4, sampled=sampled, steps=3, batch=8):
        shares = data.sizes.double() / data.sizes.sum() if weights == "samples" else torch.full((5,), 0.2).double()
        mean = shares @ done.progress.clients["c"].double()
        torch.testing.assert_close(done.progress.server["c"].double(), mean, rtol=1e-4, atol=1e-6)  # float32 sums
    assert mean.norm() > 0.01


def test_with_one_step_and_everybody_there_the_model_is_that_of_fedavg():
    data = federate(load("digits"), 4, "iid", cap=40)
    assert data.sizes.unique().numel() == 1  # FedAvg weighs by samples
    task = Task(build("mlp", data.shape, 10))
    models = [
        list(simulate(make(name, task), data, rounds=4, steps=1, batch=8))[-1].progress.server["w"]
        for name in ("scaffold", "fedavg")
    ]
    assert torch.allclose(*models, atol=1e-6)


def test_a_client_that_is_away_keeps_its_control():
    data = federate(load("digits"), 4, "iid", cap=40)
    method = make("scaffold", Task(build("mlp", data.shape, 10)))
    first, second = simulate(method, data, rounds=2, sampled=2, steps=2, batch=8)
    away = [k for k in range(4) if k not in second.cohort.ids.tolist()]
    before, after = ({"c": done.progress.clients["c"][away]} for done in (first, second))
    assert_same(before, after)


def test_the_control_of_the_path_is_the_papers_second_option():
    method = make("scaffold", linear(), lr=0.5)
    state, said = method.local(states(), server(), cohort(), given())
    paper = states()["c"] - torch.tensor(C) - said["update"] / (2 * 0.5)  # c_k - c + (w - y) / (R lr)
    torch.testing.assert_close(state["c"], paper, rtol=1e-5, atol=1e-6)


def test_momentum_goes_through_corrected_gradients_and_controls_stay_gradients():
    method = make("scaffold", linear(), lr=0.5, mu=0.0, momentum=0.9)
    state, _ = method.local(states(), server(), cohort(), given())
    for k, (first, second) in enumerate(STEPS):
        one = slope(START, first)
        velocity = plus(one, (-1, OWN[k]), (1, C))
        w = plus(START, (-0.5, velocity))
        two = slope(w, second)
        velocity = plus(two, (-1, OWN[k]), (1, C), (0.9, velocity))
        assert close(state["w"][k], plus(w, (-0.5, velocity)))
        assert close(state["c"][k], plus([0.0, 0.0], (0.5, one), (0.5, two)))
