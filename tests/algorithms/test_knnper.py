"""kNN-Per: votes and mixtures by hand, what is held out, and where it is FedAvg."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.data import Federation, federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import begin, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from promise import assert_same
from tiny import chain, close

SIZE = {"steps": 3, "batch": 8}
A_THIRD_OF_TEN = [1.0, log(0.3 / 0.7) / 0.25, 0.0]  # features are inputs; class A has probability 0.3 at 0.25


def model(features, labels, lam, w=(A_THIRD_OF_TEN,)):
    """Models with stored neighbours, one row per client."""
    stored = {"features": torch.tensor(features)[..., None], "labels": torch.tensor(labels)}
    return {"w": torch.tensor(w), **stored, "lam": torch.tensor(lam)}


def at(*values):
    return torch.tensor(values)[:, None, None]


def test_the_mixture_of_the_nearest_and_the_network():
    method = make("knnper", chain(), neighbours=2)
    assert close(method.task.logits(torch.tensor([A_THIRD_OF_TEN]), at(0.25), {}).softmax(-1), [[[0.3, 0.7]]])
    near = model([[0.0, 1.0]], [[0, 1]], [0.5])
    vote = exp(-0.0625) / (exp(-0.0625) + exp(-0.5625))
    assert vote == pytest.approx(0.6225, abs=5e-5) and 0.5 * vote + 0.15 == pytest.approx(0.4612, abs=5e-5)
    assert close(method.votes(near, at(0.25)), [[[vote, 1 - vote]]])
    assert close(method.predict(near, at(0.25)).exp(), [[[0.5 * vote + 0.15, 0.85 - 0.5 * vote]]])


def test_the_scale_and_the_number_of_features_soften_votes():
    method = make("knnper", chain(), neighbours=2, scale=0.5)
    vote = 1 / (1 + exp(-0.5 / 0.5))
    assert close(method.votes(model([[0.0, 1.0]], [[0, 1]], [1.0]), at(0.25)), [[[vote, 1 - vote]]])
    wide = Task(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)))
    stored = {"features": torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]), "labels": torch.tensor([[0, 1]])}
    w = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    vote = 1 / (1 + exp(-0.5 / 2))  # d = 2
    assert close(make("knnper", wide, neighbours=2).votes({"w": w, **stored}, at(0.25)), [[[vote, 1 - vote]]])


def test_only_the_nearest_vote_and_those_with_one_label_vote_together():
    method = make("knnper", chain(), neighbours=2)
    far = model([[0.0, 1.0, 9.0, 9.0]], [[0, 1, 1, 1]], [1.0])
    assert torch.equal(method.votes(far, at(0.25)), method.votes(model([[0.0, 1.0]], [[0, 1]], [1.0]), at(0.25)))
    assert close(method.votes(model([[0.0, 0.5, 9.0]], [[1, 1, 0]], [1.0]), at(0.25)), [[[0.0, 1.0]]])


def test_a_client_with_fewer_samples_than_neighbours_has_the_vote_of_all_of_them():
    method = make("knnper", chain(), neighbours=3)
    both = model(
        [[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.2, 9.0]], [[0, 1, -1, -1], [0, 1, 1, 1]], [1.0, 1.0], [A_THIRD_OF_TEN] * 2
    )
    first = method.votes(both, at(0.25, 0.25))[0]
    assert torch.equal(first, method.votes(model([[0.0, 1.0]], [[0, 1]], [1.0]), at(0.25))[0])


def toy(train, labels):
    """A client with these training samples, in this order, and one more; features of `chain` are inputs if a = 1."""
    inputs, rows = torch.tensor([*train, 0.0])[:, None], torch.arange(len(train) + 1)
    return Federation(inputs, torch.tensor([*labels, 0]), (rows[:-1],), (rows[-1:],), rows, num_classes=2)


def judged(method, data, w):
    ids = torch.arange(1)
    cohort = Cohort(0, 1, ids, data.sizes, torch.zeros(1))
    server, clients = {"w": torch.tensor(w)}, {"w": torch.tensor([w])}
    return method.personal(server, clients, cohort, data.batches(ids, 1, 0, **SIZE))


TRAIN = [0.0, 0.1, 0.2, 1.0, 1.1, 1.2, 0.3, 0.9, 0.15, 1.05]  # the last two are held out


@pytest.mark.parametrize(
    ("w", "labels", "lam"),
    [
        ([1.0, 9.0, -9.0], [0, 0, 0, 1, 1, 1, 0, 1, 0, 1], 1.0),  # the network says A, sure of it; neighbours are right
        ([1.0, -9.0, 9.0], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1], 0.0),  # the network is right and neighbours are not
    ],
)
def test_the_share_of_the_neighbours_is_what_held_out_samples_prefer(w, labels, lam):
    data = toy(TRAIN, labels)
    models = judged(make("knnper", chain(), neighbours=3, scale=0.01), data, w)
    personal = models["personal"]
    assert torch.equal(personal["features"][0, :, 0], torch.tensor(TRAIN[:8]))
    assert personal["labels"][0].tolist() == labels[:8]
    assert personal["lam"].tolist() == [lam]
    assert models["neighbours"]["lam"].tolist() == [1.0] and "lam" not in models["global"]


def test_fine_tuning_leaves_out_what_is_held_out():
    method, labels = make("knnper", chain()), [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]
    tuned, other = (
        judged(method, toy([*TRAIN[:8], *held], labels), A_THIRD_OF_TEN)["tuned"]["w"]
        for held in ((0.1, 1.0), (9.0, -9.0))
    )
    assert torch.equal(tuned, other)


def test_the_share_is_a_tenth_or_several():
    data = toy([*TRAIN[:8], 0.3, 1.4], [0, 0, 0, 1, 1, 1, 0, 1, 0, 0])  # neighbours and the network err in one of two
    models = judged(make("knnper", chain(), neighbours=3, scale=0.3), data, [1.0, -2.0, 2.0])
    assert close(models["personal"]["lam"], [0.4])


def test_equal_right_answers_are_settled_by_the_loss():
    """Network 0.3 and neighbours 0.6225 for the true class A of one sample: right from lam = 0.7 on, best at 1."""
    data, method = toy([0.0, 1.0, 0.25], [0, 1, 0]), make("knnper", chain(), neighbours=2, holdout=0.3)
    assert judged(method, data, A_THIRD_OF_TEN)["personal"]["lam"].tolist() == [1.0]


def test_a_client_with_fewer_held_out_samples_than_another_chooses_as_by_itself():
    few, many = ([0.0, 1.0, 0.25], [0, 1, 0]), ([0.0, 1.0, 0.0, 1.0, 0.25, 0.5], [0, 1, 0, 1, 0, 1])
    inputs, labels = (torch.tensor([*one, *other]) for one, other in zip(few, many, strict=True))
    rows = torch.arange(9)
    data = Federation(inputs[:, None], labels, (rows[:3], rows[3:]), (rows[:1], rows[3:4]), rows, num_classes=2)
    method, ids = make("knnper", chain(), neighbours=2, holdout=0.3), torch.arange(2)
    w = torch.tensor(A_THIRD_OF_TEN)
    both = {"w": w.expand(2, 3), **method.stored({"w": w.expand(2, 3)}, data.batches(ids, 1, 0, **SIZE))}
    alone = judged(method, toy(*few), A_THIRD_OF_TEN)["personal"]["lam"]
    assert method.chosen(both, data.batches(ids, 1, 0, **SIZE))[:1].tolist() == alone.tolist() == [1.0]


def test_without_holdout_it_trains_as_fedavg_and_all_have_the_same_share():
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    task = Task(build("mlp", data.shape, 10))
    method, plain = make("knnper", task, holdout=0.0, lam=0.0), make("fedavg", task)
    (*_, done), (*_, other) = (simulate(one, data, rounds=3, sampled=3, **SIZE) for one in (method, plain))
    assert done.uplinks == other.uplinks
    assert_same(done.progress.server, other.progress.server)
    scores, wanted = (evaluate(one, data, done.progress, **SIZE) for one in (method, plain))
    for name, twin in (("personal", "global"), ("global", "global"), ("tuned", "tuned")):
        assert torch.equal(
            scores[name].counts["correct"], wanted[twin].counts["correct"]
        )  # lam = 0 is the shared model
    assert set(scores) == {"personal", "global", "tuned", "neighbours"}


def test_clients_that_hold_nothing_out_have_the_share_that_is_asked_for():
    data, method = toy(TRAIN, [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]), make("knnper", chain(), holdout=0.0, lam=0.25)
    personal = judged(method, data, A_THIRD_OF_TEN)["personal"]
    assert personal["lam"].tolist() == [0.25] and personal["labels"].shape == (1, 10)


def test_held_out_samples_are_never_trained_on():
    data = federate(load("digits"), 3, "iid", cap=40)
    method = make("knnper", Task(build("mlp", data.shape, 10)), holdout=0.25)
    damaged = data.inputs.clone()
    for rows in data.train:
        damaged[rows[len(rows) * 3 // 4 :]] = 1e3
    runs = [list(simulate(method, one, rounds=3, **SIZE))[-1] for one in (data, replace(data, inputs=damaged))]
    assert runs[0].uplinks == runs[1].uplinks
    untouched, changed = (
        evaluate(method, one, runs[0].progress, **SIZE)["neighbours"] for one in (data, replace(data, inputs=damaged))
    )
    assert_same(untouched.sums, changed.sums)  # nor stored


def test_neighbours_alone_count_right_answers_of_a_plain_search():
    data = federate(load("digits"), 3, "dirichlet:0.5", cap=60)
    method = make("knnper", Task(build("mlp", data.shape, 10)), neighbours=1)
    *_, done = simulate(method, data, rounds=2, **SIZE)
    found = evaluate(method, data, done.progress, **SIZE)["neighbours"].counts["correct"].tolist()
    w, right = done.progress.server["w"][None], []
    for own, test in zip(data.train, data.test, strict=True):
        kept = own[: int(0.8 * len(own))]
        h, query = (method.task.features(w, data.inputs[rows][None], {})[0] for rows in (kept, test))
        nearest = torch.cdist(query, h).argmin(1)
        right.append(float((data.labels[kept][nearest] == data.labels[test]).sum()))
    assert found == right


def test_an_untrained_model_can_be_judged():
    data = federate(load("digits"), 3, "iid", cap=40)
    method = make("knnper", Task(build("mlp", data.shape, 10)))
    assert evaluate(method, data, begin(method, 3), **SIZE)["neighbours"].micro > 30  # chance is 10


def test_a_model_that_has_no_features_is_refused():
    with pytest.raises(ValueError, match="knnper needs a model that ends in a trainable torch.nn.Linear"):
        make("knnper", Task(nn.Conv1d(1, 2, 1)))
