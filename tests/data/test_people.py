"""Samples with owners: readers, the natural partition, newcomers, and what inputs are normalised by."""

import gzip
import json
import os
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from pfed1bs.data import federate, load
from pfed1bs.data.dataset import dataset
from pfed1bs.data.people import LETTERS, WINDOW, filters, spectrogram, windows


@pytest.fixture
def root():
    place = Path(os.environ.get("PFED1BS_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (place / "audiomnist").is_dir():
        pytest.skip(f"no data sets in {place}; set PFED1BS_DATA to test with them")
    return place


def owned(owners, shape=(1,), split=8):
    """Samples that are the number of their owner, with as many in the training part."""
    x = np.array(owners, np.float32).reshape(-1, *(1 for _ in shape)) * np.ones(shape, np.float32)
    y, owners = np.arange(len(owners)) % 2, np.array(owners)
    return dataset("own", (x[:split], y[:split], x[split:], y[split:], owners[:split], owners[split:]))


def test_audiomnist_has_sixty_speakers_with_fifty_recordings_of_every_digit(root):
    pytest.importorskip("PIL")
    data = load("audiomnist", root)
    assert data.shape == (1, 32, 32) and data.num_classes == 10 and len(data.owners) == 30000
    found = federate(data, 60, "natural", cap=20, newcomers=0.5)
    assert found.sizes.tolist() == [20] * 60 and [len(rows) for rows in found.test] == [125] * 60
    assert found.owners == tuple(map(str, range(60))) and len(found.newcomers) == len(found.present) == 30
    assert abs(found.inputs.mean()) < 0.05 and abs(found.inputs.std() - 1) < 0.05


def test_shakespeare_has_437_roles_and_their_next_characters(root):
    data = load("shakespeare", root)
    assert data.shape == (WINDOW,) and data.num_classes == len(LETTERS) == 71 and not data.labelled
    assert len(np.unique(data.owners)) == 437
    assert (data.train_inputs[:, 1:] == data.train_labels[:, :-1]).all()
    found = federate(data, 437, "natural", cap=20)
    hamlet = found.owners.index("hamlet/HAMLET")
    text = "".join(LETTERS[i] for i in found.inputs[found.train[hamlet]].flatten())
    assert (
        found.inputs.dtype == torch.int64
        and len(text) == 20 * 64
        and " " in text
        and found.constants["normalise"] == "none"
    )


def test_windows_hold_all_letters_in_order_and_what_follows_each():
    text = "".join(LETTERS[i % 71] for i in range(2 * WINDOW + 30))
    x, y, *_, owners, _ = windows([("a", text), ("b", text), ("short", "hello"), ("c", "\u00e9" * 200)])
    rows = np.concatenate([x[owners == "a"]])
    assert (y[:, :-1] == x[:, 1:]).all() and set(owners) <= {"a", "b", "c"} and rows.shape[1] == WINDOW
    assert (x[owners == "c"] == LETTERS.index(" ")).all()


def test_shakespeare_of_leaf_is_put_together_from_its_sliding_windows(tmp_path):
    text = "To be, or not to be: that is the question. " * 40
    (tmp_path / "shakespeare" / "all_data").mkdir(parents=True)
    path = tmp_path / "shakespeare" / "all_data" / "all_data.json"
    pairs = [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
    users = {name: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for name in ("A", "B")}
    path.write_text(json.dumps({"user_data": users}))
    (tmp_path / "own").mkdir()
    with gzip.open(tmp_path / "own" / "roles.json.gz", "wt") as file:
        json.dump([{"play": "p", "role": role, "text": text} for role in "AB"], file)
    leaf, own = load("shakespeare", tmp_path), load("shakespeare", _below(tmp_path / "own"))
    assert (leaf.train_inputs == own.train_inputs).all() and sorted({*leaf.owners.tolist()}) == ["A", "B"]
    users["A"]["x"].pop(3)
    path.write_text(json.dumps({"user_data": users}))
    with pytest.raises(ValueError, match="all_data.json is damaged.*not all of its text in order"):
        load("shakespeare", tmp_path)


def _below(folder):
    """The folder under the name of the data set."""
    (folder / "shakespeare").mkdir()
    (folder / "roles.json.gz").rename(folder / "shakespeare" / "roles.json.gz")
    return folder


def test_a_tone_is_loudest_in_the_band_of_its_frequency_and_silence_is_black():
    pytest.importorskip("scipy")
    hertz = 1000.0
    image = spectrogram(0.1 * np.sin(2 * np.pi * hertz * np.arange(24000) / 48000), 48000)
    assert image.shape == (32, 32) and image.max() == 255 and (image[:, :6] == 0).all() and (image[:, -6:] == 0).all()
    band = int(image[:, 16].argmax())
    assert filters()[band, round(hertz / 8000 * 512)] == filters()[:, round(hertz / 8000 * 512)].max()
    with pytest.raises(ValueError, match="not be longer than a second"):
        spectrogram(np.zeros(50000), 48000)


def test_the_published_recordings_are_read_in_order_of_speaker_digit_and_repetition(tmp_path):
    pytest.importorskip("scipy")
    for speaker, digit, times in ((1, 0, 10), (2, 7, 10), (60, 9, 50)):
        folder = tmp_path / "AudioMNIST" / "data" / f"{speaker:02d}"
        folder.mkdir(parents=True)
        for i in range(times):
            with wave.open(str(folder / f"{digit}_{speaker:02d}_{i}.wav"), "wb") as file:
                file.setparams((1, 2, 48000, 0, "NONE", ""))
                file.writeframes((1000 * np.sin(np.arange(20000) * 0.05 * speaker)).astype("<i2").tobytes())
    data = load("audiomnist", tmp_path)
    assert data.shape == (1, 32, 32) and sorted({*data.owners.tolist()}) == [0, 1, 59]
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert {*zip(data.owners.tolist(), labels.tolist(), strict=True)} == {(0, 0), (1, 7), (59, 9)}


@pytest.mark.parametrize("name", ["audiomnist", "shakespeare"])
def test_sets_that_are_not_downloaded_say_where_they_come_from(name, tmp_path, monkeypatch):
    monkeypatch.delenv("PFED1BS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=f"no files of {name}(?s:.*)it is not downloaded: put .* into a folder {name}"):
        load(name)


def test_every_client_has_the_samples_of_one_owner():
    data = owned([3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 7], split=8)
    found = federate(data, 2, "natural", min_size=2, normalise="none")
    assert found.owners == ("1", "3") and found.sizes.tolist() == [4, 4]
    for client, owner in ((0, 1.0), (1, 3.0)):
        rows = torch.cat([found.train[client], found.test[client]])
        assert (found.inputs[rows] == owner).all() and len(rows) == 6
    official = federate(data, 2, "natural", "official", min_size=2, normalise="none")
    assert official.sizes.tolist() == [4, 4] and [len(rows) for rows in official.test] == [2, 2]


def test_fewer_clients_than_owners_are_drawn_by_the_seed():
    data = owned([owner for owner in range(6) for _ in range(8)], split=24)
    drawn = {federate(data, 3, "natural", min_size=2, seed=seed).owners for seed in range(6)}
    assert len(drawn) > 1 and all(len({*owners}) == 3 for owners in drawn)
    with pytest.raises(ValueError, match="0 of 6 owners have 14 samples or more, 3 clients were asked for"):
        federate(data, 3, "natural")
    with pytest.raises(ValueError, match="6 of 6 owners have 3 samples or more, 7 .*; use --clients 6"):
        federate(data, 7, "natural", min_size=2)


def test_samples_without_owners_or_without_classes_are_refused_where_they_are_needed():
    x = np.arange(60, dtype=np.float32)[:, None]
    plain = dataset("own", (x, np.arange(60) % 2, x, np.arange(60) % 2))
    with pytest.raises(ValueError, match="these samples have no owners; add an array owners"):
        federate(plain, 2, "natural")
    real = dataset("own", (x, x, x, x))
    with pytest.raises(ValueError, match=r"dirichlet:0.3 deals samples by their class, and these have none.*iid"):
        federate(real, 2, "dirichlet:0.3")
    for split in ("pooled", "official"):
        found = federate(real, 2, "iid", split)
        assert found.labels.dtype == torch.float32 and not found.labelled and found.table()[0].shape == (2, 1)


def test_inputs_are_normalised_by_nobodys_each_clients_or_all_clients_constants():
    owners = [20] * 16 + [80] * 16
    x = np.array([owner + (i % 2) * 2 - 1 for i, owner in enumerate(owners)], np.float32)[:, None]
    data = dataset(
        "own", (x[::2], np.arange(16) % 2, x[1::2], np.arange(16) % 2, np.array(owners)[::2], np.array(owners)[1::2])
    )
    none, own, shared = (
        federate(data, 2, "natural", min_size=2, normalise=how) for how in ("none", "client", "shared")
    )
    assert none.inputs.unique().tolist() == [19, 21, 79, 81] and "mean" not in none.constants
    assert own.inputs.abs().max() < 2 and own.constants["mean"] == [
        [pytest.approx(20, abs=1)],
        [pytest.approx(80, abs=1)],
    ]
    assert shared.constants == {"normalise": "shared", "scale": 1.0, "mean": list(data.mean), "std": list(data.std)}
    assert shared.inputs[shared.train[0]].mean() < -0.9 and shared.inputs[shared.train[1]].mean() > 0.9
    with pytest.raises(ValueError, match="data.normalise must be none, client or shared"):
        federate(data, 2, "natural", normalise="both")


def test_whole_numbers_are_tokens_and_pixels_are_not():
    tokens = np.arange(80).reshape(20, 4) % 7
    data = dataset("own", (tokens, tokens, tokens, tokens))
    found = federate(data, 2, "iid", min_size=2)
    assert found.inputs.dtype == torch.int64 and found.inputs.max() == 6 and data.num_classes == 7
    pixels = federate(
        dataset("own", (tokens.astype(np.uint8), np.arange(20) % 2) * 2), 2, "iid", min_size=2, normalise="none"
    )
    assert pixels.inputs.max() == pytest.approx(6 / 255)


def test_newcomers_are_a_share_of_the_clients_drawn_by_the_seed():
    data = owned([owner for owner in range(6) for _ in range(8)], split=24)
    found = [federate(data, 6, "natural", min_size=2, seed=seed, newcomers=0.5) for seed in range(4)]
    assert all(len(one.newcomers) == 3 and one.newcomers.tolist() == sorted(one.newcomers.tolist()) for one in found)
    assert len({tuple(one.newcomers.tolist()) for one in found}) > 1
    assert sorted(found[0].newcomers.tolist() + found[0].present.tolist()) == list(range(6))
