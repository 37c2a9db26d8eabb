"""Pictures with a panel for every method: what they name, and how their axes are drawn."""

from xml.etree import ElementTree

import pytest

from drawn_text import outside
from pfed1bs import report
from pfed1bs.report.groups import groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.studies.facets import METHODS
from run_folders import run_folder


@pytest.mark.parametrize(
    ("methods", "accuracy"), [(("local", "ditto"), 90), (("local", "ditto"), 99), (("ditto",), 90)]
)
def test_every_method_has_a_panel_and_every_setting_a_line(tmp_path, methods, accuracy):
    runs = [(name, lr, seed) for name in methods for lr in (0.1, 0.3) for seed in (0, 1)] + [("fedavg", 0.1, 0)]
    folders = [
        run_folder(tmp_path, name, seed, (50, accuracy + seed / 2), options=f"lr = {lr}") for name, lr, seed in runs
    ]
    shown = shown_of(groups(map(report.read, folders)))
    text = METHODS["accuracy-methods"](shown).svg
    words = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert [words.count(name) for name in (*methods, "fedavg")] == [*[1] * len(methods), 0]
    assert words.count("lr=0.1") == words.count("lr=0.3") == 1  # the same in all panels: said once
    assert words.count("bars: 95 % intervals, 2 seeds") == 1
    assert ("99.2" in words) == (accuracy == 99)  # where little is wrong, by what is wrong
    assert METHODS["loss-methods"](shown)


@pytest.mark.parametrize(
    "values", [(5, 10, 15, 20), (5, 10, 15, 20, 25, 30), ("a setting that is long", "another long")]
)
def test_the_legend_below_a_full_grid_stays_in_the_picture(tmp_path, values):
    methods = ("local", "ditto", "fedavg", "pfed1bs-delta")
    folders = [
        run_folder(tmp_path, name, seed, options=f"lr_of_steps = {value!r}".replace("'", '"'))
        for name in methods
        for value in values
        for seed in (0, 1)
    ]
    shown = shown_of(groups(map(report.read, folders)))
    for draw in METHODS.values():
        text = draw(shown).svg
        words = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
        assert [words.count(f"lr_of_steps={value}") for value in values] == [1] * len(values)
        assert outside(text) == []
