"""Who holds which samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfed1bs.data import partition

TEN = np.repeat(np.arange(10), 100)  # ten labels, 100 samples each


@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=200),
    clients=st.integers(1, 6),
    scheme=st.sampled_from(["iid", "dirichlet:0.5", "dirichlet:10"]),
    seed=st.integers(0, 2**63),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_goes_to_exactly_one_client(labels, clients, scheme, seed):
    parts = partition(np.array(labels), clients, scheme, seed, min_size=0)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@given(clients=st.integers(1, 30), each=st.integers(1, 10), seed=st.integers(0, 2**63))
@settings(max_examples=60, deadline=None)
def test_label_blocks_give_every_client_its_labels_and_every_owned_sample_once(clients, each, seed):
    parts = partition(TEN, clients, f"labels:{each}", seed, min_size=1)
    for u, part in enumerate(parts):
        assert set(TEN[part]) == {(u * each + j) % 10 for j in range(each)}
    owned = {(u * each + j) % 10 for u in range(clients) for j in range(each)}
    assert sorted(np.concatenate(parts).tolist()) == [i for i in range(1000) if TEN[i] in owned]


def test_twenty_clients_with_two_labels_form_five_groups_of_four():
    parts = partition(TEN, 20, "labels:2", seed=0)
    held = [tuple(sorted(set(TEN[part].tolist()))) for part in parts]
    assert held == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)] * 4


def test_pieces_of_a_label_with_four_owners_have_the_documented_sizes():
    sizes = np.array(
        [[int((TEN[part] == 0).sum()) for part in partition(TEN, 20, "labels:2", s)[::5]] for s in range(200)]
    )
    # [100 / 5, 100 / 3): 20 .. 33, and both ends occur; the last owner gets the rest.
    assert (sizes[:, :3].min(), sizes[:, :3].max()) == (20, 33)
    assert (sizes.sum(axis=1) == 100).all()
    assert sizes[:, 3].min() >= 1


@pytest.mark.parametrize("owners", range(2, 9))
@pytest.mark.parametrize("total", [9, 10, 11, 17, 64])
def test_the_last_owner_of_a_label_never_goes_empty(owners, total):
    for seed in range(20):
        parts = partition(np.zeros(total, np.int64), owners, "labels:1", seed, min_size=1)
        assert min(len(part) for part in parts) >= 1
        assert sum(len(part) for part in parts) == total


def test_a_label_that_nobody_owns_is_left_out():
    parts = partition(TEN, 3, "labels:2", seed=0)
    assert set(TEN[np.concatenate(parts)].tolist()) == {0, 1, 2, 3, 4, 5}


def test_iid_clients_differ_in_size_by_one_at_most():
    assert [len(part) for part in partition(TEN[:47], 4, "iid", seed=0)] == [12, 12, 12, 11]


def test_small_dirichlet_numbers_skew_labels_and_large_ones_do_not():
    def share(scheme):  # of a client's most frequent label, averaged
        parts = partition(TEN, 5, scheme, seed=0)
        return np.mean([np.bincount(TEN[part]).max() / len(part) for part in parts])

    assert share("dirichlet:0.1") > 0.35
    assert share("dirichlet:1000") < 0.13


@pytest.mark.parametrize("scheme", ["labels:2", "dirichlet:0.3", "iid"])
def test_the_seed_decides_and_nothing_else(scheme):
    first = partition(TEN, 10, scheme, seed=3)
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    again, other = partition(TEN, 10, scheme, seed=3), partition(TEN, 10, scheme, seed=4)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(a.tolist() != b.tolist() for a, b in zip(first, other, strict=True))
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_dirichlet_redraws_until_every_client_has_enough():
    small = [min(len(p) for p in partition(TEN, 10, "dirichlet:0.3", s, min_size=0)) for s in range(20)]
    assert min(small) < 25  # a first draw falls short for some seed ...
    assert min(min(len(p) for p in partition(TEN, 10, "dirichlet:0.3", s, min_size=25)) for s in range(20)) >= 25


@pytest.mark.parametrize(
    ("scheme", "clients", "message"),
    [
        ("label:2", 5, "unknown partition 'label:2'; did you mean labels:2?"),
        ("dirichlets", 5, "did you mean dirichlet:0.3?"),
        ("zzz", 5, "known are labels:2, dirichlet:0.3, iid"),
        ("iid:3", 5, "iid takes no number"),
        ("labels", 5, "labels:c needs a whole number c >= 1"),
        ("labels:0", 5, "labels:c needs a whole number c >= 1"),
        ("labels:1.5", 5, "labels:c needs a whole number c >= 1"),
        ("labels:11", 5, "more labels than the 10 there are; use labels:10"),
        ("dirichlet:0", 5, "dirichlet:a needs a number a > 0"),
        ("dirichlet:-1", 5, "dirichlet:a needs a number a > 0"),
        ("dirichlet:nan", 5, "dirichlet:a needs a number a > 0"),
        ("dirichlet:0.01", 90, "fewer than 10 samples in each of 1000 draws; use a larger number"),
        ("labels:1", 100, "samples, but every client needs 10; use fewer clients"),
        ("iid", 101, "101 clients with 10 samples each are more than the 1000 samples there are; use at most 100"),
        ("dirichlet:0.3", 10**9, "use at most 100 clients"),
        ("iid", 0, "clients must be at least 1, got 0"),
    ],
)
def test_impossible_partitions_say_why_and_what_to_change(scheme, clients, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?").replace("(", r"\(")):
        partition(TEN, clients, scheme, seed=0)


def test_a_label_with_fewer_samples_than_owners_cannot_be_cut():
    with pytest.raises(ValueError, match="label 0 has 100 samples, too few to cut among 200 clients"):
        partition(TEN, 200, "labels:10", seed=0, min_size=1)
