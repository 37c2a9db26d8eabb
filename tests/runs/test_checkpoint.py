"""A file of tensors that is damaged, foreign or cannot be written: never a traceback, never other numbers."""

import errno
import random
import resource
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from pfed1bs.core.errors import UserError
from pfed1bs.engine.rounds import Progress
from pfed1bs.runs import checkpoint

IDENTITY = '{"batch": 8, "algorithm": {"name": "local", "lr": 0.1}, "data": {"name": "digits", "cap": null}}'


def progress(clients=3):
    server = {"w": torch.arange(5.0), "steps": torch.tensor(7), "bits": torch.tensor([1, 255], dtype=torch.uint8)}
    states = {"w": torch.arange(4.0 * clients).view(clients, 4).mT.contiguous().mT, "none": torch.zeros(clients, 0)}
    return Progress(3, server, states, torch.arange(clients), {1: b"\3one", 2: b"\3\0\xff"})


def saved(folder):
    checkpoint.save(folder / "checkpoint.safetensors", progress(), IDENTITY)
    return folder / "checkpoint.safetensors"


def same(ours, theirs):
    parts = [(ours.server, theirs.server), (ours.clients, theirs.clients), ({"": ours.seen}, {"": theirs.seen})]
    equal = all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in parts)
    rest = [(one.round, one.history, one.lost, one.resting) for one in (ours, theirs)]
    return equal and rest[0] == rest[1]


def test_what_is_saved_is_loaded(tmp_path):
    assert same(checkpoint.load(saved(tmp_path), IDENTITY), progress())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_who_has_lost_its_replica_and_who_rests_is_saved_and_a_checkpoint_without_it_is_read(tmp_path):
    path, said = saved(tmp_path), replace(progress(), lost=frozenset({2}), resting=frozenset({0, 1}))
    assert not {"lost", "resting"} & {*load_file(path)} and checkpoint.load(path, IDENTITY).resting == frozenset()
    checkpoint.save(path, said, IDENTITY)
    assert same(checkpoint.load(path, IDENTITY), said)


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    path, generator = saved(tmp_path), random.Random(0)
    whole, found = path.read_bytes(), 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << generator.randrange(8)]) + whole[at + 1 :])
        try:
            assert same(checkpoint.load(path, IDENTITY), progress())
        except UserError as error:
            assert str(path) in str(error) and "another" in error.hint
            found += 1
    assert found > 0.95 * len(whole)  # the rest are letters of the header that change nothing


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "has no format, this version reads 2 and 3"),
        ({"format": "1", "identity": IDENTITY, "round": "3"}, "has format 1, this version reads 2 and 3"),
        ({"format": "2", "identity": IDENTITY, "round": "3"}, "its checksum is not that of its content"),
        ({"format": "2", "checksum": "right", "round": "3"}, "does not say which configuration it belongs to"),
        ({"format": "2", "checksum": "right", "identity": IDENTITY}, "is no checkpoint of a run"),
    ],
)
def test_a_file_without_format_checksum_identity_or_round_is_refused(tmp_path, metadata, message):
    tensors = {"seen": torch.arange(2)}
    if metadata and "checksum" in metadata:
        del metadata["checksum"]
        metadata["checksum"] = checkpoint.checksum(tensors, metadata)
    save_file(tensors, tmp_path / "checkpoint.safetensors", metadata)
    with pytest.raises(UserError, match=message):
        checkpoint.load(tmp_path / "checkpoint.safetensors", IDENTITY)


def test_another_configuration_is_refused_by_the_names_of_its_flags(tmp_path):
    other = IDENTITY.replace("0.1", "0.2").replace("null", "50").replace('"batch": 8, ', "")
    expected = "algorithm.lr was 0.1, now 0.2, batch was 8, now not set, data.cap was None, now 50"
    with pytest.raises(UserError, match=expected):
        checkpoint.load(saved(tmp_path), other)


def test_a_disk_that_cannot_hold_a_checkpoint_leaves_the_old_one_whole(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    larger = progress(clients=100_000)
    for free, number in ((10**12, errno.EIO), (1000, errno.ENOSPC)):
        usage = shutil.disk_usage(tmp_path)._replace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError) as error:
                checkpoint.save(path, larger, IDENTITY)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.errno == number and error.value.filename.endswith("checkpoint.part")
        assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_file_is_one_that_others_can_read(tmp_path):
    assert torch.equal(load_file(saved(tmp_path))["server/w"], torch.arange(5.0))
