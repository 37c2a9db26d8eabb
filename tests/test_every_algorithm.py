"""One suite for all registered methods: a new one is picked up by its registry line."""

from dataclasses import fields
from functools import cache, lru_cache

import numpy as np
import pytest
import torch

from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.core.options import PROVIDED
from pfed1bs.data import Federation, federate
from pfed1bs.data import load as load_data
from pfed1bs.engine import memory
from pfed1bs.engine.answers import listen
from pfed1bs.engine.contract import Algorithm, Cohort
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rounds import Schedule, begin, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.engine.store import Store
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.checkpoint import STATES, load, save
from promise import assert_messages, assert_same, short

CLIENTS = 6
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(scope="module", params=REGISTRY)
def name(request) -> str:
    """A method; its tests follow each other."""
    return request.param


@cache
def federation() -> Federation:
    return federate(load_data("digits"), CLIENTS, "dirichlet:0.5", cap=60)


@cache
def method(name: str) -> Algorithm:
    data = federation()
    return short(name, Task(build("mlp", data.shape, data.num_classes)))


def run(name: str, rounds: int = 3, sampled: int | None = 4, device: str = "cpu", **more):
    """Rounds on the CPU, where bits are promised, unless a test says otherwise."""
    schedule = Schedule(rounds, sampled, steps=2, batch=8, chunk=more.pop("chunk", None))
    return list(simulate(method(name), federation(), schedule, device=device, **more))


@lru_cache(maxsize=2)
def whole(name: str, device: str = "cpu"):
    """Four rounds that nobody disturbs, which several tests of a method compare with theirs."""
    return run(name, rounds=4, device=device)


def in_files(monkeypatch) -> None:
    """From now on no states are small enough to stay in memory."""
    monkeypatch.setattr(memory, "SMALL", 0)
    monkeypatch.setattr(memory, "WHOLE", 0)
    monkeypatch.setattr(memory, "free", lambda device: 0)


@devices
def test_same_seed_gives_the_same_bits(name, device):
    first, second = whole(name, device)[2], run(name, device=device)[-1]
    assert first.uplinks == second.uplinks and first.traffic == second.traffic
    assert_same(first.progress.clients, second.progress.clients)
    assert_same(first.progress.server, second.progress.server)


@devices
def test_save_and_resume_equals_uninterrupted_also_with_states_in_files(name, device, tmp_path, monkeypatch):
    expected = whole(name, device)
    in_files(monkeypatch)
    chunk = None if device == "cpu" else CLIENTS  # a GPU promises no bits to parts of a stack
    begun = run(name, rounds=2, device=device, chunk=chunk, states=tmp_path / STATES)[-1].progress
    save(tmp_path / "checkpoint.safetensors", begun, "{}")
    resume = load(tmp_path / "checkpoint.safetensors", "{}")
    rest = run(name, rounds=4, device=device, chunk=chunk, resume=resume)
    assert isinstance(rest[-1].progress.clients, Store)
    assert [done.number for done in rest] == [2, 3]
    assert [done.uplinks for done in rest] == [done.uplinks for done in expected[2:]]
    assert [done.traffic for done in rest] == [done.traffic for done in expected[2:]]
    assert_same(rest[-1].progress.server, expected[-1].progress.server)
    assert_same(rest[-1].progress.clients, expected[-1].progress.clients)


def on_threads(count: int, *arguments, **options):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run(*arguments, **options)
    finally:
        torch.set_num_threads(before)


def test_a_client_alone_equals_itself_in_the_stack_on_any_number_of_threads(name):
    expected = whole(name)[:3]
    for other in (on_threads(1, name, chunk=1), on_threads(2, name)):
        assert_messages(other, expected)  # MKL's reproducible mode makes it true on every processor (test_same_bits.py)
        assert_same(other[-1].progress.clients, expected[-1].progress.clients)


@devices
def test_global_random_state_is_never_touched(name, device):
    federation(), method(name)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    done = run(name, rounds=2, device=device)[-1]
    evaluate(method(name), federation(), done.progress, steps=2, batch=8)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()


def test_clients_that_are_not_sampled_stay_as_they_were(name):
    if method(name).trains == "all":
        assert method(name).trains == "all"
        return
    start = begin(method(name), CLIENTS)
    done = run(name, rounds=1, sampled=2)[-1]
    absent = torch.tensor([k for k in range(CLIENTS) if k not in done.cohort.ids.tolist()])
    assert_same(rows(start.clients, absent), rows(done.progress.clients, absent))


def test_messages_have_the_declared_layout_and_training_changes_weights(name):
    algorithm, data = method(name), federation()
    server, clients = algorithm.init(CLIENTS)
    ids = torch.arange(CLIENTS)
    cohort = Cohort(0, 0, ids, data.sizes, torch.full((CLIENTS,), -1))
    received = {} if algorithm.replicates else algorithm.broadcast(server, cohort)
    assert list(received) in ([], list(algorithm.down))
    state, said = algorithm.local(clients, received, cohort, data.batches(ids, 0, 0, 2, 8))
    assert list(said) == list(algorithm.up)
    assert set(clients) <= set(state) and all(key in clients or key.startswith("log/") for key in state)
    assert not torch.equal(state["w"], clients["w"])


@devices
def test_it_learns(name, device):
    data, algorithm = federation(), make(name, method(name).task)
    before = evaluate(algorithm, data, begin(algorithm, CLIENTS), steps=1, batch=8)["personal"].micro  # neighbours: 75
    *_, last = simulate(algorithm, data, rounds=15, steps=10, batch=16, device=device)
    after = evaluate(algorithm, data, last.progress, steps=10, batch=16)["personal"].micro
    assert 100 - after < min(40, 0.6 * (100 - before))


@devices
def test_nothing_is_sent_that_is_not_counted(name, device):
    algorithm = method(name)
    for done in whole(name, device):
        assert done.traffic.up == sum(map(len, done.uplinks))
        assert (done.traffic.up > 0) == bool(algorithm.up)
        assert (done.traffic.down > 0) == bool(algorithm.down)
        assert done.traffic.broadcast <= done.traffic.down


def test_every_option_has_a_default_and_the_class_says_where_it_comes_from(name):
    found = algorithm_class(name)
    assert found.__doc__ and not found.__doc__.startswith(found.__name__ + "(")
    assert found.paper and isinstance(found.personalises, bool)
    for option in fields(found):
        if option.name not in PROVIDED:
            assert option.default is not option.default_factory, option.name
            assert option.metadata["help"], f"{option.name} has no help"


def test_the_state_of_the_server_has_its_names_shapes_and_types_from_the_start(name):
    begun, done = method(name).init(CLIENTS)[0], whole(name)[-1].progress.server
    assert {key: (x.shape, x.dtype) for key, x in begun.items()} == {key: (x.shape, x.dtype) for key, x in done.items()}


def test_weights_are_compared_by_checksum_where_clients_have_copies_and_nowhere_else(name):
    algorithm = method(name)
    found = [algorithm.replica(state) for state in algorithm.init(2)]
    assert [x is not None for x in found] == [algorithm.replicates] * 2


def test_a_message_too_few_or_too_many_is_refused(name):
    before, last = whole(name)[-2:]
    if not method(name).up or name == "fedproto":  # whose messages say themselves how much they count
        return
    messages = [*listen(method(name), last.uplinks, last.cohort)]
    for wrong in (messages[1:], messages + messages[:1]):
        with pytest.raises((ValueError, RuntimeError)):  # the second: of torch, for lengths that differ
            method(name).aggregate(before.progress.server, wrong, last.cohort)


def test_which_methods_personalise():
    shared = {"fedavg", "fedavg-ft", "fedprox", "scaffold", "obda", "obcsaa", "zsign", "eden", "fedbat", "signsgd"}
    shared |= {"ef-sign", "stc", "fedpaq", "ferret", "powersgd", "eden-two", "decomfl"}
    assert {name for name in REGISTRY if not algorithm_class(name).personalises} == shared
