"""Splits, caps and normalisation of a federation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfed1bs.cli.holdings import picture, table
from pfed1bs.data import federate, load
from pfed1bs.data.dataset import dataset
from pfed1bs.data.synthetic import synthetic


def toy(train=80, test=40, labels=4, shape=(2,)):
    rng = np.random.default_rng(0)
    return dataset(
        "toy",
        (
            rng.normal(3, 2, (train, *shape)).astype(np.float32),
            np.arange(train) % labels,
            rng.normal(3, 2, (test, *shape)).astype(np.float32),
            np.arange(test) % labels,
        ),
    )


@given(
    clients=st.integers(1, 5),
    scheme=st.sampled_from(["labels:2", "labels:4", "dirichlet:1", "iid"]),
    split=st.sampled_from(["pooled", "official"]),
    seed=st.integers(0, 2**62),
)
@settings(max_examples=40, deadline=None)
def test_no_sample_is_in_two_places_and_inputs_follow_their_samples(clients, scheme, split, seed):
    data = toy(400, 200)
    federation = federate(data, clients, scheme, split, seed=seed)
    rows = torch.cat([*federation.train, *federation.test])
    assert sorted(rows.tolist()) == list(range(len(federation.inputs)))
    assert len(set(federation.samples.tolist())) == len(federation.samples)
    labels = np.concatenate([data.train_labels, data.test_labels])
    inputs = np.concatenate([data.train_inputs, data.test_inputs])
    assert federation.labels.tolist() == labels[federation.samples].tolist()
    expected = (inputs[federation.samples] - np.array(data.mean)) / np.array(data.std)
    np.testing.assert_allclose(federation.inputs.numpy(), expected, atol=1e-6)


def test_pooled_samples_are_split_three_to_one_at_every_client():
    federation = federate(toy(), clients=4, scheme="iid")
    assert federation.sizes.tolist() == [22, 22, 22, 22] and federation.sizes.dtype == torch.int64
    assert [len(rows) for rows in federation.test] == [8, 8, 8, 8]
    first = federation.samples[federation.train[0]]
    assert bool((first < 80).any()) and bool((first >= 80).any())


def test_official_test_samples_stay_test_samples_and_follow_the_label_mixture():
    data = toy(400, 200)
    federation = federate(data, clients=3, scheme="dirichlet:1", split="official")
    for own, held_out in zip(federation.train, federation.test, strict=True):
        assert bool((federation.samples[own] < 400).all()) and bool((federation.samples[held_out] >= 400).all())
    train, test = federation.table()
    assert train.sum() == 400 and test.sum() == 200
    assert float((train / 2 - test).abs().max()) <= 1  # half as many test samples of every label, ends rounded


def test_table_counts_labels_of_both_parts():
    federation = federate(toy(), clients=2, scheme="labels:2")
    train, test = federation.table()
    assert train.shape == test.shape == (2, 4)
    assert (train + test).tolist() == [[30, 30, 0, 0], [0, 0, 30, 30]]


def test_cap_bounds_training_samples_only_and_keeps_the_first():
    whole, capped = (federate(toy(), clients=4, scheme="iid", cap=cap) for cap in (None, 12))
    assert capped.sizes.tolist() == [12, 12, 12, 12]
    for client in range(4):
        kept, all_of_them = capped.samples[capped.train[client]], whole.samples[whole.train[client]]
        assert torch.equal(kept, all_of_them[:12])
        assert torch.equal(capped.samples[capped.test[client]], whole.samples[whole.test[client]])
    assert len(capped.inputs) == 4 * (12 + 8)  # what nobody uses is not kept


def test_own_data_are_normalised_to_mean_zero_and_deviation_one():
    data = toy(4000, 40)
    federation = federate(data, clients=2, scheme="iid", split="official")
    x = federation.inputs[torch.cat(federation.train)]
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_bytes_are_scaled_before_they_are_normalised():
    x = np.array([[0], [255]] * 20, np.uint8)
    data = dataset("two", (x, np.arange(40) % 2, x[:8], np.arange(8) % 2))
    assert (data.mean, data.std) == ((0.5,), (0.5,))
    assert set(federate(data, 1, "iid").inputs.flatten().tolist()) == {-1.0, 1.0}


def test_the_seed_decides_everything():
    one, same, other = (federate(toy(), 4, "iid", seed=seed).samples for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_to_keeps_everything_but_the_device():
    federation = federate(toy(), clients=2, scheme="iid")
    moved = federation.to("meta")
    assert moved.inputs.device.type == moved.labels.device.type == "meta"
    assert moved.sizes.tolist() == federation.sizes.tolist() and moved.shape == (2,) and moved.clients == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 4, "split": "half"}, "split must be pooled or official, got 'half'"),
        ({"clients": 4, "cap": 9}, "cap must leave every client min_size = 10 samples, got 9; raise cap"),
        ({"clients": 4, "min_size": 0}, "min_size must be at least 1"),
        ({"clients": 4, "augment": True}, "augment mirrors colour images .3, height, width."),
        (
            {"clients": 9, "scheme": "iid"},
            "9 clients with 14 samples each are more than the 120 samples there are; use at most 8",
        ),
        ({"clients": 2, "scheme": "labels:9"}, "use labels:4"),
    ],
)
def test_impossible_federations_say_why_and_what_to_change(arguments, message):
    with pytest.raises(ValueError, match=message):
        federate(toy(), **arguments)


def test_a_client_without_a_test_sample_is_refused():
    with pytest.raises(ValueError, match=r"client \d is left with \d+ training and 0 test samples, but needs 5 and 1"):
        federate(toy(80, 4), clients=8, scheme="labels:1", split="official", min_size=5)


def test_digits_need_no_file_and_their_split_is_fixed():
    data = load("digits")
    assert data.shape == (1, 8, 8) and data.num_classes == 10
    assert (len(data.train_labels), len(data.test_labels)) == (1347, 450)
    assert np.bincount(data.test_labels).tolist() == DIGITS
    assert data.train_inputs.mean() == pytest.approx(data.mean[0], abs=1e-4)
    assert data.train_inputs.std() == pytest.approx(data.std[0], abs=1e-4)


DIGITS = [48, 49, 49, 54, 46, 49, 36, 39, 31, 49]  # test samples per label


def test_the_table_has_a_row_per_client_and_shortens_long_lists():
    federation = federate(toy(), clients=2, scheme="iid")
    train, test = federation.table()
    result = table(federation, most=3)
    cells = [list(column.cells) for column in result.columns]
    assert cells[:4] == [["0", "1"], ["45", "45"], ["15", "15"], ["4", "4"]]
    assert cells[4][0].endswith(" and 1 more") and cells[4][0].count(":") == 3


def test_the_table_of_many_clients_has_the_first_of_them_and_what_all_have():
    result = table(synthetic("synthetic", 250, "labels:2"))
    assert [len([*column.cells]) for column in result.columns[:4]] == [20] * 4
    assert result.caption == (
        "and 230 more; 7,500 training and 2,500 test samples in all, "
        "30 to 30 for training at a client, in the middle 30"
    )


@pytest.mark.parametrize("labels", [4, 15, 30])
def test_the_picture_is_an_svg_and_the_same_every_time(tmp_path, labels):
    federation = federate(toy(900, 300, labels), clients=3, scheme="iid")
    picture(federation, tmp_path / "a.svg")
    picture(federation, tmp_path / "b.svg")
    first = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in first and first == (tmp_path / "b.svg").read_bytes()


def test_validation_judges_on_the_last_quarter_of_the_training_samples():
    data = load("digits")
    plain, tuning = (federate(data, 3, "iid", cap=40, validate=validate) for validate in (False, True))
    assert tuning.sizes.tolist() == [30, 30, 30] and [len(rows) for rows in tuning.test] == [10, 10, 10]
    for client in range(3):
        own = plain.samples[plain.train[client]].tolist()
        assert tuning.samples[tuning.train[client]].tolist() == own[:30]
        assert tuning.samples[tuning.test[client]].tolist() == own[30:]
