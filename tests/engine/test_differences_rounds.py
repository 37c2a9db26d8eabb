"""pFed1BS with code=entropy: the same bits in fewer bytes, whoever takes part."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.core.votes import unpack
from pfed1bs.data import federate
from pfed1bs.data import load as load_data
from pfed1bs.engine.answers import listen, say
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.exchange import hear, rows, tell
from pfed1bs.engine.ledger import traffic
from pfed1bs.engine.rounds import begin, simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.checkpoint import load, save
from pfed1bs.wire.messages import Refused


@pytest.fixture(autouse=True)
def one_thread():
    """Batched products may split their sums differently with more threads, and then some signs differ."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def federation():
    return federate(load_data("digits"), 6, "dirichlet:0.5", cap=60)


@cache
def method(code, **options):
    return PFed1BS(Task(build("mlp", federation().shape, federation().num_classes)), code=code, **options)


def run(code, rounds=6, sampled=None, chunk=None, resume=None, **options):
    arguments = {"rounds": rounds, "sampled": sampled, "steps": 3, "batch": 8, "chunk": chunk, "resume": resume}
    return list(simulate(method(code, **options), federation(), device="cpu", **arguments))


def sketches(done):
    return done.log["sketch"].tolist()


@pytest.mark.parametrize(
    ("sampled", "options"),
    [(None, {}), (4, {}), (4, {"v0": "sketch"}), (4, {"train": "all"}), (4, {"start": "own"}), (4, {"momentum": 0.5})],
)
def test_the_consensus_and_the_models_are_those_of_the_plain_run(sampled, options):
    plain, coded = run("plain", sampled=sampled, **options), run("entropy", sampled=sampled, **options)
    for a, b in zip(plain, coded, strict=True):
        assert torch.equal(a.progress.server["consensus"], b.progress.server["consensus"])
        assert torch.equal(a.progress.clients["w"], b.progress.clients["w"])
        assert sketches(a) == sketches(b)
        assert b.traffic.up == sum(map(len, b.uplinks)) <= a.traffic.up + len(b.uplinks)
        assert b.traffic.down <= a.traffic.down + 6


def test_a_run_on_digits_takes_less_than_a_third_of_the_payload():
    plain, coded = run("plain"), run("entropy")
    payload = [sum(r.traffic.total - r.traffic.side - r.traffic.once for r in done) for done in (plain, coded)]
    assert payload[1] < payload[0] / 3


def test_each_client_keeps_what_it_has_heard_and_gets_the_plain_form_after_a_gap():
    algorithm = method("entropy")
    m, before, gaps = algorithm.sketch.m, begin(algorithm, 6), set()
    for done in run("entropy", sampled=4):
        told = before.server["consensus"]
        news = tell(algorithm, before.server, {}, done.cohort)
        for client, items in zip(done.cohort.ids.tolist(), news, strict=True):
            if done.number:
                gap = int(before.seen[client]) != done.number - 1
                assert (items[0].data[20] == 255) == gap
                alone = rows(before.clients, torch.tensor([client]))
                assert torch.equal(hear(algorithm, alone, [items])[1]["consensus"], unpack(told, m))
                assert torch.equal(done.progress.clients["consensus"][client], told)
                gaps.add(gap)
        before = done.progress
    assert gaps == {True, False}


def test_a_broadcast_in_two_forms_is_counted_in_both_and_heard_as_one():
    algorithm = method("entropy")
    now = run("entropy", rounds=2)[-1].progress
    cohort = Cohort(0, 2, torch.arange(6), federation().sizes, torch.tensor([1, 1, 0, 1, -1, 0]))
    news = tell(algorithm, now.server, {}, cohort)
    assert [items[0].data[20] == 255 for items in news] == [False, False, True, False, True, True]
    plain, coded = len(news[2][0].data), len(news[0][0].data)
    bill = traffic(algorithm, news, [], cohort)
    assert (bill.down, bill.broadcast) == (3 * plain + 3 * coded, plain + coded) and coded < plain
    assert hear(algorithm, now.clients, news)[1]["consensus"].shape == (algorithm.sketch.m,)


def test_a_client_that_holds_something_else_than_the_server_thinks_refuses_the_broadcast():
    algorithm = method("entropy")
    now = run("entropy", rounds=3)[-1].progress
    cohort = Cohort(0, 3, torch.arange(6), federation().sizes, now.seen)
    lost = {**now.clients, "consensus": begin(algorithm, 6).clients["consensus"]}
    with pytest.raises(Refused, match="field 'consensus': it holds differences to other signs"):
        hear(algorithm, lost, tell(algorithm, now.server, {}, cohort))
    plain = tell(algorithm, now.server, {}, replace(cohort, seen=cohort.seen - 1))
    heard = hear(algorithm, lost, plain)[1]["consensus"]
    assert torch.equal(heard, unpack(now.server["consensus"], algorithm.sketch.m))


def test_an_answer_is_the_difference_to_the_consensus_of_its_round():
    algorithm = method("entropy")
    now = run("entropy", rounds=2)[-1].progress
    cohort = Cohort(0, 2, torch.arange(6), federation().sizes, now.seen)
    z = unpack(now.server["consensus"], algorithm.sketch.m).repeat(6, 1)
    clients = {**now.clients, "consensus": now.server["consensus"].expand(6, -1)}
    messages = say(algorithm, {"sketch": z}, cohort, algorithm.known(clients, "up", 2))
    assert [len(message) for message in messages] == [20 + 5] * 6
    answers = listen(algorithm, messages, cohort, algorithm.known(now.server, "up", 2))
    assert all(torch.equal(answer["sketch"], now.server["consensus"]) for answer in answers)


def test_clients_one_by_one_and_a_resumed_run_send_the_same_bytes(tmp_path):
    whole, alone = run("entropy", sampled=4), run("entropy", sampled=4, chunk=1)
    assert [r.uplinks for r in whole] == [r.uplinks for r in alone]
    assert [r.traffic for r in whole] == [r.traffic for r in alone]
    save(tmp_path / "checkpoint.safetensors", run("entropy", rounds=3, sampled=4)[-1].progress, "{}")
    rest = run("entropy", sampled=4, resume=load(tmp_path / "checkpoint.safetensors", "{}"))
    assert [r.uplinks for r in rest] == [r.uplinks for r in whole[3:]]
    assert [r.traffic for r in rest] == [r.traffic for r in whole[3:]]
