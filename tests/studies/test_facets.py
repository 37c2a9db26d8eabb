"""Pictures with a panel for every method: what they name, and how their axes are drawn."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from drawn_text import outside
from pfed1bs import report
from pfed1bs.report.groups import groups
from pfed1bs.report.pictures import shown_of
from pfed1bs.studies.cells import best
from pfed1bs.studies.facets import MANY, METHODS
from pfed1bs.studies.falls import falls
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


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_of_many_methods_those_with_the_most_seeds_have_a_panel(tmp_path):
    few, many = ["local", "ditto"], ["fedavg", "fedavg-ft", "eden", "zsign", "fedpaq", "fedprox", "fedper", "fedrep"]
    runs = [(name, lr, seed) for name in few + many for lr in (0.1, 0.3) for seed in range(2 if name in few else 1)]
    folders = [run_folder(tmp_path, name, seed, options=f"lr = {lr}") for name, lr, seed in runs]
    for kept, wanted in ((folders, few), (folders[8:], many)):  # of as many seeds each: all
        words = texts(METHODS["accuracy-methods"](shown_of(groups(map(report.read, kept)))).svg)
        assert [name for name in few + many if name in words] == wanted
    assert len(many) == MANY
    words = texts(METHODS["accuracy-methods"](shown_of(groups(map(report.read, folders[4:])))).svg)
    assert "ditto" in words and "eden" not in words  # nine
    words = texts(METHODS["accuracy-methods"](shown_of(groups(map(report.read, folders[4:-2])))).svg)
    assert "ditto" in words and "eden" in words  # eight, of which one has more seeds


def test_what_methods_lose_since_their_best_evaluation_stands_by_the_share_of_the_longest_step(tmp_path):
    falling = {1.0: ((94, 88), (92, 92)), 0.3: ((90, 89), (91, 90))}  # by step, of two seeds
    runs = [("ditto", step, seed, own) for step, both in falling.items() for seed, own in enumerate(both)]
    runs += [("obda", step / 10, 0, own) for step, own in ((0.05, (65, 60)), (0.015, (70, 71)))]
    runs += [("local", 1.0, 0, (50, 40))]  # has one setting
    folders = [run_folder(tmp_path, name, seed, own, options=f"step = {step}") for name, step, seed, own in runs]
    picture = falls(shown_of(groups(map(report.read, folders))))
    assert [line[:3] for line in picture.lines] == [["ditto", 1.0, 3.0], ["ditto", 0.3, 1.0]] + [
        ["obda", 1.0, 5.0], ["obda", 0.3, 0.0],
    ]  # fmt: skip
    low, high = picture.figure.axes[0].get_ylim()
    assert low < 0 and 1 < high  # both rows are in view
    assert picture.lines[0][3:] == [4.242641, -35.1186, 41.1186, 2]  # of 6 and 0
    words = texts(picture.svg)
    assert "obda" in words and "local" not in words and outside(picture.svg) == []
    assert falls(shown_of(groups(map(report.read, folders[:4])))) is None


def test_of_a_metric_that_is_better_lower_what_it_rises_by_is_lost(tmp_path):
    folders = [run_folder(tmp_path, name, options=f"step = {step}") for name in ("ditto", "obda") for step in (1, 0.1)]
    records = [
        replace(item, summary={**item.summary, "metric": "bits", "bits": 2.5}, metrics=[
            {**line, "bits": bits} for line, bits in zip(item.metrics, (4.0, 2.0, 2.25, 2.5), strict=True)
        ])
        for item in map(report.read, folders)
    ]  # fmt: skip
    assert [line[2] for line in falls(shown_of(groups(records))).lines] == [0.5] * 4


def test_the_best_evaluation_is_the_first_of_the_highest_mean_where_all_seeds_have_one():
    curves = [{10: 50.0, 20: 70.0, 30: 60.0, 40: 90.0}, {10: 54.0, 20: 58.0, 30: 68.0}]
    assert best(curves) == 20 and best(curves, -1) == 10  # 64 twice; 40 is not in both
    assert best([]) is None and best([{10: 1.0}, {20: 2.0}]) is None


def test_a_step_is_told_as_a_share_of_the_longest_and_small_losses_have_ticks(tmp_path):
    runs = [(name, step) for name in ("ditto", "obda") for step in (0.1, 1.0)]
    folders = [run_folder(tmp_path, name, 0, (92, 91), options=f"step = {step}") for name, step in runs]
    picture = falls(shown_of(groups(map(report.read, folders))))
    assert {line[1] for line in picture.lines} == {0.1, 1.0}
    assert [tick.get_text() for tick in picture.figure.axes[0].get_xticklabels()] == ["0", "0.1", "0.5", "1"]
