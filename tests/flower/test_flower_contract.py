"""The contract is structural: what forwards its names is a method in the simulator and in a network."""

import pytest

from flower_desk import Desk
from pfed1bs.engine.contract import CONTRACT
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.runs.checkpoint import load, save
from pfed1bs.runs.diagnostics import potentials
from promise import assert_same

SIZE = {"steps": 2, "batch": 8, "sampled": 3}
RUN = {"rounds": 4, "clients": 5, **SIZE, "data.cap": 60, "data.partition": "dirichlet:0.5"}
around = pytest.mark.parametrize("name", ["fedavg", "pfed1bs-delta", "pfed1bs", "signsgd", "fedproto"])


class Wrapped:
    """Another method under the names of the contract, and nothing else of it."""

    def __init__(self, inner):
        self.task = inner.task
        self.__inner = inner


def forwarded(name):
    return property(lambda self: getattr(self._Wrapped__inner, name))


for part in CONTRACT:
    setattr(Wrapped, part, forwarded(part))


@pytest.fixture
def desks(name, tmp_path, threads):
    """The bare method and the wrapped one, each in a network of its own."""
    threads(1)
    bare, wrapped = (Desk({**RUN, "algorithm.name": name}, tmp_path / kind) for kind in ("bare", "wrapped"))
    wrapped.algorithm = Wrapped(bare.algorithm)
    assert Wrapped.__mro__ == (Wrapped, object)
    return bare, wrapped


def same(ours, theirs):
    assert ours.uplinks == theirs.uplinks and ours.traffic == theirs.traffic
    assert_same(ours.log, theirs.log)
    assert_same(ours.progress.server, theirs.progress.server)
    assert_same(ours.progress.clients, theirs.progress.clients)


@around
def test_a_wrapper_is_simulated_judged_saved_and_resumed_with_the_bits_of_the_method(desks, tmp_path):
    bare, wrapped = desks
    expected = list(simulate(bare.algorithm, bare.data, rounds=4, **SIZE))
    first = list(simulate(wrapped.algorithm, bare.data, rounds=2, **SIZE))
    save(tmp_path / "checkpoint.safetensors", first[-1].progress, "{}")
    saved = load(tmp_path / "checkpoint.safetensors", "{}")
    rest = list(simulate(wrapped.algorithm, bare.data, rounds=4, resume=saved, **SIZE))
    for ours, theirs in zip([*first, *rest], expected, strict=True):
        same(ours, theirs)
    now = expected[-1].progress
    found, wanted = (evaluate(algorithm, bare.data, now, **SIZE) for algorithm in (wrapped.algorithm, bare.algorithm))
    assert set(found) == set(wanted)
    for kind, score in found.items():
        assert_same(score.sums, wanted[kind].sums)
    assert potentials(wrapped.algorithm, bare.data, now, None) == potentials(bare.algorithm, bare.data, now, None)


@around
def test_a_wrapper_in_a_network_has_the_bits_of_the_method(desks):
    servers = [desk.server() for desk in desks]
    expected, found = (list(server.rounds()) for server in servers)
    for ours, theirs in zip(found, expected, strict=True):
        same(ours, theirs)
    bare, wrapped = (desk.states(done[-1].progress) for desk, done in zip(desks, (expected, found), strict=True))
    for client, state in bare.items():
        assert_same(wrapped[client], state)
    (_, wanted), (_, scores) = (server.judge(expected[-1].progress) for server in servers)
    assert set(scores) == set(wanted) and "personal" in scores
    for kind, score in scores.items():
        assert_same(score.sums, wanted[kind].sums)
