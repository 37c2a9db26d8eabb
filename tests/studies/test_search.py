"""The search for options, on functions whose optimum is known."""

from math import log

import pytest

from pfed1bs.studies.search import Axis, Search


def searched(score, points, *axes, allowed=lambda **options: True):
    """A search after so many points; score and allowed are functions of the options."""
    search = Search(axes)
    while len(search.tried) < points and (places := search.wanted()[: points - len(search.tried)]):
        for place in places:
            if not allowed(**search.options(place)):
                search.refused[place] = "too much"
                break
        else:
            search.tried |= {place: score(**search.options(place)) for place in places}
    return search


def hill(**tops):
    """A function that falls with the number of factors of 3 from the top in every option."""
    return lambda **options: -sum((log(options[key] / top) / log(3)) ** 2 for key, top in tops.items())


def values(search, at=0):
    return sorted(search.axes[at].value(place[at]) for place in search.tried)


def test_the_default_comes_first_then_both_sides():
    assert values(searched(hill(lr=0.05), 3, Axis("lr", 0.05))) == [0.01667, 0.05, 0.15]


@pytest.mark.parametrize(
    ("top", "grown"), [(1.35, [0.01667, 0.05, 0.15, 0.45, 1.35, 4.05]), (0.0006, [0.0002058, 0.0006173])]
)
def test_a_grid_grows_on_the_side_of_its_best_value_until_that_lies_inside(top, grown):
    search = searched(hill(lr=top), 7, Axis("lr", 0.05))
    assert set(grown) <= set(values(search)) and search.edge(0) == "inside"
    assert search.options(search.best)["lr"] == pytest.approx(top, rel=0.03)


def test_the_optimum_of_three_options_is_bracketed_and_near():
    search = searched(
        hill(lr=0.15, server_lr=0.3, lam=0.1), 9, Axis("lr", 0.05), Axis("server_lr", 1.0), Axis("lam", 0.1)
    )
    assert [search.edge(at) for at in (1, 2)] == ["inside"] * 2 and search.edge(0).count("with other options") == 2
    assert search.options(search.best) == {"lr": 0.15, "server_lr": 0.3333, "lam": 0.1}


def test_a_method_with_fewer_options_is_searched_finer():
    one = searched(hill(lr=0.085), 9, Axis("lr", 0.05))
    assert one.options(one.best)["lr"] == pytest.approx(0.085, rel=0.03)  # 3^(1/2) from the default
    two = searched(hill(lr=0.085, b=1.0), 9, Axis("lr", 0.05), Axis("b", 1.0))
    gaps = [min(b / a for a, b in zip(values(found), values(found)[1:], strict=False) if b > a) for found in (one, two)]
    assert gaps[0] < gaps[1]


@pytest.mark.parametrize("points", [3, 7, 9, 16])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_method_gets_the_same_number_of_different_points(count, points):
    names = ("lr", "b", "c")[:count]
    search = searched(hill(**dict.fromkeys(names, 0.7)), points, *(Axis(name, 0.05) for name in names))
    options = {tuple(search.options(place).values()) for place in search.tried}
    assert len(search.tried) == len(options) == points


def test_a_value_that_is_refused_is_a_limit_and_no_point():
    search = searched(hill(lam=100.0), 4, Axis("lam", 15.0), allowed=lambda lam: lam < 20)
    refused = [search.axes[0].value(place[0]) for place in search.refused]
    assert refused[:2] == [45.0, 25.98] and min(refused) >= 20 and len(search.tried) == 4
    assert values(search)[:2] == [5.0, 15.0] and 19.74 in values(search)  # 3^(1/4) of 15 is allowed
    assert search.edge(0) == "at its upper limit" and 19 < search.options(search.best)["lam"] < 20


def test_a_limit_holds_wherever_the_other_options_are():
    two = Axis("lam", 15.0), Axis("lr", 0.05)
    search = searched(hill(lam=100.0, lr=0.15), 9, *two, allowed=lambda lam, lr: lam < 20)
    assert search.edge(0) == "at its upper limit" and search.edge(1) == "inside" and len(search.tried) == 9
    assert search.options(search.best)["lam"] >= 19.74


def test_an_end_that_the_budget_did_not_reach_is_called_open():
    assert searched(hill(lr=100.0), 4, Axis("lr", 0.05)).edge(0) == "at the upper end"
    assert searched(hill(lr=1e-6), 4, Axis("lr", 0.05)).edge(0) == "at the lower end"
    assert searched(hill(lr=1.0), 1, Axis("lr", 1.0)).edge(0) == "at the lower end, at the upper end"


def test_a_value_is_inside_only_among_those_tried_with_the_other_options_at_their_best():
    two = Axis("lr", 1.0), Axis("lam", 1.0)
    tried = {(0.0, 0.0): 1.0, (-1.0, 0.0): 0.0, (1.0, 0.0): 0.0, (0.0, 1.0): 2.0, (0.0, 2.0): 1.0}
    search = Search(two, tried=tried)
    sides = "lower side tried with other options, upper side tried with other options"
    assert [search.edge(at) for at in (0, 1)] == [sides, "inside"]
    search.tried |= {(-1.0, 1.0): 0.5}
    assert search.edge(0) == "upper side tried with other options"
    search.refused |= {(at, 1.0): "too much" for at in (0.25, 0.5, 1.0)}
    assert search.edge(0) == "at its upper limit"


def test_of_equal_scores_the_middle_is_the_best():
    flat = searched(lambda **_: 1.0, 7, Axis("lr", 0.05), Axis("lam", 0.1))
    assert flat.best == (0.0, 0.0)
    line = Search((Axis("lr", 1.0),), tried={(0.0,): 1.0, (1.0,): 2.0, (2.0,): 2.0, (3.0,): 2.0, (4.0,): 0.0})
    assert line.best == (2.0,)
    pair = Search((Axis("lr", 1.0),), tried={(0.0,): 1.0, (1.0,): 2.0, (2.0,): 2.0, (3.0,): 1.0})
    assert pair.best == (1.0,)  # the nearer to the default


def test_a_share_moves_in_odds_and_stays_a_share():
    axis = Axis("alpha", 0.5, share=True)
    assert [axis.value(at) for at in (-2, -1, 0, 1, 2)] == [0.1, 0.25, 0.5, 0.75, 0.9]
