"""FedProto: two clients computed by hand; its tables with missing rows: round trips, literal bytes, hostile ones."""

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch import nn

from pfed1bs.algorithms import make
from pfed1bs.data import federate, load
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import begin, simulate
from pfed1bs.engine.scores import evaluate
from pfed1bs.facts.costs import Detail, bits
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import HEADER
from pfed1bs.wire.rows import CountedRows, Rows
from tiny import SAMPLES, aggregated, chain, chain_slope, close, cohort, given, plus

WEIGHTS = [[0.5, 0.4, -0.3], [-0.6, 0.2, 0.1]]
SEEN = [((2.0, 0), (1.0, 1)), ((4.0, 0), (3.0, 0))]  # what prototypes are taken from; one batch of client 0, two of 1


def states():
    return {"w": torch.tensor(WEIGHTS)}


def table(*rows):
    return torch.tensor(rows)


def trained(prototypes, lam):
    """SGD of step 0.5 with the extra gradient 2 lam (a x - c) x of the body, where class y has a prototype c."""
    for k, w in enumerate(WEIGHTS):
        for samples in SAMPLES["train"]:
            (x, y), pull = samples[k], 0.0
            if prototypes[y] is not None:
                pull = 2 * lam * (w[0] * x - prototypes[y]) * x
            w = plus(w, (-0.5, plus(chain_slope(w, (x, y)), (1, [pull, 0.0, 0.0]))))
        yield w


@pytest.mark.parametrize("prototypes", [None, [0.7, None], [0.7, -0.2]])
def test_features_are_drawn_to_the_prototype_of_their_class_if_there_is_one(prototypes):
    method = make("fedproto", chain(), lr=0.5, lam=0.3, mu=0.0)
    rows = [[0.0, 0.0] if c is None else [1.0, c] for c in prototypes or []]
    received = {"prototypes": table(*rows)} if prototypes else {}
    state, said = method.local(states(), received, cohort(1), given(train=SAMPLES["train"], prototypes=SEEN))
    expected = list(trained(prototypes or [None, None], lam=0.3))
    assert close(state["w"], expected)
    (a, *_), (b, *_) = expected  # features of the trained bodies; client 1 has three samples, so two steps of one each
    assert close(said["prototypes"], [[[1.0, 2 * a], [0.0, 0.0]], [[1.0, 3 * b], [1.0, 1 * b]]])


def test_an_epoch_counts_the_samples_of_each_client_and_never_more_batches_than_a_round():
    method = make("fedproto", chain())
    many = Cohort(0, 0, torch.tensor([0, 1]), torch.tensor([1, 50]), torch.tensor([-1, -1]))
    _, said = method.local(states(), {}, many, given(train=SAMPLES["train"], prototypes=SEEN * 9))
    assert said["prototypes"][:, :, 0].tolist() == [[1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 4.25), ("clients", 3.5)])
def test_the_mean_of_a_class_is_over_its_holders_and_unheard_classes_keep_theirs(weighting, expected):
    method = make("fedproto", Task(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 3))), weighting=weighting)
    first = table([1.0, 2.0], [0.0, 0.0], [2.0, 6.0])
    second = table([3.0, 5.0], [0.0, 0.0], [0.0, 0.0])
    old = table([1.0, -1.0], [1.0, -3.0], [0.0, 0.0])
    new = aggregated(method, {"prototypes": old}, {"prototypes": torch.stack([first, second])})["prototypes"]
    assert new.tolist() == [[1.0, expected], [1.0, -3.0], [1.0, 6.0]]


def test_nothing_is_broadcast_before_there_is_a_prototype():
    method = make("fedproto", chain())
    server, _ = method.init(2)
    assert method.broadcast(server, cohort()) == {}
    assert list(method.broadcast({"prototypes": table([0.0, 0.0], [1.0, 0.0])}, cohort(1))) == ["prototypes"]


@pytest.mark.parametrize("bias", [True, False])
def test_judged_is_the_nearest_prototype_and_beside_it_the_network(bias):
    task = Task(nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3, bias=bias)))
    method = make("fedproto", task)
    w, x = task.init(3)[None], torch.linspace(-3, 3, 50)[None, :, None]
    means = torch.tensor([[0.3, -0.2], [0.0, 0.0], [-0.5, 0.4]])
    server = {"prototypes": torch.cat([torch.tensor([[1.0], [0.0], [1.0]]), means], 1)}  # class 1 has none
    judged = method.personal(server, {"w": w}, cohort(1), given())
    found = method.predict(judged["personal"], x).argmax(-1)[0]
    distance = torch.cdist(task.features(w, x, {})[0], means)
    distance[:, 1] = torch.inf
    assert torch.equal(found, distance.argmin(1)) and set(found.tolist()) == {0, 2}
    assert torch.equal(method.predict(judged["network"], x), task.logits(w, x, {}))


def test_a_prototype_at_a_distance_of_one_is_nearer_than_one_at_two():
    method = make("fedproto", chain())
    model = {"w": torch.tensor([[1.0, 5.0, -5.0]]), "prototypes": table([1.0, 3.0], [1.0, 0.0])[None]}
    x = torch.tensor([[[2.0], [1.0], [-3.0]]])  # features 2, 1, -3; prototypes 3 and 0; the head prefers class 0
    assert close(method.predict(model, x), [[[1.5, 0.0], [-1.5, 0.0], [-13.5, 0.0]]])  # 3 f - 9 / 2, and 0


def test_the_accuracy_of_a_run_is_that_of_the_nearest_prototype():
    data = federate(load("digits"), 4, "dirichlet:0.5", cap=40)
    method = make("fedproto", Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))))
    first = begin(method, 4)
    assert list(evaluate(method, data, first)) == ["personal"]  # there is no prototype yet
    *_, done = simulate(method, data, rounds=3, steps=5, batch=8)
    scores = evaluate(method, data, done.progress)
    assert list(scores) == ["personal", "network"]
    table, right = done.progress.server["prototypes"], 0
    for k, rows in enumerate(data.test):
        h = method.task.features(done.progress.clients["w"][k][None], data.inputs[rows][None], {})[0]
        distance = torch.cdist(h, table[:, 1:]).masked_fill(table[:, 0] == 0, torch.inf)
        right += int((distance.argmin(1) == data.labels[rows]).sum())
    assert int(scores["personal"].counts["correct"].sum()) == right != int(scores["network"].counts["correct"].sum())


def test_without_a_pull_it_is_local_only():
    data, task = (
        federate(load("digits"), 4, "dirichlet:0.5", cap=40),
        Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
    )
    runs = [
        simulate(method, data, rounds=3, sampled=3, steps=2, batch=8)
        for method in (make("local", task), make("fedproto", task, lam=0.0))
    ]
    (*_, alone), (*_, together) = runs
    # A loss with a penalty takes another way through memory: one rounding a step.
    assert torch.allclose(alone.progress.clients["w"], together.progress.clients["w"], atol=1e-6)
    assert together.traffic.up > 0


def test_measured_bytes_are_those_of_the_formula():
    data = federate(load("digits"), 4, "labels:2", cap=40)
    method = make("fedproto", Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))))
    *_, done = simulate(method, data, rounds=3, steps=10, batch=8)
    known = int(done.progress.server["prototypes"][:, 0].sum())
    for message in done.uplinks:
        detail = Detail(features=8, classes=10, own=len(message) // (4 * 9))
        assert bits("fedproto", 610, 61, 4, 4, detail=detail).up == 8 * (len(message) - HEADER.size)
    everything = bits("fedproto", 610, 61, 4, 4, detail=Detail(features=8, classes=known)).down
    assert known < 10 and done.traffic.down == 4 * (HEADER.size + 3 + everything // 8)  # ten flags in three bytes


def test_a_model_that_has_no_head_is_refused():
    with pytest.raises(ValueError, match="fedproto needs a model that ends in a trainable torch.nn.Linear"):
        _ = make("fedproto", Task(nn.Conv1d(1, 2, 1))).up


def test_all_rows_cost_their_values_alone_and_missing_ones_a_bit_each():
    assert Rows(2, 1).encode(table([1.0, 1.0], [1.0, -2.0])).hex() == "0000803f000000c0"
    assert Rows(3, 1).encode(table([0.0, 0.0], [1.0, 1.0], [1.0, -2.0])).hex() == "06" + "0000803f000000c0"
    assert len(Rows(10, 256).encode(torch.ones(10, 257))) * 8 == 81_920


def test_a_counted_row_costs_32_bits_more_than_its_values():
    assert CountedRows(3, 1).encode(table([0.0, 0.0], [5.0, 1.0], [0.0, 0.0])).hex() == "10000000" + "0000803f"
    two = torch.zeros(10, 257)
    two[3:5] = 7
    assert len(CountedRows(10, 256).encode(two)) * 8 == 16_448


@drawn(st.data(), st.integers(1, 40), st.integers(1, 3))
def test_tables_survive_the_round_trip(data, rows, width):
    for codec, top in ((Rows(rows, width), 1), (CountedRows(rows, width), 1 << 24)):
        counts = data.draw(st.lists(st.integers(0, top), min_size=rows, max_size=rows).filter(any))
        values = st.floats(width=32, allow_nan=False, allow_infinity=False)
        x = torch.tensor([[count, *(data.draw(values) if count else 0.0 for _ in range(width))] for count in counts])
        assert torch.equal(codec.decode(codec.encode(x.float())), x.float())


@drawn(st.binary(max_size=60), st.integers(1, 33), st.integers(1, 2))
def test_any_bytes_are_refused_or_encode_back_to_themselves(data, rows, width):
    for codec in (Rows(rows, width), CountedRows(rows, width)):
        try:
            x = codec.decode(data)
        except ValueError:
            continue
        assert codec.encode(x) == data


@pytest.mark.parametrize(
    ("codec", "data", "rule"),
    [
        (Rows(3, 1), "", "flags of 3 rows take 1 bytes, got 0"),
        (Rows(3, 1), "00", "some rows are there and some are missing"),
        (Rows(3, 1), "07" + "00" * 12, "some rows are there and some are missing"),
        (Rows(3, 1), "09" + "00" * 4, "unused bits 0"),
        (Rows(3, 1), "03" + "00" * 4, "2 rows of 1 values do not take 4 bytes"),
        (Rows(1, 1), "0000c07f", "finite"),
        (CountedRows(3, 1), "", "there is at least one, got 0 bytes"),
        (CountedRows(3, 1), "00" * 7, "a row takes 8 bytes"),
        (CountedRows(3, 1), "01000000" + "00" * 4, "stand for 1 .. "),
        (CountedRows(3, 1), "04000000" + "00" * 4 + "03000000" + "00" * 4, "rows must ascend"),
        (CountedRows(3, 1), "ffffffff" + "00" * 4, "stand for 1 .. 16777216 samples"),
        (CountedRows(3, 1), "03000000" + "0000c07f", "finite"),
    ],
)
def test_damaged_tables_are_refused(codec, data, rule):
    with pytest.raises(ValueError, match=rule):
        codec.decode(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("codec", "x", "rule"),
    [
        (Rows(1, 1), table([0.0, 1.0]), "at least one row"),
        (Rows(1, 1), table([2.0, 1.0]), "1 for the rows that are there"),
        (Rows(1, 1), table([1.0, torch.nan]), "finite"),
        (Rows(1, 1), table([1.0, 1.0]).double(), "float32"),
        (CountedRows(1, 1), table([1.5, 1.0]), "whole numbers"),
        (CountedRows(1, 1), table([-1.0, 1.0]), "whole numbers"),
        (CountedRows(300, 1), torch.full((300, 2), 2.0**24), "in 0 .. 14316557"),
    ],
)
def test_tables_that_cannot_be_sent_are_refused(codec, x, rule):
    with pytest.raises(ValueError, match=rule):
        codec.encode(x)
