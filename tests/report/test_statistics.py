"""Differences over seeds: intervals, the paired t-test, Holm's correction and equivalence, against numbers by hand."""

import json

import pytest

from pfed1bs.cli import main as cli
from pfed1bs.core.errors import UserError
from pfed1bs.report.records import table
from pfed1bs.report.statistics import Against, Difference, holm, paired, scores
from run_folders import TINY, run_folder

RUNS = [
    {"label": "a", "algorithm": "x", "seed": 0, "accuracy": 91.0},
    {"label": "a", "algorithm": "x", "seed": 1, "accuracy": 93.0},
    {"label": "b", "algorithm": "x", "seed": 1, "accuracy": 92.5},
    {"label": "b", "algorithm": "x", "seed": 0, "accuracy": 90.0},
    {"label": "c", "algorithm": "y", "seed": 1, "accuracy": 94.0, "accuracy_global": 80.0},
]


def test_differences_are_taken_seed_by_seed_over_the_seeds_of_both():
    found = {item.first: item.values for item in paired(RUNS, "a")}
    assert found == {"b": (-1.0, -0.5), "c": (1.0,)}


def test_other_metrics_are_compared_in_their_own_unit_and_not_by_a_margin_of_points():
    bits = {"algorithm": "x", "metric": "bits", "bits_late": 3.0}
    runs = [{**bits, "label": name, "seed": seed, "bits": 2 + at / 8} for name in "ab" for seed, at in ((0, 1), (1, 2))]
    runs[2]["bits"] += 0.25
    [found] = Against("a").verdicts(runs)
    assert found.difference == 0.125 and found.late == 0 and found.p is not None and found.equal is None
    heads, line = Against("a").sheet(runs)
    assert heads[1] == "bits" and heads[5].endswith("bits") and line[:2] == ["b", "+0.1250"] and line[4] == ""


def test_the_interval_is_students():
    low, high = Difference("a", "b", (1.0, 0.5)).interval()
    # mean 0.75, deviation 0.35355, two seeds: t = 12.706 with one degree of freedom
    assert (low, high) == pytest.approx((0.75 - 12.7062 * 0.25, 0.75 + 12.7062 * 0.25), abs=1e-3)
    low, high = Difference("a", "b", (0.0, 0.0, 3.0, 1.0)).interval(0.9)
    assert (low, high) == pytest.approx((1 - 2.35336 * 2**0.5 / 2, 1 + 2.35336 * 2**0.5 / 2), abs=1e-3)


def test_the_paired_t_test_is_the_one_of_the_tables():
    # mean 1, standard error 0.5 over five seeds: t = 2 with four degrees of freedom, p = 0.116117 in tables
    spread = (5 / 2) ** 0.5 / 2  # of -2 .. 2, so that deviation / sqrt(5) is 0.5
    found = Difference("a", "b", tuple(1 + k * 0.5 * 5**0.5 / (2 * spread) for k in (-2, -1, 0, 1, 2)))
    assert found.error == pytest.approx(0.5) and found.different() == pytest.approx(0.116117, abs=1e-5)
    assert Difference("a", "b", (0.5, -0.5)).different() == pytest.approx(1)


def test_two_methods_are_equal_only_if_the_difference_is_inside_the_margin_on_both_sides():
    values = (0.1, -0.1)  # mean 0, standard error 0.1, one degree of freedom: P(t > 3) = 1/2 - atan(3) / pi
    assert Difference("a", "b", values).equal(0.3) == pytest.approx(0.1024164, abs=1e-6)
    high = Difference("a", "b", (0.4, 0.2))  # the margin itself: as often outside as inside
    assert high.equal(0.3) == pytest.approx(0.5) and Difference("a", "b", (-0.4, -0.2)).equal() == pytest.approx(0.5)


def test_differences_that_never_vary_need_no_division():
    assert Difference("a", "b", (0.0, 0.0, 0.0)).different() == 1 and Difference("a", "b", (0.0, 0.0)).equal() == 0
    assert Difference("a", "b", (1.0, 1.0)).different() == 0 and Difference("a", "b", (1.0, 1.0)).equal() == 1


def test_holms_correction_by_hand():
    # ascending 0.01 0.02 0.03 0.04 times 4 3 2 1 is 0.04 0.06 0.06 0.04, and none falls
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([0.04]) == [0.04] and holm([]) == []


def test_one_seed_has_no_interval_and_an_unknown_method_no_differences():
    with pytest.raises(UserError, match="one seed has no interval"):
        Difference("a", "c", (1.0,)).interval()
    with pytest.raises(UserError, match="no run of d"):
        paired(RUNS, "d")


def test_only_seeds_that_both_have_are_compared():
    runs = [{"algorithm": "a", "seed": seed, "accuracy": 90.0 + seed} for seed in (0, 1, 2)]
    runs += [{"algorithm": "b", "seed": seed, "accuracy": 80.0} for seed in (1, 2, 7)]
    assert paired(runs, "a") == [Difference("b", "a", (-11.0, -12.0))]
    assert paired(runs, "b") == [Difference("a", "b", (11.0, 12.0))]


def test_scores_are_those_of_the_runs_that_have_them():
    assert scores(RUNS, "accuracy_global") == {"c": {1: 80.0}}
    assert scores([{"algorithm": "x", "seed": 3, "accuracy": 5}]) == {"x": {3: 5.0}}


def test_a_verdict_has_what_its_seeds_allow():
    b, c = Against("a").verdicts(RUNS)
    assert (b.method, b.seeds, b.difference, b.late) == ("b", 2, -0.75, None)
    assert b.p == pytest.approx(Difference("b", "a", (-1.0, -0.5)).different())  # c is not tested, so 1 test
    assert (c.method, c.difference, c.interval, c.p, c.equal) == ("c", 1.0, None, None, None)
    heads, *lines = Against("a").sheet(RUNS)
    assert lines[0][:3] == ["b", "-0.75", "-3.93..+2.43"] and lines[1][2:6] == ["", "", "", ""]
    assert heads[3:5] == ["p if\nequal", "p if 0.3\napart"]
    assert "corrected for 1 comparisons" in Against("a").explained(RUNS)


def many(count):
    return [{"algorithm": f"m{i}", "seed": s, "accuracy": 50 + i + s % 2 * i} for i in range(count) for s in (0, 1, 2)]


def test_more_than_ten_comparisons_are_tested_only_by_name_and_never_more_than_ten():
    assert all(item.p is not None for item in Against("m0").verdicts(many(11)))
    assert all(item.p is None and item.interval for item in Against("m0").verdicts(many(12)))
    chosen = Against("m0", ("m3", "m7")).verdicts(many(12))
    assert [item.method for item in chosen if item.p is not None] == ["m3", "m7"]
    with pytest.raises(UserError, match="at most 10 comparisons"):
        Against("m0", tuple(f"m{i}" for i in range(1, 12))).verdicts(many(12))
    with pytest.raises(UserError, match="no run of m99"):
        Against("m0", ("m99",)).verdicts(many(12))


def test_a_comparison_prints_and_writes_the_differences_to_a_method(tmp_path, capsys):
    words = ["--algorithms", "local,fedavg", "--seeds", "0,1", "--out", str(tmp_path / "c"), "--evaluate_every", "1"]
    assert cli.main(["compare", *TINY, *words, "--against", "local", "--rounds", "6"]) == 0
    assert "accuracy minus that of local, seed by seed" in capsys.readouterr().out
    held = json.loads((tmp_path / "c" / "table.json").read_text())
    [row] = held["paired"]["differences"]
    assert held["paired"]["tested"] == ["fedavg"] and (row["method"], row["seeds"]) == ("fedavg", 2)
    by = {(run["algorithm"], run["seed"]): run for run in held["runs"]}
    for key, found in (("accuracy", row["difference"]), ("accuracy_late", row["late"])):
        assert found == pytest.approx(sum(by["fedavg", s][key] - by["local", s][key] for s in (0, 1)) / 2)
    for run in held["runs"]:
        assert run["accuracy_late"] == pytest.approx(sum(value for _, _, value in run["curve"][-5:]) / 5)
        assert len(run["curve"]) == 6 and run["accuracy"] == run["curve"][-1][2]
    assert "Differences to local" in (tmp_path / "c" / "report.html").read_text()


def test_rows_that_nobody_runs_are_refused_before_anything_is_run(tmp_path, capsys):
    words = ["compare", *TINY, "--algorithms", "local,fedavg", "--out", str(tmp_path / "c")]
    assert cli.main([*words, "--against", "ditto"]) == 2
    assert cli.main([*words, "--tested", "fedavg"]) == 2 and not (tmp_path / "c").exists()
    said = capsys.readouterr().err
    assert "ditto is not among the methods" in said and "--tested needs a method" in said
    assert cli.main([*words, "--against", "local lr=0.05"]) == 2  # whose row would be called local
    said = capsys.readouterr().err
    assert "local lr=0.05 is not among" in said and "there are local, fedavg" in said and not (tmp_path / "c").exists()
    words += ["--runs", "ditto lam=0.3", "ditto lam=1", "--rounds", "1"]
    assert cli.main([*words, "--against", "ditto lam=1", "--tested", "ditto lam=0.3"]) == 0


def test_a_report_has_differences_and_a_table_alone_is_enough_for_them(tmp_path, capsys):
    for seed in (0, 1):
        run_folder(tmp_path / "r", "local", seed), run_folder(tmp_path / "r", "ditto", seed, (60.0, 92.5 + seed))
    assert cli.main(["report", str(tmp_path / "r"), "--against", "local"]) == 0
    assert "Differences to local" in (tmp_path / "r" / "report.html").read_text()
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path / "r" / "table.json"), "--against", "local"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("ditto")]
    assert lines[0][:2] == ["ditto", "+1.50"]
    assert lines[0][-2] == "+5.62"  # half of 60 - 50.25 and 92.5 - 91.5, of 60 - 50.25 and 93.5 - 91.5
    old = [{"algorithm": "ditto", "options": {"lr": 1.0, "lam": lam}, "seed": 0} for lam in (0.1, 0.3)]
    runs = [{**run, "accuracy_personal": 90.0 + i, "curve": [[10, 5, 80.0 + i]]} for i, run in enumerate(old)]
    (tmp_path / "old.json").write_text(json.dumps({"runs": runs}))  # as files in results/ were before `compare`
    assert cli.main(["report", str(tmp_path / "old.json"), "--against", "ditto lam=0.1"]) == 0
    assert "ditto lam=0.3    +1.00" in capsys.readouterr().out
    (tmp_path / "no.json").write_text("{}")
    assert cli.main(["report", str(tmp_path / "no.json"), "--against", "local"]) == 2
    assert "no table of runs" in capsys.readouterr().err


def test_differences_that_are_equal_but_for_rounding_are_not_tested():
    share = [100 * right / 17500 for right in (15000, 15035, 2321, 2356)]
    alike = Difference("a", "b", (share[1] - share[0], share[3] - share[2]))
    assert alike.values[0] != alike.values[1]  # as floats
    assert not alike.testable and alike.mean == pytest.approx(0.2)
    none = Difference("a", "b", (1e-14, -2e-14))
    assert none.testable and none.different() == 1.0 and none.equal() == 0.0
    assert Difference("a", "b", (0.005, 0.006)).different() < 0.1


def test_the_last_evaluations_of_an_older_file_are_five(tmp_path):
    curve = [[10 * at, 5, value] for at, value in enumerate((0.0, 0.0, 80.0, 81.0, 82.0, 83.0, 84.0), 1)]
    run = {"algorithm": "a", "seed": 0, "accuracy": 84.0, "curve": curve}
    (tmp_path / "old.json").write_text(json.dumps({"runs": [run]}))
    assert table(tmp_path / "old.json")[0]["accuracy_late"] == 82.0
