"""Personalised methods with a shared model, each against two clients computed by hand, and where they coincide."""

from functools import cache

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.facts.costs import Detail, bits
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import HEADER
from promise import assert_same
from tiny import SAMPLES, aggregated, close, cohort, given, linear, mean, minus, plus, slope

START = [0.1, -0.2]  # the shared model that both clients receive
OWN = [[0.3, 0.0], [-0.1, 0.2]]  # what the clients kept
STEPS = [[pairs[k] for pairs in SAMPLES["train"]] for k in (0, 1)]  # samples of each client, step by step


def server():
    return {"w": torch.tensor(START)}


def states(**more):
    return {"w": torch.tensor(OWN), **more}


def averaged(start, lr, samples):
    """Plain SGD from the shared model, as in FedAvg."""
    w = start
    for sample in samples:
        w = plus(w, (-lr, slope(w, sample)))
    return w


def test_fedprox_pulls_every_step_back_to_the_received_model():
    method = make("fedprox", linear(), lr=0.5, prox=0.3, mu=0.1)
    state, said = method.local(states(), server(), cohort(), given())
    expected = []
    for samples in STEPS:
        w = START
        for sample in samples:
            w = plus(w, (-0.5, slope(w, sample)), (-0.5 * 0.3, minus(w, START)), (-0.5 * 0.1, w))
        expected.append(w)
    assert close(state["w"], expected)
    assert close(aggregated(method, server(), said)["w"], mean(expected))


def test_ditto_pulls_the_kept_model_towards_the_received_one_and_averages_the_other():
    method = make("ditto", linear(), lr=0.5, lam=0.4, mu=0.0)
    state, said = method.local(states(), server(), cohort(), given())
    personal = []
    for v, samples in zip(OWN, STEPS, strict=True):
        for sample in samples:
            v = plus(v, (-0.5, slope(v, sample)), (-0.5 * 0.4, minus(v, START)))
        personal.append(v)
    assert close(state["w"], personal)
    assert close(state["log/behind"], [sum(x * x for x in minus(v, START)) ** 0.5 for v in personal])
    assert close(aggregated(method, server(), said)["w"], mean([averaged(START, 0.5, samples) for samples in STEPS]))


def test_pfedme_repeats_a_batch_goes_on_from_theta_and_judges_it():
    method = make("pfedme", linear(), lr=0.2, lam=2.0, inner=3, meta_lr=0.25, mu=0.0, server_lr=1.5)
    state, said = method.local(states(), server(), cohort(), given())
    thetas, copies = [], []
    for samples in STEPS:
        w = theta = START
        for sample in samples:
            for _ in range(3):
                theta = plus(theta, (-0.2, slope(theta, sample)), (-0.2 * 2.0, minus(theta, w)))
            w = plus(w, (-0.25 * 2.0, minus(w, theta)))
        thetas.append(theta)
        copies.append(w)
    assert close(state["w"], thetas)
    expected = plus([-0.5 * value for value in START], (1.5, mean(copies)))  # (1 - beta) w + beta mean
    new = aggregated(method, server(), said)
    assert close(new["w"], expected)
    judged = method.personal(new, state, cohort(1), given(tune=SAMPLES["train"]))
    assert close(judged["personal"]["w"], thetas) and close(judged["global"]["w"], [expected] * 2)


def test_pfedme_takes_as_many_batches_as_asked_for():
    method = make("pfedme", linear(), lr=0.2, lam=2.0, inner=1, outer=1, meta_lr=0.25, mu=0.0)
    state, _ = method.local(states(), server(), cohort(), given())
    assert close(state["w"], [plus(START, (-0.2, slope(START, samples[0]))) for samples in STEPS])
    assert [make("pfedme", linear(), inner=3, outer=outer).gradients(10) for outer in (0, 2)] == [30, 6]


def test_pfedme_refuses_a_copy_that_jumps_over_theta():
    with pytest.raises(ValueError, match=r"meta_lr \* algorithm.lam must be in \[0, 1\), got 0.1 \* 15.0 = 1.5"):
        make("pfedme", linear(), meta_lr=0.1)


META = [((2.0, 1), (0.5, 0)), ((1.0, 0), (-1.0, 1))]
THIRD = [((1.5, 0), (1.0, 0)), ((0.5, 1), (2.0, 1))]


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_perfedavg_steps_from_where_it_was_by_the_gradient_after_one_step(order):
    method = make("perfedavg", linear(), lr=0.5, alpha=0.3, mu=0.0, order=order, delta=0.01)
    batches = given(train=SAMPLES["train"], meta=META, hessian=THIRD, tune=SAMPLES["train"])
    state, said = method.local(states(), server(), cohort(), batches)
    expected = []
    for k in (0, 1):
        w = START
        for first, second, third in zip(STEPS[k], META, THIRD, strict=True):
            g = slope(plus(w, (-0.3, slope(w, first))), second[k])
            if order == "hessian-free":
                ahead, behind = slope(plus(w, (0.01, g)), third[k]), slope(plus(w, (-0.01, g)), third[k])
                g = plus(g, (-0.3 / 0.02, minus(ahead, behind)))
            w = plus(w, (-0.5, g))
        expected.append(w)
    assert (state["w"] - torch.tensor(expected)).abs().max() < (1e-6 if order == "first" else 1e-4)
    new = aggregated(method, server(), said)
    assert (new["w"] - torch.tensor(mean(expected))).abs().max() < (1e-6 if order == "first" else 1e-4)
    assert method.gradients(10) == (20 if order == "first" else 40)


def test_perfedavg_judges_the_shared_model_after_one_step_on_training_samples():
    method = make("perfedavg", linear(), lr=0.5, alpha=0.3, mu=0.0)
    judged = method.personal(server(), states(), cohort(), given(tune=SAMPLES["train"]))
    assert close(judged["personal"]["w"], [plus(START, (-0.3, slope(START, samples[0]))) for samples in STEPS])
    assert close(judged["tuned"]["w"], [averaged(START, 0.5, samples) for samples in STEPS])


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl_mixes_its_own_model_with_the_stepped_copy_and_learns_alpha_in_the_first_step(adaptive):
    method = make("apfl", linear(), lr=0.5, alpha=0.6, mu=0.0, adaptive=adaptive)
    clients = {"alpha": torch.full((2, 1), 0.6), "own": torch.tensor(OWN), "w": torch.zeros(2, 2)}
    state, said = method.local(clients, server(), cohort(), given())
    mixtures, owns, alphas = [], [], []
    for v, samples in zip(OWN, STEPS, strict=True):
        w, alpha = START, 0.6
        for step, sample in enumerate(samples):
            w = plus(w, (-0.5, slope(w, sample)))
            g = slope(plus([0, 0], (alpha, v), (1 - alpha, w)), sample)
            gap = minus(v, w)
            v = plus(v, (-0.5 * alpha, g))
            if adaptive and step == 0:
                alpha = min(1, max(0, alpha - 0.5 * (gap[0] * g[0] + gap[1] * g[1])))
        mixtures.append(plus([0, 0], (alpha, v), (1 - alpha, w)))
        owns.append(v)
        alphas.append([alpha])
    assert close(state["w"], mixtures) and close(state["own"], owns) and close(state["alpha"], alphas)
    assert (alphas != [[0.6], [0.6]]) == adaptive
    assert close(aggregated(method, server(), said)["w"], mean([averaged(START, 0.5, samples) for samples in STEPS]))


def test_apfl_keeps_a_velocity_with_momentum_alone():
    kept = [make("apfl", linear(), momentum=momentum).init(2)[1] for momentum in (0.0, 0.5)]
    assert ["velocity" in states for states in kept] == [False, True]


def test_apfl_refuses_a_share_above_one():
    with pytest.raises(ValueError, match=r"alpha must be a share in \[0, 1\], got 1.5"):
        make("apfl", linear(), alpha=1.5)


@cache
def digits():
    return federate(load("digits"), 4, "dirichlet:0.5", cap=40)


def normalised(bn):
    """A small model with BatchNorm."""
    layers = nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    return Task(nn.Sequential(*layers), bn=bn)


def last(name, task=None, **options):
    """After three rounds of three of four clients."""
    method = make(name, task or Task(build("mlp", digits().shape, digits().num_classes)), **options)
    *_, done = simulate(method, digits(), rounds=3, sampled=3, steps=2, batch=8)
    return method, done


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize(("name", "options"), [("ditto", {"lam": 0.0}), ("apfl", {"alpha": 1.0})])
def test_without_a_pull_it_is_local_only(name, options, momentum):
    for bn in ("local", "avg"):
        _, one = last(name, normalised(bn), momentum=momentum, **options)
        _, other = last("local", normalised(bn), momentum=momentum)
        for key, value in other.progress.clients.items():
            if name == "ditto" or momentum:
                assert_same({key: one.progress.clients[key]}, {key: value})  # at another address: see test_same_bits.py
            else:  # the gradient at the mixture takes another way through memory: one rounding a step
                assert torch.allclose(one.progress.clients[key], value, atol=1e-5), key


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedprox_without_a_pull_is_fedavg_bit_for_bit(momentum):
    _, one = last("fedprox", momentum=momentum, prox=0.0)
    _, other = last("fedavg", momentum=momentum)
    assert one.uplinks == other.uplinks
    assert torch.equal(one.progress.server["w"], other.progress.server["w"])
    assert torch.equal(one.progress.clients["w"], other.progress.clients["w"])


def test_the_shared_model_of_ditto_and_apfl_is_that_of_fedavg_with_its_own_statistics():
    method, average = last("fedavg", normalised("local"))
    expected = evaluate(method, digits(), average.progress, steps=2, batch=8)
    for name in ("ditto", "apfl"):
        method, done = last(name, normalised("local"))
        assert torch.equal(done.progress.server["w"], average.progress.server["w"])
        found = evaluate(method, digits(), done.progress, steps=2, batch=8)
        assert torch.equal(found["global"].loss, expected["global"].loss)
        assert not torch.equal(found["personal"].loss, expected["personal"].loss)


def test_averaged_statistics_travel_with_the_shared_model_of_a_companion():
    method, done = last("ditto", normalised("avg"))
    mean_key = "buffer/2.running_mean"
    assert list(method.down) == ["w", mean_key, "buffer/2.running_var"]
    assert done.progress.server[mean_key].abs().sum() > 0
    assert not torch.equal(done.progress.clients[mean_key], done.progress.clients["shared/" + mean_key])


def test_pfedme_trains_everybody_if_told_so_and_hears_only_the_sampled_ones():
    method, done = last("pfedme", train="all")
    _, before = last("pfedme")
    assert method.trains == "all" and len(done.uplinks) == 3
    assert done.traffic.down * 3 == before.traffic.down * 4 and done.traffic.up == before.traffic.up


@pytest.mark.parametrize("name", ["fedprox", "ditto", "pfedme", "perfedavg", "apfl", "fedper", "fedrep"])
def test_measured_bytes_are_those_of_the_formula(name):
    layers = nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)
    _, done = last(name, Task(nn.Sequential(*layers)))
    cost = bits(name, n=610, m=61, clients=4, sampled=3, detail=Detail(head=90))
    assert (done.traffic.up - 3 * HEADER.size, done.traffic.down - 3 * HEADER.size) == cost.payload


def test_how_many_gradients_ten_steps_take():
    task = Task(build("mlp", (1, 8, 8), 10))
    counts = {name: make(name, task).gradients(10) for name in REGISTRY}
    two = dict.fromkeys(["pfed1bs-delta", "delta-float32", "ditto", "perfedavg", "apfl"], 20)
    assert {name: count for name, count in counts.items() if count != 10} == {
        **two, "pfedme": 50, "dispfl": 11, "decomfl": 70
    }  # fmt: skip
    assert make("scaffold", task, control="start").gradients(10) == 20
    assert [make("pfed1bs-delta", task, keep=keep).gradients(10) for keep in ("ft", "best")] == [10, 40]
