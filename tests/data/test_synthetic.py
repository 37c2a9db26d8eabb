"""Clients that draw their samples when they are asked."""

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.core.errors import UserError
from pfed1bs.data.synthetic import synthetic
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.flower.settings import read
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import Config, DataConfig
from pfed1bs.runs.run import federation


def batch_of(data, ids, round=3):
    [*found] = data.batches(torch.tensor(ids), round, seed=5, steps=2, batch=4)()
    return found


def test_a_client_has_the_same_samples_whoever_else_there_is():
    data = synthetic("synthetic", 1000, "dirichlet:0.3")
    alone, among = batch_of(data, [7]), batch_of(data, [2, 7, 999])
    for (x, y), (xs, ys) in zip(alone, among, strict=True):
        assert torch.equal(x[0], xs[1]) and torch.equal(y[0], ys[1])
    (x, y, mask), (xs, ys, _) = next(data.tests(torch.tensor([7]))), next(data.tests(torch.tensor([1, 7])))
    assert x.shape == (1, 10, 1, 28, 28) and mask.all() and torch.equal(x[0], xs[1]) and torch.equal(y[0], ys[1])
    trained = next(data.trained(torch.tensor([7])))[0][0]
    assert trained.shape == (30, 1, 28, 28) and not any(torch.equal(x[0, 0], own) for own in trained)
    assert all(any(torch.equal(one, own) for own in trained) for one in alone[0][0][0])


def test_another_client_another_seed_and_another_partition_have_other_samples():
    data = synthetic("synthetic", 9, "iid")
    (x, _, _), *_ = data.tests(torch.tensor([1]))
    for other, client in ((data, 2), (synthetic("synthetic", 9, "iid", seed=1), 1)):
        assert not torch.equal(next(other.tests(torch.tensor([client])))[0], x)


def test_labels_follow_the_partition_and_the_table_counts_them():
    two = synthetic("synthetic", 6, "labels:2", cap=20)
    train, test = two.table()
    assert (train > 0).sum(1).tolist() == [2] * 6 and train[1].nonzero().flatten().tolist() == [2, 3]
    assert train.sum(1).tolist() == [20] * 6 == two.sizes.tolist() and test.sum(1).tolist() == [10] * 6
    labels = next(two.tests(torch.tensor([4])))[1][0]
    assert torch.equal(torch.bincount(labels, minlength=10), test[4])
    uneven, even = (synthetic("synthetic", 50, scheme).table()[0] for scheme in ("dirichlet:0.1", "iid"))
    assert uneven.max(1).values.double().mean() > 2 * even.max(1).values.double().mean()


def test_a_hundred_thousand_clients_are_there_at_once_and_can_be_learnt_from():
    data = synthetic("synthetic:1x8x8", 100_000, "iid")
    method = make("fedavg", Task(build("mlp", data.shape, data.num_classes)))
    assert data.clients == 100_000 and len(data.present) == 100_000
    *_, last = simulate(method, data, rounds=3, sampled=10, steps=10, batch=16, device="cpu")
    small = synthetic("synthetic:1x8x8", 100_000, "iid", newcomers=0.9999)  # ten are there, and have not trained
    assert len(small.present) == 10
    shared = evaluate(method, small, last.progress, steps=1, batch=4)["global"]
    assert shared.micro > 40  # of ten classes


def test_what_would_change_samples_of_a_data_set_is_refused():
    shaped = federation(Config(clients=3, data=DataConfig(name="synthetic:3x32x32", cap=12)))
    assert shaped.shape == (3, 32, 32) and shaped.sizes.tolist() == [12] * 3
    assert read({"data.name": "synthetic:2x5", "clients": 3})[1].problem(
        read({"data.name": "synthetic:2x5", "clients": 3})[0]
    ) == ((2, 5), 10)
    for options, message in (
        ({"augment": True}, "data.augment changes samples"),
        ({"partition": "natural"}, "no owners"),
        ({"name": "synthetic:axb"}, "names no shape"),
    ):
        with pytest.raises(UserError, match=message):
            federation(Config(clients=3, data=DataConfig(**{"name": "synthetic", **options})))
