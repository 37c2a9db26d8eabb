import pytest

from pfed1bs.core.errors import UserError
from pfed1bs.studies.statistics import Difference, paired, scores

RUNS = [
    {"label": "a", "algorithm": "x", "seed": 0, "accuracy": 91.0},
    {"label": "a", "algorithm": "x", "seed": 1, "accuracy": 93.0},
    {"label": "b", "algorithm": "x", "seed": 1, "accuracy": 92.5},
    {"label": "b", "algorithm": "x", "seed": 0, "accuracy": 90.0},
    {"label": "c", "algorithm": "y", "seed": 1, "accuracy": 94.0, "accuracy_global": 80.0},
]


def test_differences_are_taken_seed_by_seed_over_the_seeds_of_both():
    found = {item.second: item.values for item in paired(RUNS, "a")}
    assert found == {"b": (1.0, 0.5), "c": (-1.0,)}


def test_the_interval_is_students():
    low, high = Difference("a", "b", (1.0, 0.5)).interval()
    # mean 0.75, deviation 0.35355, two seeds: t = 12.706 with one degree of freedom
    assert (low, high) == pytest.approx((0.75 - 12.7062 * 0.25, 0.75 + 12.7062 * 0.25), abs=1e-3)
    low, high = Difference("a", "b", (0.0, 0.0, 3.0, 1.0)).interval(0.9)
    assert (low, high) == pytest.approx((1 - 2.35336 * 2**0.5 / 2, 1 + 2.35336 * 2**0.5 / 2), abs=1e-3)


def test_one_seed_has_no_interval_and_an_unknown_method_no_differences():
    with pytest.raises(UserError, match="one seed has no interval"):
        Difference("a", "c", (1.0,)).interval()
    with pytest.raises(UserError, match="no run of d"):
        paired(RUNS, "d")


def test_scores_are_those_of_the_runs_that_have_them():
    assert scores(RUNS, "accuracy_global") == {"c": {1: 80.0}}
    assert scores([{"algorithm": "x", "seed": 3, "accuracy": 5}]) == {"x": {3: 5.0}}
