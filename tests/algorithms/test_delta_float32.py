"""Delta without compression: the shared model of FedAvg, the personal models of pfed1bs-delta."""

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.core.errors import UserError
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from tiny import SAMPLES, aggregated, close, cohort, given, linear, mean, minus, plus, slope


def digits(name, rounds, **options):
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=60)
    return list(
        simulate(make(name, Task(build("mlp", (1, 8, 8), 10)), **options), data, rounds=rounds, steps=3, batch=8)
    )


def test_two_steps_of_two_clients_by_hand():
    algorithm = make("delta-float32", linear(), lr=0.5, mu=0.0, lam=2.0, step=0.25)
    server, clients = algorithm.init(2)
    theta = server["theta"].tolist()
    state, said = algorithm.local(clients, {}, cohort(), given())
    ends, own = [], []
    for client in (0, 1):
        u = w = theta
        for pairs in SAMPLES["train"]:
            u = plus(u, (-0.5, slope(u, pairs[client])))
            w = plus(w, (-0.5, slope(w, pairs[client])), (-0.5 * 2.0, minus(w, theta)))
        ends, own = [*ends, u], [*own, w]
    assert close(said["update"], [minus(u, theta) for u in ends]) and close(state["w"], own)
    after = aggregated(algorithm, server, said)
    assert close(after["theta"], plus(theta, (0.25, minus(mean(ends), theta))))
    heard = algorithm.absorb({"w": state["w"], "theta": state["theta"]}, {"move": after["move"]}, 1)
    assert torch.equal(heard["theta"][0], after["theta"])
    assert close(heard["w"], [plus(w, (1, after["move"].tolist())) for w in own])  # it follows


def test_its_shared_model_is_fedavgs():
    ours, theirs = digits("delta-float32", 4)[-1], digits("fedavg", 4)[-1]
    torch.testing.assert_close(ours.progress.server["theta"], theirs.progress.server["w"], rtol=0, atol=1e-6)
    assert float(ours.log["step"]) == 1


@pytest.mark.parametrize("options", [{}, {"keep": "ft"}, {"lam": 1.0, "decay": 0.5}])
def test_its_personal_models_are_those_of_pfed1bs_delta(options):
    ours, theirs = (digits(name, 1, **options)[0].progress.clients for name in ("delta-float32", "pfed1bs-delta"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_shared_step_decays():
    steps = [float(done.log["step"]) for done in digits("delta-float32", 3, step=0.5, decay=1.0)]
    assert steps == pytest.approx([0.5, 0.25, 1 / 6])


@pytest.mark.parametrize("option", ["ratio", "rotate", "scales", "feedback", "steady"])
def test_it_has_no_options_of_a_compression(option):
    with pytest.raises(UserError, match=f"delta-float32 has no option {option}"):
        make("delta-float32", linear(), **{option: 0.5})
