"""The page about other tasks: its programs run and learn."""

import re
from pathlib import Path

import pytest

from pfed1bs.engine.metrics import METRICS
from pfed1bs.nn.losses import LOSSES

PAGE = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def told():
    """What the programs leave behind, one after the other."""
    names = {}
    for block in BLOCKS:
        exec(compile(block, "docs/tasks.md", "exec"), names)
    return names


def test_the_regression_of_the_page_finds_the_lines(told):
    assert told["score"].pooled("r2") > 0.8 and told["score"].metric.name == "r2"


def test_the_character_model_of_the_page_learns_the_text(told):
    assert told["bits"] < 1.5


def test_the_page_names_all_losses_and_metrics():
    assert len(BLOCKS) == 2
    for name in (*LOSSES, *METRICS):
        assert f"`{name}`" in PAGE, name
