"""The benchmark's rows and table; times themselves are not tested."""

import pytest
import torch

from pfed1bs.facts import bench


def test_every_operation_has_a_row_for_every_size_and_number_of_threads(threads):
    threads(2)
    rows = bench.kernels(sizes=[6, 9], seconds=0.0)
    assert torch.get_num_threads() == 2
    operations = ["transform", "in place", "forward", "adjoint", "gaussian", "pack", "vote"]
    expected = [(count, log2, name) for count in (1, 2) for log2 in (6, 9) for name in operations]
    assert [(row["threads"], row["log2"], row["operation"]) for row in rows] == expected
    for row in rows:
        assert row["microseconds"] > 0 and row["copy_ratio"] > 0
        assert (row["transform_ratio"] is None) == (row["operation"] in ("transform", "in place", "pack", "vote"))
        assert (row["gbit_per_second"] is None) == (row["operation"] != "vote")


def test_one_thread_is_measured_once(threads):
    threads(1)
    assert {row["threads"] for row in bench.kernels(sizes=[4], seconds=0.0)} == {1}


def test_a_dense_projection_that_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(bench, "DENSE", 4 * 56 * 5)
    assert "gaussian" in {row["operation"] for row in bench.kernels(sizes=[6], seconds=0.0)}
    assert "gaussian" not in {row["operation"] for row in bench.kernels(sizes=[7], seconds=0.0)}


def test_votes_are_rated_by_the_packed_bits_they_read(monkeypatch, threads):
    threads(1)
    monkeypatch.setattr(bench, "_fastest", lambda calls, seconds: [1e-6, 4e-6, 2e-6][: len(calls)])
    rows = {row["operation"]: row for row in bench.kernels(sizes=[10])}
    assert rows["vote"]["gbit_per_second"] == 20 * 1024 / 4e-6 * 1e-9
    assert rows["forward"]["copy_ratio"] == 4 and rows["forward"]["transform_ratio"] == 2


@pytest.mark.parametrize(
    "name, expected",
    [
        ("AMD EPYC 9R14 96-Core Processor", "kernels-amd-epyc-9r14-96-core.json"),
        ("Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", "kernels-intel-xeon-platinum-8488c.json"),
        ("Intel(R) Xeon(R) Processor", "kernels-intel-xeon-model-207.json"),
        ("aarch64", "kernels-aarch64.json"),
    ],
)
def test_results_are_kept_by_processor(name, expected):
    assert bench.file_name(name, "207") == expected


def test_the_table_shows_times_and_ratios():
    row = {"operation": "forward", "log2": 18, "threads": 2, "microseconds": 123.44, "copy_ratio": 3.2}
    [line] = bench.lines([{**row, "transform_ratio": 1.1, "gbit_per_second": None}])
    assert line == ["forward", "2^18", "2", "123.4", "3.20", "1.10", ""] and len(line) == len(bench.COLUMNS)
