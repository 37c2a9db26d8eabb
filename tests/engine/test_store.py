"""Client states in files: the same numbers, only for those who took part, and whole after any crash."""

import random
import resource
from dataclasses import replace

import pytest
import torch
from test_memory import federation
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.core.errors import Failure, UserError
from pfed1bs.engine import memory
from pfed1bs.engine.contract import Cohort, stack
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rest import over, resting
from pfed1bs.engine.rounds import Progress, begin, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.engine.slabs import Slabs
from pfed1bs.engine.store import Store
from pfed1bs.nn.task import Task
from pfed1bs.runs import checkpoint
from promise import assert_same

SOME = torch.tensor([1, 4])
SIZE = {"sampled": 4, "steps": 2, "batch": 3, "device": "cpu"}


@pytest.fixture
def files(monkeypatch):
    monkeypatch.setattr(memory, "SMALL", 0)


def states(clients=6):
    """One field that is the same for all, one that is not, and one of few bytes."""
    own = torch.arange(10.0 * clients).view(clients, 10)
    return {"same": stack(torch.arange(8.0), clients), "own": own, "few": torch.arange(clients)}


def store(folder=None, clients=6):
    return Store.of(states(clients), Slabs(folder))


def changed(before, at, by):
    """A store in which some clients' numbers are larger."""
    part = {name: value + by for name, value in before.rows(at).items()}
    return before.with_rows([before.put(at, part)])


def used(found):
    """Places of all files that are not free."""
    return sum(slab.end - len(slab.free) for slab in found.slabs.all.values())


def test_a_store_gives_back_the_states_it_was_given_and_those_that_replace_them():
    first = store()
    assert_same(dict(first), {name: value.contiguous() for name, value in states().items()})
    second = changed(first, SOME, 100)
    assert_same(rows(second, SOME), {name: value[SOME] + 100 for name, value in states().items()})
    assert_same(dict(first), {name: value.contiguous() for name, value in states().items()})  # it does not change
    with pytest.raises(ValueError, match="clients are 0 .. 5"):
        first.rows(torch.tensor([6]))


def test_a_field_that_all_have_in_common_is_written_once():
    alike = Store.of({"w": stack(torch.arange(8.0), 1000)}, Slabs(None))
    assert used(alike) == 1 and not alike.own
    round = alike.with_rows([alike.put(torch.arange(s, s + 3), {"w": stack(torch.ones(8), 3)}) for s in (0, 10, 20)])
    assert used(round) == 2 and len(round.own) == 9


def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path):
    slab, limits = Slabs(tmp_path).of(40), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        kept = slab.put(torch.zeros(40, dtype=torch.uint8))
        with pytest.raises(OSError, match="40.rows"):
            slab.put(torch.ones(40, dtype=torch.uint8))
        assert kept.place == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_places_are_used_again_when_nobody_refers_to_them():
    now = store()
    for _ in range(20):
        now = changed(now, SOME, 1)
    assert now.slabs.of(40).end == 6 + len(SOME)


def test_rows_that_a_checkpoint_names_stay_until_the_next_one_is_whole(tmp_path):
    path, slabs = tmp_path / "checkpoint.safetensors", tmp_path / checkpoint.STATES
    now = Progress(1, {}, store(slabs), torch.zeros(6))
    checkpoint.save(path, now, "{}")
    wanted = dict(now.clients)
    for _ in range(5):  # the process goes on for a while, and is killed
        now = replace(now, clients=changed(now.clients, SOME, 1))
    found = checkpoint.load(path, "{}").clients
    assert_same(dict(found), wanted)
    checkpoint.save(path, now, "{}")
    assert_same(dict(checkpoint.load(path, "{}").clients), dict(now.clients))
    places = used(now.clients)
    for _ in range(5):
        now = replace(now, clients=changed(now.clients, SOME, 1))
    assert used(now.clients) <= places + 2 * len(SOME)  # those of the checkpoint, and what has changed since


def test_a_checkpoint_writes_what_has_changed_and_where_all_is(tmp_path):
    path, folder = tmp_path / "checkpoint.safetensors", tmp_path / checkpoint.STATES
    large = Store.of({"w": torch.randn(50, 20_000)}, Slabs(folder))
    checkpoint.save(path, Progress(1, {}, large, torch.zeros(50)), "{}")
    before = (folder / "80000.rows").read_bytes()
    later = changed(large, SOME, 1)
    checkpoint.save(path, Progress(2, {}, later, torch.zeros(50)), "{}")
    after = (folder / "80000.rows").read_bytes()
    assert after.startswith(before) and len(after) == len(before) + 2 * 80_000
    assert path.stat().st_size < 10_000


def test_a_damaged_file_of_rows_is_noticed(tmp_path):
    path, folder = tmp_path / "checkpoint.safetensors", tmp_path / checkpoint.STATES
    checkpoint.save(path, Progress(1, {}, store(folder), torch.zeros(6)), "{}")
    file, generator = folder / "40.rows", random.Random(0)
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << generator.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(Failure, match="40.rows is damaged"):
            dict(checkpoint.load(path, "{}").clients)
        file.write_bytes(whole[:at])
        with pytest.raises(UserError, match="40.rows is cut off"):
            checkpoint.load(path, "{}")
    file.unlink()
    with pytest.raises(UserError, match="40.rows is missing"):
        checkpoint.load(path, "{}")


def test_a_checkpoint_that_does_not_say_where_rows_are_is_refused(tmp_path):
    path, folder = tmp_path / "checkpoint.safetensors", tmp_path / checkpoint.STATES
    checkpoint.save(path, Progress(1, {}, store(folder), torch.zeros(6)), "{}")
    good, metadata = checkpoint.read(path, "{}")
    kept = {key: metadata[key] for key in ("format", "round", "identity")}
    for key in [key for key in good if key.startswith("store/")]:
        bad = [{k: v for k, v in good.items() if k != key}]
        if key.startswith("store/index/"):
            bad += [{**good, key: good[key] + 1000}, {**good, key: good[key].flatten()[:-1].contiguous()}]
        for tensors in bad:
            checkpoint.write(path, tensors, kept)
            with pytest.raises(UserError):
                checkpoint.load(path, "{}")


def test_states_elsewhere_are_no_part_of_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="the clients' states are in None"):
        checkpoint.save(tmp_path / "checkpoint.safetensors", Progress(1, {}, store(), torch.zeros(6)), "{}")


def test_a_run_that_begins_anew_does_not_keep_old_rows(tmp_path, files):
    method = make("fedavg", Task(nn.Linear(8, 3)))
    for _ in range(2):
        [done] = simulate(method, federation(), rounds=1, states=tmp_path, **SIZE)
        assert (tmp_path / f"{4 * method.task.n}.rows").stat().st_size == 5 * 4 * method.task.n  # four and the first
    assert len(done.progress.clients.own) == 4


def test_only_clients_that_took_part_have_rows_and_a_replica_has_one_for_a_round(files):
    method = make("pfed1bs-delta", Task(nn.Linear(8, 3)))
    done = [*simulate(method, federation(clients=40), rounds=3, **SIZE)]
    for number, one in enumerate(done):
        taken = {client for earlier in done[: number + 1] for client in earlier.cohort.ids.tolist()}
        assert {*one.progress.clients.own} == taken
    copies = {id(fields["theta"]) for fields in done[-1].progress.clients.own.values()}
    assert len(copies) == 3


@pytest.mark.parametrize("name", ["pfed1bs", "pfed1bs-delta", "fedavg", "local", "ef-sign", "apfl", "scaffold"])
def test_the_first_states_of_many_clients_are_one_row(name):
    method = resting(make(name, Task(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))), 0.1)
    states = begin(method, 1_000_000).clients
    assert {name: value.stride(0) for name, value in states.items() if value[0].nbytes > 16 and value.stride(0)} == {}


def test_newcomers_read_their_row_once_and_hear_what_they_missed_as_one(files, monkeypatch, threads):
    threads(1)  # several share the clients of a round
    method, heard = resting(make("pfed1bs-delta", Task(nn.Linear(8, 3))), 0.1), []
    absorb = type(method.method).absorb
    monkeypatch.setattr(
        type(method.method),
        "absorb",
        lambda self, clients, *rest: heard.append(len(clients["w"])) or absorb(self, clients, *rest),
    )
    now = None
    for t in range(3):  # clients 0 .. 3, then 4 .. 7, then the last of these and three newcomers
        among = torch.arange(4) + (0, 4, 7)[t]
        data = replace(federation(clients=40), newcomers=torch.tensor([k for k in range(40) if k not in among]))
        now = next(simulate(method, data, rounds=t + 1, resume=now, **SIZE)).progress
    assert heard == [1, 3, 4], "a round is heard by all as one, or by each that has missed it"
    assert now.clients.rows(torch.tensor([20, 30]))["w"].stride(0) == 0
    assert now.clients.rows(torch.tensor([9, 30]))["w"].stride(0) > 0


def test_models_are_judged_and_rest_from_files_as_from_memory(monkeypatch):
    method = resting(make("pfed1bs-delta", Task(nn.Linear(8, 3))), 1e9)
    data, ends = federation(), []
    for small in (memory.SMALL, 0):
        monkeypatch.setattr(memory, "SMALL", small)
        ends.append([*simulate(method, data, rounds=3, **SIZE)][-1].progress)
    assert isinstance(ends[1].clients, Store)
    awake = ~ends[0].clients["rest/on"]
    assert 0 < awake.sum() < 20 and torch.equal(awake, ~ends[1].clients["rest/on"])
    assert [over(ends[1].clients, mask.nonzero().flatten()) for mask in (awake, ~awake)] == [False, True]
    ours, theirs = (evaluate(method, data, one, steps=2, batch=3) for one in ends)
    assert all(torch.equal(ours[name].loss, theirs[name].loss) for name in ours)


def test_few_clients_of_many_and_all_of_few_stay_in_memory_and_large_states_do_not(monkeypatch):
    states, cpu = {"w": torch.zeros(10, 100)}, torch.device("cpu")
    for small, whole, some, stored in (
        (4000, 0, True, False),
        (3999, 9999, True, True),
        (0, 4000, False, False),
        (0, 3999, False, True),
    ):
        monkeypatch.setattr(memory, "SMALL", small)
        monkeypatch.setattr(memory, "WHOLE", whole)
        assert isinstance(memory.housed(states, some, cpu), Store) == stored


def test_a_cohort_of_one_gets_the_row_of_its_client():
    method = make("pfed1bs", Task(nn.Linear(8, 3)), start="own")
    server, clients = method.init(5)
    own = Store.of(clients, Slabs(None))
    at = torch.tensor([3])
    cohort = Cohort(0, 0, at, torch.tensor([4]), torch.tensor([-1]))
    assert_same(rows(own, cohort.ids), {name: value[at] for name, value in clients.items()})
