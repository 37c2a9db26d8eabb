"""Mini-batches and test batches of stacked clients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pfed1bs.data import federate
from pfed1bs.data.dataset import dataset


def numbered(samples=120, labels=4, shape=(1,), dtype=np.float32):
    """Samples that carry their own number, so that a batch shows which were drawn."""
    x = np.arange(samples, dtype=dtype).reshape(-1, 1) * np.ones(int(np.prod(shape)), dtype)
    y = np.arange(samples) % labels
    half = samples // 2
    return dataset("numbered", (x[:half].reshape(half, *shape), y[:half], x[half:].reshape(-1, *shape), y[half:]))


@pytest.fixture
def federation():
    return federate(numbered(), clients=4, scheme="iid")  # 22 or 23 training samples each


def drawn(federation, ids, steps, batch, round=0, seed=0, name="train"):
    return [
        (x.clone(), y.clone())
        for x, y in federation.batches(torch.tensor(ids), round=round, seed=seed, steps=steps, batch=batch)(name)
    ]


def rows(federation, ids, steps, batch, **key):
    """(steps, S, B) drawn rows, recovered from the only value of a sample."""
    values = federation.inputs.flatten()
    return torch.stack([torch.searchsorted(values.sort().values, x[..., 0].contiguous())
                        for x, _ in drawn(federation, ids, steps, batch, **key)])  # fmt: skip


def test_a_batch_has_one_row_per_client_and_the_labels_of_its_samples(federation):
    (x, y), (x2, _) = drawn(federation, [2, 0, 3], steps=2, batch=5)
    assert x.shape == (3, 5, 1) and y.shape == (3, 5) and y.dtype == torch.int64 and x.dtype == torch.float32
    for row, client in enumerate([2, 0, 3]):
        own = {(float(federation.inputs[i]), int(federation.labels[i])) for i in federation.train[client]}
        assert set(zip(x[row, :, 0].tolist(), y[row].tolist(), strict=True)) <= own
    assert not torch.equal(x, x2)


def test_a_client_alone_draws_what_it_draws_inside_a_stack(federation):
    stack = drawn(federation, [3, 1, 0], steps=7, batch=8, round=5)
    for row, client in enumerate([3, 1, 0]):
        alone = drawn(federation, [client], steps=7, batch=8, round=5)
        for (x, y), (x1, y1) in zip(stack, alone, strict=True):
            assert torch.equal(x[row], x1[0]) and torch.equal(y[row], y1[0])


def test_no_sample_comes_twice_inside_an_epoch_and_the_next_epoch_is_another(federation):
    each = len(federation.train[0]) // 5
    assert each == 4
    seen = rows(federation, [0], steps=3 * each, batch=5).view(3, -1)  # three epochs of 20
    assert [len(set(epoch.tolist())) for epoch in seen] == [20, 20, 20]
    assert seen[0].tolist() != seen[1].tolist()


def test_a_client_with_fewer_samples_than_a_batch_draws_with_replacement(federation):
    seen = rows(federation, [0], steps=20, batch=30)
    assert seen.shape == (20, 1, 30)
    assert set(seen.flatten().tolist()) == set(rows(federation, [0], 50, 22).flatten().tolist())
    assert max(torch.bincount(step.flatten()).max() for step in seen) >= 3  # 30 draws from 22


def test_a_client_with_exactly_one_batch_sees_all_its_samples_every_step(federation):
    size = int(federation.sizes[1])
    seen = rows(federation, [1], steps=3, batch=size)
    assert [len(set(step.flatten().tolist())) for step in seen] == [size] * 3


def test_round_seed_name_and_client_all_change_the_draw_and_nothing_else_does(federation):
    base = drawn(federation, [0, 1], steps=2, batch=8)[0][0]
    assert torch.equal(base, drawn(federation, [0, 1], steps=2, batch=8)[0][0])
    assert not torch.equal(base, drawn(federation, [0, 1], steps=2, batch=8, round=1)[0][0])
    assert not torch.equal(base, drawn(federation, [0, 1], steps=2, batch=8, seed=1)[0][0])
    assert not torch.equal(base, drawn(federation, [0, 1], steps=2, batch=8, name="head")[0][0])


@pytest.mark.parametrize("batch", [8, 40])
@pytest.mark.parametrize("augment", [False, True])
def test_fewer_steps_are_the_first_of_more(batch, augment):
    federation = federate(numbered(shape=(3, 2, 2)), clients=4, scheme="iid", augment=augment)
    batches = federation.batches(torch.arange(4), round=1, seed=2, steps=9, batch=batch)
    assert batches.steps == 9
    few, all_of_them = list(batches("train", 4)), list(batches("train"))
    assert len(few) == 4 and len(all_of_them) == 9
    assert all(torch.equal(a[0], b[0]) for a, b in zip(few, all_of_them, strict=False))


@pytest.mark.parametrize("batch", [4, 40])  # fewer and more than a client has
def test_only_the_samples_that_may_be_drawn_are_drawn_by_their_place(federation, batch):
    clients = torch.tensor([2, 0])
    batches = federation.batches(clients, round=0, seed=0, steps=30, batch=batch)
    only = torch.zeros(2, 40, dtype=torch.bool)  # longer than any client's part
    only[0, [1, 3, 5, 7, 9]], only[1, [0, 2, 4, 6, 8, 21]] = True, True
    for row, (client, mask) in enumerate(zip(clients.tolist(), only, strict=True)):
        allowed = federation.train[client][mask[: len(federation.train[client])]]
        found = {float(x) for batch, _ in batches("train", only=only) for x in batch[row].flatten()}
        assert found == {float(federation.inputs[i]) for i in allowed}
    everything = zip(batches("train", 3), batches("train", 3, only=torch.ones_like(only)), strict=True)
    assert all(torch.equal(a, b) for one, two in everything for a, b in zip(one, two, strict=True))


def test_batches_that_were_drawn_before_are_those_that_are_drawn_when_needed():
    colours = federate(numbered(shape=(3, 2, 2)), clients=4, scheme="iid", augment=True)
    expected = {round: drawn(colours, [1, 3], steps=4, batch=8, round=round) for round in (5, 6)}
    colours.foresee(torch.tensor([1, 3]), 5, 0, 8, [("train", 4)])
    colours.foresee(torch.tensor([0, 2]), 6, 0, 8, [("train", 4)])  # other clients than those that come
    for round, batches in expected.items():
        for (x, y), (now_x, now_y) in zip(batches, drawn(colours, [1, 3], steps=4, batch=8, round=round), strict=True):
            assert torch.equal(x, now_x) and torch.equal(y, now_y)


def test_draws_of_rounds_that_are_over_are_forgotten(federation):
    for round in range(9):
        federation.foresee(torch.arange(4), round, 0, 8, [("train", 2), ("head", 1)])
        assert len(federation._ahead) <= 2 * 2


def test_the_global_random_state_is_not_touched(federation):
    torch.manual_seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    federate(numbered(), clients=4, scheme="dirichlet:1", min_size=2)
    drawn(federation, [0, 1], steps=2, batch=8)
    drawn(federation, [0, 1], steps=2, batch=80)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002


def test_augmentation_mirrors_about_half_of_the_images_and_leaves_the_draw_alone():
    data = numbered(shape=(3, 2, 2))
    data.train_inputs[..., 1] += 0.25  # columns differ: a mirrored image shows
    data.test_inputs[..., 1] += 0.25
    plain = federate(data, clients=4, scheme="iid")
    mirrored = federate(data, clients=4, scheme="iid", augment=True)
    count = 0
    for (x, y), (x2, y2) in zip(drawn(plain, [0, 1], 10, 16), drawn(mirrored, [0, 1], 10, 16), strict=True):
        same = (x == x2).flatten(2).all(2)
        assert torch.equal(x2, torch.where(same[..., None, None, None], x, x.flip(-1)))
        assert torch.equal(y, y2)
        count += int(same.sum())
    assert 120 < count < 200  # of 320 fair coins: mean 160, standard deviation 9


@pytest.mark.parametrize(("steps", "batch"), [(0, 8), (3, 0), (-1, 8)])
def test_steps_and_batch_must_be_positive(federation, steps, batch):
    with pytest.raises(ValueError, match="steps and batch must be at least 1"):
        federation.batches(torch.arange(2), round=0, seed=0, steps=steps, batch=batch)


def test_test_batches_cover_every_test_sample_once_where_the_mask_is_true():
    federation = federate(numbered(200), clients=3, scheme="dirichlet:1", min_size=5)
    ids = torch.tensor([2, 0])
    sizes = [len(federation.test[k]) for k in ids]
    assert sizes[0] != sizes[1]
    seen: list[list[float]] = [[], []]
    for x, y, mask in federation.tests(ids, size=4):
        assert x.shape[:2] == y.shape == mask.shape and x.shape[1] <= 4
        for row in range(2):
            seen[row] += x[row, mask[row], 0].tolist()
            own = {(float(federation.inputs[i]), int(federation.labels[i])) for i in federation.test[ids[row]]}
            assert set(zip(x[row, :, 0].tolist(), y[row].tolist(), strict=True)) <= own
    for row in range(2):
        assert sorted(seen[row]) == sorted(federation.inputs[federation.test[ids[row]], 0].tolist())


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_batches_of_a_first_share_and_the_samples_behind_it_have_nothing_in_common(share):
    federation = federate(numbered(200), clients=3, scheme="dirichlet:1", min_size=5)
    ids = torch.tensor([2, 0])
    batches = federation.batches(ids, round=1, seed=0, steps=40, batch=4)
    front, back, drawn = ([set(), set()] for _ in range(3))
    for found, part in ((front, (0, share)), (back, (share, 1))):
        for x, y, mask in batches.samples(*part):
            assert x.shape[:2] == y.shape == mask.shape
            for row in range(2):
                found[row] |= set(x[row, mask[row], 0].tolist())
    for x, _ in batches.first(share)():
        for row in range(2):
            drawn[row] |= set(x[row, :, 0].tolist())
    for row, k in enumerate(ids.tolist()):
        own = federation.inputs[federation.train[k], 0].tolist()
        assert len(front[row]) == int(share * len(own)) and len(front[row]) + len(back[row]) == len(own)
        assert front[row] == set(own[: len(front[row])]) and back[row] == set(own[len(front[row]) :])
        assert drawn[row] == front[row]


def test_all_samples_come_once_and_batches_of_all_are_the_plain_ones(federation):
    batches = federation.batches(torch.tensor([1]), round=0, seed=0, steps=3, batch=8)
    seen = [value for x, _, mask in batches.samples() for value in x[0, mask[0], 0].tolist()]
    assert sorted(seen) == sorted(federation.inputs[federation.train[1], 0].tolist())
    for (x, _), (plain, _) in zip(batches.first(1.0)(), batches(), strict=True):
        assert torch.equal(x, plain)


def test_a_client_without_samples_behind_a_share_has_a_mask_that_is_false(federation):
    few = replace(federation, train=(federation.train[0][:1], federation.train[1]))
    batches = few.batches(torch.tensor([0, 1]), round=0, seed=0, steps=1, batch=2)
    (x, _, mask), *_ = batches.samples(0.8, 1)
    assert x.shape[0] == 2 and not mask[0].any() and mask[1].all()
    assert torch.equal(next(batches.first(0.1)())[0][0], few.inputs[federation.train[0][:1]].expand(2, -1))
