"""Replicas are compared by a checksum in every broadcast, and one that differs is replaced by the snapshot."""

import zlib
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messages import VECTORS
from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.core.errors import Failure, UserError
from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.engine import turns
from pfed1bs.engine.exchange import hear, tell
from pfed1bs.engine.replicas import alike, checksum, checksums
from pfed1bs.engine.rounds import Schedule, begin, prepare, simulate
from pfed1bs.engine.workers import PIECE
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs import checkpoint
from pfed1bs.wire.messages import HEADER, read_header
from promise import assert_same, short

EVERY = torch.arange(80)
OWN = tuple(EVERY.view(4, 20))
DATA = Federation(torch.randn(80, 64, generator=stream(0, "inputs")), EVERY % 10, OWN, OWN, EVERY, 10)
TASK = Task(build("mlp", DATA.shape, DATA.num_classes))
KEEPERS = [name for name in REGISTRY if algorithm_class(name).replicates]
keepers = pytest.mark.parametrize("name", KEEPERS)
SIZE = Schedule(rounds=6, steps=1, batch=4)


def bare(seed, name="theta"):
    return SimpleNamespace(replicates=True, seed=seed, replica=lambda state: state[name])


def rounds(algorithm, resume=None, size=SIZE, **fields):
    return list(simulate(algorithm, DATA, size, resume=resume, **fields))


def spoiled(now, client, at=3):
    """The same progress with one bit of one weight of a client's replica flipped."""
    theta = now.clients["theta"].clone()
    theta[client].view(torch.int32)[at] ^= 1 << 9  # one that rounding does not swallow
    return replace(now, clients={**now.clients, "theta": theta})


def test_these_methods_keep_replicas():
    one_bit, others = ["obda", "signsgd", "ef-sign", "stc"], ["decomfl", "ferret", "powersgd", "eden-two"]
    assert sorted(KEEPERS) == sorted(["pfed1bs-delta", "delta-float32", *one_bit, *others])


@pytest.mark.parametrize("vector", VECTORS["replicas"])
def test_the_checksum_is_the_documented_one(vector):
    method, replica = bare(int(vector["seed"], 16)), torch.tensor(vector["replica"])
    assert checksum(method, {"theta": replica}) == int(vector["checksum"], 16)
    assert checksums(method, {"theta": replica.expand(2, -1)}) == [int(vector["checksum"], 16)] * 2


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.integers(0, 2**64 - 1), st.data())
def test_any_other_bit_or_seed_is_another_checksum_and_a_row_alone_has_that_of_the_stack(values, seed, data):
    theta = torch.tensor(values).expand(3, -1).clone()
    row, at, bit = (data.draw(st.integers(0, most)) for most in (2, len(values) - 1, 31))
    theta.view(torch.int32)[row, at] ^= -(1 << 31) if bit == 31 else 1 << bit
    found = checksums(bare(seed), {"theta": theta})
    assert found == [checksum(bare(seed), {"theta": one}) for one in theta]
    assert found[row] not in (found[:row] + found[row + 1 :])
    assert checksum(bare(seed ^ 1), {"theta": theta[0]}) != found[0]


@keepers
def test_every_broadcast_holds_the_checksum_of_the_replica_it_leads_to_in_the_first_round_too(name):
    algorithm = short(name, TASK)
    now = begin(algorithm, 4)
    for done in [None, *rounds(algorithm)]:
        now = done.progress if done else now
        (item,) = prepare(algorithm, now, DATA.sizes, 0, None).news[0]
        weights = algorithm.replica(now.server).numpy().astype("<f4").tobytes()
        assert read_header(item.data).samples == zlib.crc32(bytes(8) + weights)
        after, _ = hear(algorithm, now.clients, [[item]] * 4)
        assert all(own.numpy().astype("<f4").tobytes() == weights for own in after["theta"])


def test_long_replicas_have_the_same_checksum_on_any_number_of_threads(threads):
    theta = torch.randn(2 * (PIECE // 4) + 3, generator=stream(0, "replica"))
    for count in (1, 3):
        threads(count)
        assert checksum(bare(7), {"theta": theta}) == zlib.crc32((7).to_bytes(8, "little") + theta.numpy().tobytes())


@keepers
def test_a_client_whose_replica_differs_says_so_is_not_counted_and_gets_the_snapshot(name):
    algorithm = short(name, TASK)
    first, second = rounds(algorithm, rounds=2)
    broken = spoiled(second.progress, client=1)
    third, fourth = rounds(algorithm, broken, rounds=4)
    assert third.cohort.ids.tolist() == [0, 2, 3] and float(third.log["differing"]) == 1
    assert third.traffic.up == sum(map(len, third.uplinks)) + HEADER.size  # its answer is a header alone
    assert third.traffic.down == second.traffic.down or name == "stc"  # it was sent what the others were
    assert third.progress.lost == {1} and third.progress.seen.tolist() == [2, 1, 2, 2]
    for key, value in third.progress.clients.items():
        assert torch.equal(value[1], broken.clients[key][1])
    told = prepare(algorithm, third.progress, DATA.sizes, 0, None).news
    assert [[item.kind for item in items] for items in told] == [["down"], ["snapshot"], ["down"], ["down"]]
    assert fourth.cohort.ids.tolist() == [0, 1, 2, 3] and "differing" not in fourth.log
    assert fourth.progress.lost == frozenset() and fourth.progress.seen.tolist() == [3] * 4
    assert all(torch.equal(own, fourth.progress.clients["theta"][0]) for own in fourth.progress.clients["theta"])


@pytest.mark.parametrize("name", [name for name in KEEPERS if name != "delta-float32"])  # whose snapshot is no longer
def test_a_client_that_was_away_two_rounds_and_whose_replica_differs_is_found_and_gets_the_snapshot(name):
    algorithm = short(name, TASK)
    (first,), others = rounds(algorithm, rounds=1), replace(DATA, newcomers=torch.tensor([1]))
    away = list(simulate(algorithm, others, SIZE, rounds=3, resume=first.progress))[-1].progress
    for broken in (away, spoiled(away, client=1)):
        news = prepare(algorithm, broken, DATA.sizes, 0, None).news[1]
        assert [(item.kind, item.round) for item in news] == [("down", 1), ("down", 2), ("down", 3)]
        (done,) = rounds(algorithm, broken, rounds=4)
        differ = {1} if broken is not away else set()
        assert done.progress.lost == differ and {*done.cohort.ids.tolist()} == {0, 1, 2, 3} - differ
    then = prepare(algorithm, done.progress, DATA.sizes, 0, None).news
    assert [items[0].kind for items in then] == ["down", "snapshot", "down", "down"]


@keepers
def test_copies_are_alike_until_one_bit_of_one_differs(name):
    algorithm = short(name, TASK)
    now = begin(algorithm, 4)
    assert alike(algorithm, now.clients) and not alike(algorithm, spoiled(now, client=2).clients)
    assert alike(make("fedavg", TASK), now.clients), "a method without copies has none that differ"


@pytest.mark.parametrize("name", ["pfed1bs-delta", "stc"])
@pytest.mark.parametrize("chunk", [None, 2, 1])  # one alone has nobody to be compared with but the server
def test_clients_that_begin_before_their_replicas_are_compared_come_to_the_same(monkeypatch, name, chunk):
    algorithm, asked = short(name, TASK), []
    starts = [begin(algorithm, 4), spoiled(begin(algorithm, 4), client=2)]
    later = [rounds(algorithm, start, rounds=3, chunk=chunk) for start in starts]
    monkeypatch.setattr(turns, "early", lambda clients: asked.append(1) or True)
    sooner = [rounds(algorithm, start, rounds=3, chunk=chunk) for start in starts]
    assert asked
    for one, other in zip(chain(*later), chain(*sooner), strict=True):
        assert one.uplinks == other.uplinks and one.cohort.ids.tolist() == other.cohort.ids.tolist()
        assert_same(one.progress.clients, other.progress.clients)
        assert one.log.keys() == other.log.keys()


@keepers
@pytest.mark.parametrize("chunk", [1, 2])
def test_the_others_have_the_same_bits_however_many_are_computed_at_once(name, chunk):
    algorithm = short(name, TASK)
    start = spoiled(begin(algorithm, 4), client=2)
    whole, parts = rounds(algorithm, start, rounds=3), rounds(algorithm, start, rounds=3, chunk=chunk)
    assert [done.uplinks for done in parts] == [done.uplinks for done in whole]
    assert [done.traffic for done in parts] == [done.traffic for done in whole]
    assert_same(parts[-1].progress.clients, whole[-1].progress.clients)


@keepers
def test_a_client_with_another_seed_is_found_in_the_first_round_and_no_snapshot_makes_it_count(name):
    server, stranger = short(name, TASK), short(name, TASK, seed=5)
    now = begin(server, 2)
    for t in range(3):
        (mine,) = tell(server, now.server, now.history, prepare(server, now, DATA.sizes[:2], 0, None).cohort, {1})[1:]
        heard, _ = hear(stranger, {k: v[1:] for k, v in begin(stranger, 2).clients.items()}, [mine])
        assert mine[0].kind == ("snapshot" if t else "down")
        assert checksums(stranger, heard) != [read_header(mine[-1].data).samples]
        *_, done = simulate(server, DATA, rounds=t + 1, steps=1, batch=4)
        now = replace(done.progress, seen=done.progress.seen[:2])


def test_a_run_in_which_all_replicas_differ_stops_with_the_reason():
    algorithm = make("signsgd", TASK)
    now = begin(algorithm, 4)
    now = replace(now, clients={**now.clients, "theta": now.clients["theta"] + 1})
    with pytest.raises(Failure, match="round 0: the replica of every client is another than the server's"):
        rounds(algorithm, now)


def test_who_has_lost_its_replica_is_saved(tmp_path):
    algorithm, path = make("stc", TASK), tmp_path / "checkpoint.safetensors"
    start = spoiled(begin(algorithm, 4), client=3)
    whole = rounds(algorithm, start, rounds=3)
    checkpoint.save(path, whole[0].progress, "{}")
    rest = rounds(algorithm, checkpoint.load(path, "{}"), rounds=3)
    assert whole[0].progress.lost == {3} and [done.traffic for done in rest] == [done.traffic for done in whole[1:]]
    assert_same(rest[-1].progress.clients, whole[-1].progress.clients)


def test_a_checkpoint_with_broadcasts_of_an_older_version_is_refused_and_one_without_is_read(tmp_path):
    algorithm, path = make("stc", TASK), tmp_path / "checkpoint.safetensors"
    now = rounds(algorithm, rounds=2, sampled=2)[-1].progress
    assert now.history
    old = {r: b"\x02" + data[1:] for r, data in now.history.items()}
    checkpoint.save(path, replace(now, history=old), "{}")
    with pytest.raises(UserError, match="holds broadcasts of version 2, this release sends version 3; finish it with"):
        checkpoint.load(path, "{}")
    checkpoint.save(path, replace(now, history={}), "{}")
    assert checkpoint.load(path, "{}").history == {}
