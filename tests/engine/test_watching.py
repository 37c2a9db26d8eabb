"""Uplinks are decoded once, whoever wants to know something about them; a schedule says how long a run is."""

from dataclasses import dataclass

import pytest
import torch

from pfed1bs import Schedule, build, evaluate, federate, load, simulate
from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.engine.answers import listen
from pfed1bs.nn.task import Task
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import load as configured
from pfed1bs.runs.diagnostics import apart, distance, group_hamming, hamming, label_groups
from pfed1bs.runs.folder import identity
from pfed1bs.runs.run import Run


@dataclass(frozen=True)
class Weighing(PFed1BS):
    """Watches how many signs of a client are positive, beside the distances."""

    def diagnose(self, server, message):
        ones = torch.tensor([int(byte).bit_count() for byte in message["sketch"]]).sum()
        return {**super().diagnose(server, message), "log/ones": ones}


def federation(partition="labels:2"):
    return federate(load("digits"), 6, partition, cap=40)


def method(data, cls=PFed1BS):
    return cls(Task(build("mlp", data.shape, data.num_classes)), ratio=0.01)


def test_a_run_decodes_every_uplink_once_though_it_judges_every_round(tmp_path, decoded):
    words = ["--clients", "4", "--sampled", "3", "--steps", "1", "--batch", "8", "--data.partition", "labels:2"]
    words += ["--rounds", "3", "--evaluate_every", "1", "--out", str(tmp_path / "run")]
    records = list(Run.prepare(configured(None, words)).rounds())
    assert decoded.count(["sketch"]) == 3 * 3
    assert all("hamming_within" in record or "hamming_between" in record for record in records)
    assert all(record["models_apart"] > 0 for record in records)


def test_models_are_apart_by_the_mean_over_pairs_of_those_who_took_part(tmp_path):
    words = [
        "--clients",
        "4",
        "--sampled",
        "2",
        "--steps",
        "1",
        "--batch",
        "8",
        "--rounds",
        "1",
        "--out",
        str(tmp_path),
    ]
    run = Run.prepare(configured(None, [*words, "--out", str(tmp_path)]))
    (record,) = run.rounds()
    clients = checkpoint.load(tmp_path / "checkpoint.safetensors", identity(run.config)).clients
    (done,) = simulate(run.algorithm, run.data, sampled=2, rounds=1, steps=1, batch=8, device="cpu")
    first, second = clients["w"][done.cohort.ids].double()
    assert record["models_apart"] == pytest.approx(float((first - second).norm()), rel=1e-5)
    corners = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    assert distance(corners) == pytest.approx((3 + 4 + 5) / 3)


def test_a_decoded_message_can_be_heard_again_whatever_was_done_with_it():
    data = federation()
    algorithm = method(data)
    (done,) = simulate(algorithm, data, rounds=1, steps=1, batch=8, device="cpu")
    messages = list(listen(algorithm, done.uplinks, done.cohort))
    for message in listen(algorithm, messages, done.cohort):
        message["sketch"].zero_()
    heard = listen(algorithm, messages, done.cohort)
    assert torch.equal(torch.stack([message["sketch"] for message in heard]), done.log["sketch"])


def test_what_is_watched_in_messages_is_logged_for_every_client():
    data = federation()
    for done in simulate(method(data, Weighing), data, rounds=2, sampled=4, steps=1, batch=8, device="cpu"):
        messages = list(listen(method(data), done.uplinks, done.cohort))
        assert torch.equal(done.log["sketch"], torch.stack([message["sketch"] for message in messages]))
        ones = [sum(int(byte).bit_count() for byte in message["sketch"]) for message in messages]
        assert done.log["ones"].tolist() == ones


def test_a_method_that_watches_nothing_logs_nothing_more():
    data = federation()
    (done,) = simulate(method(data), data, rounds=1, steps=1, batch=8, device="cpu")
    assert {*done.log} == {"loss", "pull", "flips", "initial", "ties", "sketch"}


@pytest.mark.parametrize("partition", ["labels:2", "iid", "dirichlet:0.1"])
def test_distances_are_those_of_the_signs_pair_by_pair(partition):
    data = federation(partition)
    algorithm = method(data)
    (done,) = simulate(algorithm, data, rounds=1, steps=2, batch=8, device="cpu")
    groups = label_groups(data)
    within, between = group_hamming(hamming(done.log["sketch"], algorithm.sketch.m), groups)
    expected = {"hamming_within": within, "hamming_between": between}
    assert apart(algorithm.up, done.log, groups) == {k: v for k, v in expected.items() if v == v}


def test_a_schedule_and_its_fields_say_the_same():
    data = federation()
    schedule = Schedule(rounds=2, sampled=3, steps=2, batch=8, seed=5, chunk=2)
    algorithm = method(data)
    runs = [
        list(simulate(algorithm, data, schedule, device="cpu")),
        list(simulate(algorithm, data, rounds=2, sampled=3, steps=2, batch=8, seed=5, chunk=2, device="cpu")),
        list(simulate(algorithm, data, Schedule(9, 3, 2, 8, 5, 2), rounds=2, device="cpu")),
    ]
    assert all([done.uplinks for done in run] == [done.uplinks for done in runs[0]] for run in runs)
    judged = [evaluate(algorithm, data, runs[0][-1].progress, *given) for given in ((schedule,), ())]
    assert judged[0]["personal"].micro == judged[1]["personal"].micro
    with pytest.raises(TypeError, match="round"):
        next(simulate(algorithm, data, round=2))
