"""FedBN: against plain modules trained one by one, what never leaves a client, and where it is FedAvg."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.cli.main import main
from pfed1bs.core.errors import UserError
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import begin, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from promise import assert_same

SIZE = {"steps": 3, "batch": 8}
CLIENTS = 4


def federation():
    return federate(load("digits"), CLIENTS, "dirichlet:0.5", cap=40)


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10))


def normalisation(task):
    mask = torch.zeros(task.n, dtype=torch.bool)
    for part in task.parts:
        mask[part.slice] = part.kind == "norm"
    return mask


def flat(module):
    return torch.cat([value.detach().flatten() for value in module.parameters()])


def test_two_rounds_are_those_of_plain_modules_that_share_all_but_their_normalisation():
    data, task = federation(), Task(model())
    method = make("fedbn", task, lr=0.1, mu=0.0)
    *_, done = simulate(method, data, rounds=2, **SIZE)
    shared, mask = task.init(0), normalisation(task)
    modules = [model() for _ in range(CLIENTS)]
    for own in modules:
        nn.utils.vector_to_parameters(shared.clone(), own.parameters())
    shares = (data.sizes / data.sizes.sum()).tolist()
    for t in range(2):
        for k, own in enumerate(modules):
            nn.utils.vector_to_parameters(torch.where(mask, flat(own), shared), own.parameters())
            for x, y in data.batches(torch.tensor([k]), t, 0, **SIZE)():
                loss = nn.functional.cross_entropy(own(x[0]), y[0])
                grads = torch.autograd.grad(loss, list(own.parameters()))
                with torch.no_grad():
                    for value, grad in zip(own.parameters(), grads, strict=True):
                        value -= 0.1 * grad
        shared = torch.where(mask, shared, sum(p * flat(own) for p, own in zip(shares, modules, strict=True)))
    assert torch.allclose(done.progress.server["w"], shared, atol=1e-5)
    judged = method.personal(
        done.progress.server, done.progress.clients, done.cohort, data.batches(done.cohort.ids, 2, 0, **SIZE)
    )
    for k, own in enumerate(modules):
        assert torch.allclose(done.progress.clients["w"][k], flat(own), atol=1e-5)
        assert torch.allclose(done.progress.clients["buffer/2.running_mean"][k], own[2].running_mean, atol=1e-5)
        expected = torch.where(mask, flat(own), shared)
        assert torch.allclose(judged["personal"]["w"][k], expected, atol=1e-5)
    assert "global" not in judged and not torch.allclose(flat(modules[0])[mask], flat(modules[1])[mask], atol=1e-3)


def test_the_server_keeps_its_first_normalisation_and_messages_hold_none():
    task = Task(model())
    *_, done = simulate(make("fedbn", task), federation(), rounds=3, sampled=2, **SIZE)
    mask = normalisation(task)
    assert torch.equal(done.progress.server["w"][mask], task.init(0)[mask])
    assert not torch.equal(done.progress.server["w"][~mask], task.init(0)[~mask])
    vgg = make("fedbn", Task(build("vgg8", (3, 32, 32), 10)))
    assert [layout[name].shape for layout, name in ((vgg.up, "update"), (vgg.down, "w"))] == [(279_338,)] * 2


def test_a_clients_normalisation_reaches_no_other_client():
    data, method = federation(), make("fedbn", Task(model()))
    now = begin(method, CLIENTS)
    mask = normalisation(method.task)
    other = {name: value.clone() for name, value in now.clients.items()}
    other["w"][0, mask] += 1.0
    runs = []
    for clients in (now.clients, other):
        *_, done = simulate(method, data, rounds=1, resume=replace(now, clients=clients), **SIZE)
        runs.append(done.progress)
    plain, changed = (progress.clients["w"] for progress in runs)
    assert torch.equal(plain[1:], changed[1:]) and not torch.equal(plain[0], changed[0])


@pytest.mark.parametrize("bn", ["local", "avg"])
def test_a_model_without_normalisation_makes_it_fedavg_bit_for_bit(bn):
    data, task = federation(), Task(build("mlp", (1, 8, 8), 10), bn=bn)
    runs, scores = [], []
    for name in ("fedbn", "fedavg"):
        method = make(name, task)
        *_, done = simulate(method, data, rounds=3, sampled=3, **SIZE)
        runs.append(done)
        scores.append(evaluate(method, data, done.progress, **SIZE))
    assert runs[0].uplinks == runs[1].uplinks and runs[0].traffic == runs[1].traffic
    assert_same(runs[0].progress.server, runs[1].progress.server)
    assert_same(runs[0].progress.clients, runs[1].progress.clients)
    assert list(scores[0]) == list(scores[1])
    for name, score in scores[0].items():
        assert_same(score.sums, scores[1][name].sums)


def test_statistics_stay_at_the_client_and_who_wants_them_averaged_is_refused():
    method = make("fedbn", Task(model()))
    assert list(method.up) == ["update"] and list(method.down) == ["w"] and method.remark == ""
    with pytest.raises(UserError, match="fedbn averages no statistics"):
        make("fedbn", Task(model(), bn="avg"))


@pytest.mark.usefixtures("no_page")
def test_a_run_without_normalisation_says_that_it_is_fedavg(tmp_path, capsys):
    words = ["run", "--algorithm.name", "fedbn", "--rounds", "1", "--clients", "2", "--steps", "1", "--json"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "so fedbn is fedavg, bit for bit" in told.err and json.loads(told.out)["runs"][0]["algorithm"] == "fedbn"


def test_own_normalisation_of_pfed1bs_delta_without_compression_is_fedbn():
    data, ends = federation(), {}
    for name, options in (("fedbn", {}), ("delta-float32", {"keep": "norms"})):
        method = make(name, Task(model()), lr=0.1, **options)
        *_, done = simulate(method, data, rounds=4, **SIZE)
        ends[name] = method, done.progress, evaluate(method, data, done.progress, **SIZE)
    (method, theirs, expected), (ours, now, scores) = ends.values()
    mask = normalisation(method.task)
    torch.testing.assert_close(now.server["theta"], theirs.server["w"], rtol=0, atol=1e-6)
    torch.testing.assert_close(now.clients["w"][:, mask], theirs.clients["w"][:, mask], rtol=0, atol=1e-6)
    assert list(scores) == list(expected) == ["personal", "tuned"]
    for name, sums in scores["personal"].sums.items():  # the server's sums are formed in another order
        near = 1.0 if name == "correct" else 0.0
        torch.testing.assert_close(sums, expected["personal"].sums[name], rtol=1e-4, atol=near)
    assert not ours.rests and not ours.kept and ours.gradients(10) == 10


def test_own_normalisation_is_kept_from_the_noise_of_signs_and_the_signs_from_it():
    data, method = federation(), make("pfed1bs-delta", Task(model()), lr=0.1, keep="norms")
    mask, before = normalisation(method.task), None
    for done in simulate(method, data, rounds=4, sampled=2, **SIZE):
        now = done.progress
        if before is not None:
            away = torch.ones(CLIENTS, dtype=torch.bool)
            away[done.cohort.ids] = False
            assert torch.equal(now.clients["w"][away][:, mask], before.clients["w"][away][:, mask])
        before = now
    judged = method.personal(now.server, now.clients, done.cohort, data.batches(done.cohort.ids, 4, 0, **SIZE))
    assert torch.equal(judged["personal"]["w"], torch.where(mask, now.clients["w"], now.server["theta"]))
    assert torch.equal(judged["tuned"]["w"], now.clients["w"]) and [*judged] == ["personal", "tuned"]
    assert not torch.equal(now.server["theta"][mask], method.task.init(0)[mask])  # noise, which nobody reads
    apart = make("pfed1bs-delta", Task(model()), lr=0.1, keep="norms", follow=False)  # what is kept never follows
    *_, other = simulate(apart, data, rounds=4, sampled=2, **SIZE)
    assert torch.equal(other.progress.clients["w"], now.clients["w"])
    assert not torch.allclose(now.clients["w"][0, mask], now.clients["w"][1, mask], atol=1e-3)
    state = {name: value[:2].clone() for name, value in now.clients.items()}
    state["theta"][:, mask] += 1.0
    batches, cohort = data.batches(torch.arange(2), 4, 0, **SIZE), Cohort(0, 4, *[torch.arange(2)] * 3)
    moved, said = method.local(state, {}, cohort, batches)
    same, told = method.local({name: value[:2] for name, value in now.clients.items()}, {}, cohort, batches)
    assert torch.equal(said["signs"], told["signs"]) and torch.equal(moved["w"], same["w"])
