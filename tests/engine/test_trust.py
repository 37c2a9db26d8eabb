"""What the server believes: examples small enough to check by hand."""

from dataclasses import replace

import pytest
import torch

from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.algorithms.fedavg import FedAvg
from pfed1bs.core.errors import UserError
from pfed1bs.core.votes import pack, sign
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.rounds import Plan, begin, conclude
from pfed1bs.engine.trust import Trust, clamped, finite
from pfed1bs.engine.turns import Diverged
from pfed1bs.engine.workers import PIECE
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import load
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import encode, fingerprint
from tiny import linear


def concluded(algorithm, sizes, updates, trust):
    """Server and log after one round in which every client sends its update."""
    now = begin(algorithm, len(sizes))
    cohort = Cohort(0, 0, torch.arange(len(sizes)), torch.tensor(sizes), now.seen)
    said = [
        encode(algorithm.up, {"update": torch.tensor(update)}, kind="up", round=0, samples=size)
        for update, size in zip(updates, sizes, strict=True)
    ]
    after, log = conclude(algorithm, now, Plan(cohort, cohort, [[] for _ in sizes]), said, trust)
    return after.server["w"] - now.server["w"], {name: int(value) for name, value in log.items()}


@pytest.mark.parametrize(
    ("scales", "expected", "cut"),
    [
        ([1.0, 2, 3, 4, 100], [1.0, 2, 3, 4, 6], 1),
        ([1.0, 2, 3, 4, 50, 100], [1.0, 2, 3, 4, 6, 6], 2),  # the lower of the two middle values
        ([1.0, 2, 3, 100], [1.0, 2, 3, 100], 0),  # too few to tell who is right
        ([0.0, 0, 0, 1, 1], [0.0, 0, 0, 0, 0], 2),
        ([[1.0, 10], [1, 10], [1, 10], [1, 100], [9, 10]], [[1.0, 10], [1, 10], [1, 10], [1, 20], [2, 10]], 2),
    ],
)
def test_from_five_messages_on_scales_are_at_most_twice_their_median_layer_by_layer(scales, expected, cut):
    found, count = clamped(torch.tensor(scales))
    assert found.tolist() == expected and int(count) == cut


@pytest.mark.parametrize("scales", ["one", "layer"])
def test_the_shared_model_moves_as_if_a_loud_client_had_sent_twice_the_median(scales):
    algorithm = make("pfed1bs-delta", Task(build("mlp", (1, 8, 8), 10)), scales=scales)
    server, _ = algorithm.init(5)
    cohort = Cohort(0, 0, torch.arange(5), torch.tensor([9, 8, 7, 6, 5]), torch.full((5,), -1))
    signs = [pack(sign(torch.randn(algorithm.m, generator=torch.Generator().manual_seed(k)))) for k in range(5)]
    shape = algorithm.up["scale"].shape

    def moved(last):
        numbers = [torch.full(shape, float(value)) for value in (1, 2, 3, 4, last)]
        said = [{"signs": bits, "scale": scale} for bits, scale in zip(signs, numbers, strict=True)]
        return algorithm.aggregate(server, iter(said), cohort)

    loud, believed = moved(1e30), moved(6)
    assert int(loud.pop("log/clamped")) == 1 and int(believed.pop("log/clamped")) == 0
    assert all(torch.equal(loud[name], believed[name]) for name in believed)
    assert not torch.equal(moved(5)["theta"], believed["theta"])


def test_samples_count_up_to_a_multiple_of_the_median_and_the_header_keeps_the_claim():
    updates = [[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]]
    move, log = concluded(FedAvg(linear()), [1, 2, 97], updates, Trust())
    torch.testing.assert_close(move, torch.tensor([3.89, 3.90]))
    assert log == {}
    move, log = concluded(FedAvg(linear()), [1, 2, 97], updates, Trust(max_weight=2.5))
    torch.testing.assert_close(move, torch.tensor([(1 + 5 * 4) / 8, (2 + 5 * 4) / 8]))  # 97 counts as 5
    assert log == {"capped": 1}


def test_a_field_is_shortened_to_a_multiple_of_the_median_norm():
    updates = [[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]]
    move, log = concluded(FedAvg(linear()), [1, 1, 1], updates, Trust(max_norm=10))
    torch.testing.assert_close(move, torch.tensor([1 + 12, 2 + 16]) / 3)  # 50 long, 20 are believed
    assert log == {"clipped": 1}


def test_a_state_that_is_not_finite_is_refused_with_the_clients_that_make_it_so():
    algorithm = FedAvg(linear(), server_lr=8.0)
    with pytest.raises(Diverged, match="round 0: the message of client 1, 3 makes the shared state") as error:
        concluded(algorithm, [1] * 4, [[1.0, 2.0], [3e38, 0.0], [-5.0, 0.0], [0.0, -3e38]], Trust())
    assert error.value.clients == [1, 3]
    assert finite({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.uint8)})
    assert not finite({"a": torch.ones(2), "b": torch.tensor([1.0, float("nan")])})


@pytest.mark.parametrize("place", [0, PIECE // 4 - 1, PIECE // 4, PIECE // 4 + 4])
def test_one_number_of_a_long_state_that_is_not_finite_is_found(threads, place):
    threads(2)
    values = torch.ones(PIECE // 4 + 5)
    assert finite({"a": values})
    values[place] = float("inf")
    assert not finite({"a": values})


NEVER_NEGATIVE = {
    "pfed1bs-delta": "scale",
    "ef-sign": "scale",
    "eden": "scale",
    "eden-two": "scale",
    "obcsaa": "norm",
    "fedbat": "scales",
    "fedpaq": "norms",
}


@pytest.mark.parametrize("name", REGISTRY)
def test_scales_and_norms_must_not_be_negative_and_no_header_changes_for_it(name):
    layout = make(name, Task(build("mlp", (1, 8, 8), 10))).up
    ruled = [field for field, codec in layout.items() if isinstance(codec, Floats) and codec.least == 0]
    assert ruled == ([NEVER_NEGATIVE[name]] if name in NEVER_NEGATIVE else [])
    plain = {field: Floats(codec.shape) if field in ruled else codec for field, codec in layout.items()}
    assert fingerprint(plain) == fingerprint(layout)
    for field in ruled:
        codec, values = layout[field], torch.zeros(layout[field].shape)
        assert codec.decode(codec.encode(values)).eq(0).all()
        bad = values.clone().view(-1).index_fill(0, torch.tensor([0]), -0.5).view(values.shape)
        for refused in (lambda: codec.encode(bad), lambda: codec.decode(plain[field].encode(bad))):  # noqa: B023
            with pytest.raises(ValueError, match="must be at least 0, got -0.5: it is a scale or a norm"):
                refused()


def test_averaged_variances_must_not_be_negative():
    algorithm = make("fedavg", Task(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)), bn="avg"))
    least = {name: codec.least for name, codec in algorithm.up.items() if name.startswith("buffer/")}
    assert sorted(least.values()) == [-float("inf"), 0] and least["buffer/1.running_var"] == 0


@pytest.mark.parametrize("key", ["max_weight", "max_norm"])
def test_bounds_are_at_least_the_median_and_belong_to_what_a_run_is(key):
    with pytest.raises(UserError, match=f"{key} must be at least 1"):
        load(None, [f"--{key}", "0.5"])
    config = load(None, [f"--{key}", "3"])
    assert getattr(config, key) == 3.0 and getattr(load(None), key) is None
    assert replace(config, **{key: None}) == load(None)


@pytest.mark.parametrize("bound", [0.5, 0, -1, float("inf"), float("nan")])
def test_a_bound_below_the_median_is_refused(bound):
    for name in ("max_weight", "max_norm"):
        with pytest.raises(ValueError, match="at least 1, the median itself"):
            Trust(**{name: bound})
