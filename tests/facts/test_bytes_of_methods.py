"""What the compressed methods really send: the closed form of costs.py, byte for byte."""

from dataclasses import replace
from functools import cache
from math import ceil

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.algorithms.stc import ternary
from pfed1bs.data import federate, load
from pfed1bs.engine.rounds import simulate
from pfed1bs.facts.costs import bits
from pfed1bs.facts.printed import NETS
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import HEADER

SHAPES = {"mlp": (1, 28, 28), "vgg8": (3, 32, 32)}
METHODS = [  # name, options that make it the one of the table, what differs from the table's detail
    ("obda", {}, {}),
    ("signsgd", {}, {}),
    ("ef-sign", {}, {}),
    ("obcsaa", {"norm": False}, {}),
    ("zsign", {}, {}),
    ("eden", {}, {}),
    ("eden", {"bits": 2}, {"width": 2}),
    ("eden", {"bits": 0.5}, {"width": 0.5}),
    ("fedbat", {}, {}),
    ("fedpaq", {"bucket": 0}, {}),
    ("fedpaq", {"bucket": 0, "levels": 7}, {"levels": 7}),
    ("delta-float32", {}, {}),
    ("decomfl", {}, {}),
    ("decomfl", {"moves": 5, "directions": 20}, {"moves": 5, "directions": 20}),
    ("ferret", {}, {}),
    ("ferret", {"share": 0.01}, {"share": 0.01}),
    ("powersgd", {}, {}),
    ("powersgd", {"rank": 4}, {"rank": 4}),
    ("eden-two", {}, {}),
    ("eden-two", {"bits": 1}, {"both": 1}),
    ("fedbn", {}, {}),
    ("knnper", {}, {}),
    ("scaffold", {}, {}),
]


@cache
def task(net: str) -> Task:
    return Task(build(net, SHAPES[net], 10))


@pytest.mark.parametrize("net", SHAPES)
@pytest.mark.parametrize(("name", "options", "detail"), METHODS)
def test_messages_have_the_bytes_of_the_closed_form(net, name, options, detail):
    method = make(name, task(net), **options)
    cost = bits(name, NETS[net].n, NETS[net].m, 1, 1, detail=replace(NETS[net].detail, **detail))
    sizes = [sum(codec.size for codec in layout.values()) for layout in (method.up, method.down)]
    assert sizes == [ceil(cost.up / 8), ceil(cost.down / 8)]


def test_norms_of_buckets_and_of_kept_coordinates_are_paid_for():
    sizes = [
        sum(codec.size for codec in make(name, task("mlp"), **options).up.values())
        for name, options in (("fedpaq", {}), ("fedpaq", {"bucket": 0}), ("obcsaa", {}), ("obcsaa", {"norm": False}))
    ]
    assert sizes[0] - sizes[1] == 4 * (ceil(203_530 / 512) - 1)
    assert sizes[2] - sizes[3] == 4


@pytest.mark.parametrize("net", SHAPES)
def test_messages_of_stc_have_the_published_length_within_one_percent(net):
    method = make("stc", task(net))
    expected = bits("stc", NETS[net].n, NETS[net].m, 1, 1).up
    codec = method.up["update"]
    lengths = [
        8 * len(codec.encode(ternary(torch.randn(codec.n, generator=torch.Generator().manual_seed(seed)), codec.count)))
        for seed in range(10)
    ]
    assert sum(lengths) / 10 == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    "name",
    ["obda", "signsgd", "ef-sign", "obcsaa", "zsign", "eden", "fedbat", "fedpaq", "fedbn", "knnper", "scaffold"]
    + ["delta-float32", "decomfl", "ferret", "powersgd", "eden-two"],
)
def test_the_simulator_counts_what_the_layouts_say(name):
    data = federate(load("digits"), 4, "iid", cap=20)
    method = make(name, Task(build("mlp", data.shape, data.num_classes)))
    *_, done = simulate(method, data, rounds=2, steps=1, batch=4)
    up, down = (HEADER.size + sum(codec.size for codec in layout.values()) for layout in (method.up, method.down))
    assert (done.traffic.up, done.traffic.down, done.traffic.catch_up) == (4 * up, 4 * down, 0)


SHEET = {  # bytes of a message each way for the three networks, whatever else the table counts
    ("powersgd", "rank", 1): (6_288, 18_300, 216_460),
    ("powersgd", "rank", 2): (11_512, 31_120, 377_736),
    ("powersgd", "rank", 4): (21_960, 56_760, 700_288),
    ("eden-two", "bits", 0.1): (3_281, 6_558, 209_720),
    ("eden-two", "bits", 0.3): (9_835, 19_665, 629_150),
    ("eden-two", "bits", 1): (32_772, 65_540, 2_097_156),
    ("ferret", "share", 1 / 320): (2_544, 3_500, 191_248),
    ("decomfl", "directions", 10): (400, 400, 400),
    ("decomfl", "directions", 20): (800, 800, 800),
}


@pytest.mark.parametrize(("name", "option", "value"), SHEET)
def test_short_messages_have_the_bytes_of_their_sheet(name, option, value):
    tasks = (task("mlp"), task("vgg8"), Task(build("vgg16", (3, 32, 32), 100)))
    methods = [make(name, own, **{option: value}) for own in tasks]
    for layout in ("up", "down"):
        sizes = tuple(sum(codec.size for codec in getattr(method, layout).values()) for method in methods)
        assert sizes == SHEET[name, option, value]


def test_snapshots_hold_all_that_is_copied():
    for name, options, more in (
        ("powersgd", {}, 2 * (784 + 256)),
        ("powersgd", {"factors": "half"}, 2 * (784 + 256)),  # room for the longer factor
        ("decomfl", {"beta": 0.9}, 203_530),
        ("ferret", {}, 0),
    ):
        method = make(name, task("mlp"), **options)
        assert sum(codec.size for codec in method.snapshot_layout.values()) == 4 * (203_530 + more)
