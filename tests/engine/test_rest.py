"""Clients whose own models rest: who rests when, that it changes nothing for the others, and that runs then end."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.algorithms.base.trial import ALONE, PROX, Trial
from pfed1bs.data import federate, load
from pfed1bs.engine import rest as module
from pfed1bs.engine.contract import Cohort, model_of
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rest import LEFT, MEMORY, Resting, over, resting, smoothed
from pfed1bs.engine.rounds import begin, conclude, prepare, simulate
from pfed1bs.engine.turns import Turn
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import Config
from pfed1bs.runs.run import Run
from pfed1bs.studies.comparison import finished

CLIENTS = 4
SIZE = {"sampled": None, "steps": 2, "batch": 8}


@cache
def data():
    return federate(load("digits"), CLIENTS, "dirichlet:0.5", cap=60)


def task():
    return Task(build("mlp", data().shape, data().num_classes))


def method(name, **options):
    return make(name, task(), **options)


def rounds(algorithm, count, **options):
    return list(simulate(algorithm, data(), rounds=count, **{**SIZE, **options}))


SHARED = [name for name in REGISTRY if make(name, Task(build("mlp", (1, 8, 8), 10))).rests]


@pytest.fixture(autouse=True)
def any_loss(monkeypatch):
    monkeypatch.setattr(module, "LEFT", float("inf"))


def halfway(algorithm):
    """A level that some of the clients are below after one round, and others not."""
    log = rounds(algorithm, 1)[0].log
    return level(log, float(log.get("fit", log["loss"]).median()) + 1e-6)


def level(log, loss):
    """The level at which this loss is enough."""
    return 2 * loss if {"apart", "behind"} & {*log} else loss


def test_only_losses_that_are_entropies_have_a_level_to_rest_at():
    kinds = {loss: make("fedavg", Task(torch.nn.Linear(2, 2), loss)) for loss in ("cross-entropy", "bce", "mse")}
    assert [loss for loss, made in kinds.items() if resting(made, 1.0) is not made] == ["cross-entropy", "bce"]


def test_newcomers_who_are_not_there_keep_no_run_from_its_end():
    some = replace(data(), newcomers=torch.tensor([1]))
    done = list(simulate(resting(method("pfed1bs-delta"), 1e9), some, rounds=5, **SIZE))
    assert len(done) == 1 and done[0].last and not over(done[0].progress.clients)


def test_methods_that_have_no_shared_model_do_not_rest():
    assert "pfed1bs" not in SHARED and "local" not in SHARED and {"pfed1bs-delta", "fedavg-ft", "ditto"} < {*SHARED}
    alone, shared = method("local"), method("fedavg")
    assert resting(alone, 0.02) is alone and resting(shared, 0.0) is shared


@pytest.mark.parametrize("name", SHARED)
def test_who_rests_keeps_its_model_and_nobody_else_notices(name):
    bare = method(name)
    quiet = resting(bare, halfway(bare))
    plain, rested = rounds(bare, 3), rounds(quiet, 3)
    assert [done.uplinks for done in rested] == [done.uplinks for done in plain]
    first, last = rested[0].progress.clients, rested[-1].progress.clients
    on = first["rest/on"]
    assert 0 < int(on.sum()) < CLIENTS
    assert torch.equal(last["w"][on], first["w"][on]) and not torch.equal(last["w"], first["w"])
    awake = ~last["rest/on"]
    assert torch.equal(last["w"][awake], plain[-1].progress.clients["w"][awake])


def test_a_client_at_rest_is_judged_with_the_model_and_the_statistics_it_had():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    )
    for name in ("pfed1bs-delta", "fedavg-ft"):
        bare = make(name, Task(net))
        log = rounds(bare, 1)[0].log
        quiet = resting(bare, level(log, float(log["loss"].median()) + 1e-6))
        done = rounds(quiet, 4)
        on = done[0].progress.clients["rest/on"].nonzero()[:, 0]
        then, now = (_personal(quiet, done[i].progress) for i in (0, 3))
        assert 0 < len(on) < CLIENTS and len(then) > 1
        for key in then:
            assert torch.equal(then[key][on], now[key][on])
        kept = model_of(rounds(bare, 1)[0].progress.clients)  # what local work of round 0 left
        assert all(torch.equal(now[key][on], kept[key][on]) for key in kept)
        assert not all(torch.equal(then[key], now[key]) for key in then)


def _personal(algorithm, progress):
    ids = torch.arange(CLIENTS)
    cohort = Cohort(0, progress.round, ids, data().sizes, progress.seen)
    batches = data().batches(ids, progress.round, 0, 2, 8)
    return algorithm.personal(progress.server, rows(progress.clients, ids), cohort, batches)["personal"]


def test_the_loss_is_smoothed_over_rounds_and_counts_all_samples_of_a_client(monkeypatch):
    bare = method("fedavg")
    quiet = resting(bare, 1e-9)
    found = rounds(quiet, 2)
    first, second = (done.log["loss"] for done in found)
    assert torch.equal(found[0].progress.clients["rest/loss"], first)
    expected = MEMORY * first + (1 - MEMORY) * second
    assert torch.allclose(found[1].progress.clients["rest/loss"], expected, rtol=1e-6)
    few = data().sizes.min()
    monkeypatch.setattr(module, "LEFT", float(first[data().sizes == few].max() * few) + 1e-3)
    after = rounds(resting(bare, 1e9), 1)[0].progress.clients["rest/on"]
    assert torch.equal(after, first * data().sizes < module.LEFT)


@pytest.mark.parametrize(
    ("name", "options", "follows"),
    [("pfed1bs-delta", {}, True), ("pfed1bs-delta", {"follow": False}, False), ("delta-float32", {}, True),
     ("ditto", {}, False)],
)  # fmt: skip
def test_a_model_held_near_the_shared_one_rests_when_it_has_come_back(name, options, follows, monkeypatch):
    monkeypatch.setattr(module, "NEAR", 0.85)
    done = rounds(resting(method(name, lam=1.0, lr=0.1, **options), 1e-9), 24)
    apart = torch.stack([one.log["apart" if follows else "behind"] for one in done])
    near = apart < 0.85 * apart.cummax(0).values
    first = torch.where(near.any(0), near.int().argmax(0) + 1, 1000)  # rounds until then
    ends = first * 1.5 if follows else first
    expected = torch.arange(1, len(done) + 1)[:, None] >= ends
    assert torch.equal(torch.stack([one.log["rest"] for one in done]).bool(), expected)
    assert expected[-1].any() and not expected[0].any()
    for client in expected[-1].nonzero()[:, 0].tolist():
        kept = done[int(expected[:, client].int().argmax())].progress.clients["w"][client]
        assert torch.equal(done[-1].progress.clients["w"][client], kept)


def test_rounds_count_that_a_client_takes_part_in(monkeypatch):
    monkeypatch.setattr(module, "NEAR", 10.0)  # back in the first round
    quiet = resting(method("pfed1bs-delta"), 1e-9)
    for done in simulate(quiet, data(), rounds=6, **{**SIZE, "sampled": 2}):
        clients = done.progress.clients
        assert torch.equal(clients["rest/on"], clients["rest/turns"] >= 2) and clients["rest/turns"].sum() == 2 * (
            done.number + 1
        )


def test_models_that_are_not_held_near_another_do_not_rest_by_distance(monkeypatch):
    monkeypatch.setattr(module, "NEAR", 10.0)
    for name, options in (("fedavg-ft", {}), ("pfed1bs-delta", {"keep": "ft"}), ("pfed1bs-delta", {"keep": "mean"})):
        done = rounds(resting(method(name, **options), 1e-9), 2)
        assert not done[-1].log["rest"].any() and not {"apart", "behind"} & {*done[-1].log}
    assert rounds(resting(method("ditto"), 1e-9), 1)[0].log["rest"].all()


@pytest.mark.parametrize(("lam", "held"), [(0.0, False), (1e-6, True)])
@pytest.mark.parametrize(
    ("name", "options"),
    [("pfed1bs-delta", {}), ("pfed1bs-delta", {"follow": False}), ("delta-float32", {}), ("ditto", {})],
)
def test_with_lambda_zero_no_model_is_held_near_another_and_the_loss_alone_tells(name, options, lam, held, monkeypatch):
    free = method(name, lam=lam, **options)
    (log,) = (done.log for done in rounds(free, 1))
    assert bool((log.get("apart", log.get("behind")) > 0).all()) is held
    level = 1.01 * float(log.get("fit", log["loss"]).max())
    monkeypatch.setattr(module, "NEAR", 0.0)  # never back
    assert bool(rounds(resting(free, level), 1)[0].log["rest"].all()) is not held  # half of the level, if held
    monkeypatch.setattr(module, "NEAR", 10.0)  # back in the first round
    assert bool(rounds(resting(free, 1e-9), 2)[-1].log["rest"].all()) is held


def test_rounds_end_when_all_rest_and_resuming_adds_none():
    quiet = resting(method("pfed1bs-delta"), 1e9)
    done = rounds(quiet, 5)
    assert len(done) == 1 and done[0].last and over(done[0].progress.clients)
    assert rounds(quiet, 5, resume=done[0].progress) == []
    assert not over(begin(method("fedavg"), 3).clients)
    assert [one.last for one in rounds(method("pfed1bs-delta"), 2)] == [False, False]


def test_a_run_that_ends_early_is_judged_saved_and_finished(tmp_path):
    config = replace(Config(), rest=1e9, rounds=7, clients=4, steps=2, batch=8, evaluate_every=5)
    config = replace(config, data=replace(config.data, cap=60), algorithm={"name": "fedavg"})
    run = Run.prepare(config, tmp_path / "run")
    lines = list(run.rounds())
    assert len(lines) == 1 and "accuracy" in lines[0] and run.summary["rested"] is True and finished(run)
    assert run.summary["accuracy_late"] == run.summary["accuracy"]
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    again = Run.prepare(replace(config, rest=0.0, rounds=2), tmp_path / "other")
    list(again.rounds())
    assert again.summary["rested"] is False and finished(again)


def test_a_run_goes_on_until_those_who_take_no_part_in_a_round_rest_too():
    quiet = resting(method("pfed1bs-delta"), 1e9)  # who has taken part rests
    done = rounds(quiet, 12, sampled=2)
    met = torch.zeros(CLIENTS, dtype=torch.bool)
    for one in done:
        met[one.cohort.ids] = True
        assert torch.equal(one.progress.clients["rest/on"], met) and one.last == bool(met.all())
    assert 1 < len(done) < 12


@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_the_loss_is_that_of_the_shared_model_where_the_own_one_is_trained_apart(name):
    done = rounds(resting(method(name, lr=0.2), 1e-9), 3)[-1]
    shared = [one.log["fit"] for one in rounds(method(name, lr=0.2), 3)]
    expected = smoothed(smoothed(shared[0], shared[1]), shared[2])
    assert torch.equal(done.progress.clients["rest/loss"], expected)
    assert not torch.equal(done.log["fit"], done.log["loss"])


def told(**logs):
    """A method that trains nothing and says what it is told, a value a round."""
    values = {f"log/{name}": iter(value) for name, value in logs.items()}

    def local(clients, received, cohort, batches):
        return {
            **clients,
            "w": clients["w"] + 1,
            **{name: torch.tensor([next(said)]) for name, said in values.items()},
        }, {}

    return SimpleNamespace(init=lambda clients: ({}, {"w": torch.zeros(clients, 1)}), local=local)


def awake_for(level, rounds, samples=1000, **logs):
    """In how many of so many rounds a client's model still moved."""
    quiet = Resting(told(**logs), level)
    _, state = quiet.init(1)
    for number in range(rounds):
        cohort = Cohort(0, number, torch.arange(1), torch.tensor([samples]), torch.tensor([number - 1]))
        state, _ = quiet.local({k: v for k, v in state.items() if "log/" not in k}, {}, cohort, None)
    return int(state["w"])


def test_the_documented_numbers(monkeypatch):
    monkeypatch.setattr(module, "LEFT", LEFT)
    flat, way = [1.0] * 9, [10.0, 20.0, 8.01, 7.99, 30.0, 30.0, 30.0, 30.0, 30.0]  # back to 0.4 of 20 in round 4
    assert awake_for(0.02, 9, loss=flat, behind=way) == 4 and awake_for(0.02, 9, loss=flat, apart=way) == 6
    for samples, least in ((100, 0.06), (300, 0.02), (1000, 0.006), (10, 0.1)):  # 6 nats for all samples; the level
        assert awake_for(0.1, 3, samples, loss=[least * 1.01] * 3) == 3
        assert awake_for(0.1, 3, samples, loss=[least * 0.99] * 3) == 1
    for more in ({"behind": flat}, {"apart": flat}):  # half of the level where a model is held near another
        assert (awake_for(0.1, 3, 10, loss=[0.051] * 3, **more), awake_for(0.1, 3, 10, loss=[0.049] * 3, **more)) == (
            3,
            1,
        )
    assert awake_for(0.1, 3, 10, loss=[0.051] * 3, apart=[0.0] * 3) == 1  # not held
    assert awake_for(0.1, 14, 10, loss=[1.0, *[0.0] * 13]) == 12  # 0.8^11 < 0.1 <= 0.8^10


def test_the_way_back_begins_anew_with_a_model_that_was_not_held_before():
    flat = [1.0] * 12
    assert awake_for(0.02, 12, loss=flat, apart=[10.0, 20.0, *[0.0] * 10]) == 12  # not one that came back
    again = [10.0, 20.0, 5.0, 0.0, 10.0, 20.0, 5.0, *[5.0] * 5]  # back in the third round of the second model
    assert awake_for(0.02, 12, loss=flat, apart=again) == 4 + 5
    alone = [0.0, 0.0, 0.0, 1.0, *[0.0] * 8]
    held = [10.0, 20.0, 5.0, 15.0, 10.0, 20.0, 5.0, *[5.0] * 5]
    assert awake_for(0.02, 12, loss=flat, apart=held, awake=alone) == 4 + 5


def test_a_client_that_is_alone_does_not_rest_and_has_the_bits_of_training_alone():
    quiet = resting(method("pfed1bs-delta", keep="best", trial=2, again=2, margin=1e6), 1e9)
    done, alone = rounds(quiet, 7), rounds(method("local"), 7)
    assert len(done) == 7 and not done[-1].log["rest"].any()
    assert torch.equal(done[-1].progress.clients["w"], alone[-1].progress.clients["w"])


def test_a_model_that_a_client_has_chosen_is_installed_and_may_rest_from_the_next_round_on(monkeypatch):
    found = []
    monkeypatch.setattr(
        Trial, "verdict", lambda self, sums, sizes, old: torch.full_like(old, PROX if len(found) < 6 else ALONE)
    )
    quiet = resting(method("pfed1bs-delta", keep="best", trial=2, again=1), 1e9)
    now = None
    for _ in range(9):  # though all rest the rounds go on here: another trial comes
        start = now or begin(quiet, CLIENTS)
        plan = prepare(quiet, start, data().sizes, 0, None)
        turn = Turn(quiet, data(), start.clients, plan.news, plan.cohort, 2, 8)
        work = turn(torch.arange(CLIENTS))
        after, _ = conclude(quiet, start, plan, work.messages)
        now = replace(after, clients=work.state)
        found.append(work)
    on = [bool(one.log["rest"].all()) for one in found]
    assert on == [False, False, True, True, True, True, True, False, False]
    assert torch.equal(found[1].state["w"], found[1].state["near/w"])  # the first verdict
    assert not torch.equal(found[2].state["w"], found[1].state["w"])  # one more round, then it rests
    assert all(torch.equal(one.state["w"], found[2].state["w"]) for one in found[3:7])  # whatever the second trial does
    assert torch.equal(found[7].state["w"], found[7].state["alone/w"])  # another model is better after all
    assert not torch.equal(found[8].state["w"], found[7].state["w"])
    assert float(found[2].log["apart"].min()) > 0 == float(found[7].log["apart"].max())
