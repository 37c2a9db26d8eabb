"""The table of methods: what the layouts say, what the paper prints, and what docs/algorithms.md says."""

import json
import re
from functools import cache
from math import ceil
from pathlib import Path

import pytest
import torch

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.cli import main as cli
from pfed1bs.facts import capabilities as methods
from pfed1bs.facts import costs
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.rows import CountedRows, Rows

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
TICKS = {  # the paper's table of capabilities: fewer up, one bit up, fewer down, one bit down, personal
    "fedavg": "-----",
    "obda": "-x-x-",
    "obcsaa": "xx---",
    "zsign": "-x---",
    "pfed1bs": "xxxxx",
}
every = pytest.mark.parametrize("name", REGISTRY)


@cache
def mlp() -> dict[str, methods.Profile]:
    return {row.method: row for row in methods.mlp()}


def ticks(row: methods.Profile) -> str:
    told = (row.fewer(row.up), row.up.one_bit, row.fewer(row.down), row.down.one_bit, row.personalises)
    return "".join("x" if tick else "-" for tick in told)


def section(name: str) -> str:
    return PAGE.split(f"\n### {name}\n")[1].split("\n### ")[0]


@pytest.mark.parametrize("name", TICKS)
def test_the_registry_has_the_ticks_that_the_paper_prints(name):
    assert ticks(mlp()[name]) == TICKS[name]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("local", "----x"),
        ("eden", "-x---"),
        ("fedbat", "-x---"),
        ("stc", "x-x--"),
        ("decomfl", "x-x--"),
        ("ferret", "x-x--"),
        ("powersgd", "x-x--"),
        ("eden-two", "xxxx-"),
        ("delta-float32", "----x"),
        ("dispfl", "x---x"),  # two neighbours send half of the weights each
        ("fedbn", "----x"),
        ("knnper", "----x"),
        ("scaffold", "-----"),
        ("ditto", "----x"),
    ],
)
def test_capabilities_of_methods_that_the_paper_does_not_list(name, told):
    assert ticks(mlp()[name]) == told


@every
def test_bits_are_those_of_the_formulas_in_whole_bytes(name):
    more = {"obcsaa": 32, "fedpaq": 32 * (ceil(203_530 / 512) - 1)}  # the norm, and one for every bucket but the first
    cost, row = costs.bits(name, 203_530, 20_353, 1, 1), mlp()[name]
    for expected, way in ((cost.up + more.get(name, 0), row.up), (cost.down, row.down)):
        slack = 0 if way.varies else 7 * len(way.fields)
        assert 0 <= way.bits - expected <= slack


@pytest.mark.parametrize(
    ("layout", "way"),
    [
        ({}, (0, False, 0, 0, False)),
        ({"w": Floats((40,))}, (1280, False, 40, 0, False)),
        ({"signs": Signs(39), "scale": Floats()}, (72, False, 40, 39, True)),
        ({"signs": Signs(30), "plain": Floats((10,))}, (352, False, 40, 30, False)),
        ({"codes": Levels((40,), 2)}, (40, False, 40, 40, True)),
        ({"codes": Levels((40,), 3)}, (80, False, 40, 0, False)),
        ({"mask": Signs(40), "values": Floats((20,))}, (680, False, 20, 0, False)),
        ({"signs": Differences(40)}, (48, True, 40, 40, True)),
        ({"vectors": Floats((3,)), "factor": Either(2, 5)}, (208, True, 6, 0, False)),
        ({"prototypes": Rows(4, 10)}, (1280, True, 40, 0, False)),
        ({"prototypes": CountedRows(4, 10)}, (1056, True, 30, 0, False)),
    ],
)
def test_a_layout_says_how_many_values_it_has_and_which_take_one_bit(layout, way):
    found = methods.way(layout, own=3)
    assert (found.bits, found.varies, found.values, found.single, found.one_bit) == way
    assert found.fields == tuple(layout)


def test_expected_bits_of_sparse_values_are_near_the_measured_ones():
    codec, generator = Sparse(20_000, 200), torch.Generator().manual_seed(0)
    x = torch.zeros(20_000)
    x[torch.randperm(20_000, generator=generator)[:200]] = 0.5
    bits, values = methods.measured(codec, own=1)
    assert values == 200 and abs(8 * len(codec.encode(x)) - bits) < 0.03 * bits  # 200 gaps, standard error 1 %


def test_averaged_statistics_are_one_field_and_no_weights():
    rows = {row.method: row for row in methods.rows(Task(build("vgg8", (3, 32, 32), 10), bn="avg"), own=2)}
    assert rows["zsign"].up.fields == ("signs", "statistics") and rows["zsign"].up.values == 280_074
    assert rows["fedavg"].down.bits == 32 * (280_074 + 736) and ticks(rows["fedavg"]) == "-----"
    assert rows["fedavg"].kept == 1  # statistics do not count
    assert {*REGISTRY} - {*rows} == {"fedbn"}  # which averages none


def test_state_is_counted_in_models():
    assert {name: mlp()[name].kept for name in ("pfed1bs", "obda", "ef-sign", "dispfl")} == {
        "pfed1bs": 1,
        "obda": 2,  # its own model and the copy of the shared one
        "ef-sign": 3,  # and the memory
        "dispfl": 1.25,  # a mask of one byte per weight
    }


def test_options_of_the_recipe_change_the_row(capsys):
    assert cli.main(["list", "--json", "--algorithm.name", "eden", "--algorithm.bits", "0.5"]) == 0
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["eden"]["up"] == 2**14 + 32 and rows["eden"]["up fewer"] and rows["eden"]["up one bit"]
    assert rows["stc"]["up varies"] and isinstance(rows["stc"]["up"], int)


def test_list_fits_a_terminal_of_100_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)
    for name in REGISTRY:
        assert sum(line.split()[:1] == [name] for line in lines) == 2, name


def test_the_document_has_the_tables_as_they_are_generated():
    rows = list(mlp().values())
    for sheet in (methods.sent(rows), methods.capabilities(rows), methods.usual()):
        assert f"\n\n{sheet.markdown()}\n\n" in PAGE, (
            f"{sheet.title}: run python -m pfed1bs.facts.capabilities and copy it"
        )


def test_the_document_has_one_section_for_every_method_in_the_order_of_the_registry():
    assert re.findall(r"^### (.+)$", PAGE, re.MULTILINE) == list(REGISTRY)


@every
def test_the_section_of_a_method_names_its_paper_file_rule_and_options(name):
    text = section(name)
    assert algorithm_class(name).paper in text
    assert f"(../src/pfed1bs/algorithms/{REGISTRY[name].partition(':')[0]}.py)" in text
    assert 2 <= text[text.index("```") : text.rindex("```")].count("\n") <= 6
    assert "**Sent.**" in text and "**Departs.**" in text
    assert re.search(rf"\n\n{re.escape(methods.options(name))}\n(\n|$)", text + "\n"), (
        "run python -m pfed1bs.facts.capabilities"
    )


def test_options_are_listed_with_defaults_choices_and_meaning():
    train = "- `train` = sampled (or all): who does local work in a round"
    assert methods.options("local") == f"Usual options: `lr`, `mu`, `momentum`.\n\n{train}"
    assert "- `lam` = 0.0005: lambda: pull towards the consensus" in methods.options("pfed1bs").splitlines()
    assert "- `use_D` = true: random signs in front of the transform" in methods.options("pfed1bs").splitlines()
