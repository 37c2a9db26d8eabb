"""What the seed decides: rows and signs, alike on every path, distinct and uniform."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from pfed1bs.core import native, rng
from pfed1bs.core.sketch import gaussian, srht
from pfed1bs.core.votes import unpack


def test_the_seed_and_round_are_the_whole_specification(either_path):
    sketch = srht(1000, 100, seed=7, round=3)
    again, other = srht(1000, 100, seed=7, round=3), srht(1000, 100, seed=7, round=4)
    assert torch.equal(sketch.rows, again.rows) and torch.equal(sketch.signs, again.signs)
    assert not torch.equal(sketch.rows, other.rows) and not torch.equal(sketch.signs, other.signs)
    assert srht(10, 4, seed=0).rows.tolist() == [8, 9, 10, 14]
    assert srht(10, 4, seed=0).signs.tolist() == [145, 2]


def test_building_touches_no_global_random_state():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    srht(100, 10, 1).forward(torch.zeros(100))
    gaussian(10, 5, 1)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.kernel
@pytest.mark.parametrize("size", [1, 2, 4, 32, 64, 128, 4096])
def test_native_rows_are_those_of_numpy(monkeypatch, size):
    for count in sorted({1, max(1, size // 3), max(1, size // 2), min(size, size // 2 + 1), max(1, size - 1), size}):
        drawn = []
        for path in (True, False):
            monkeypatch.setattr(native, "enabled", path)
            drawn.append(rng.distinct(2**64 - 5, size, count))
        assert drawn[0].dtype == drawn[1].dtype == np.int32
        assert drawn[0].tolist() == drawn[1].tolist()
        assert len(set(drawn[0].tolist())) == count and drawn[0].tolist() == sorted(drawn[0].tolist())


@pytest.mark.kernel
@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1000])
def test_native_bits_are_those_of_numpy(monkeypatch, count):
    drawn = []
    for path in (True, False):
        monkeypatch.setattr(native, "enabled", path)
        drawn.append(rng.bits(2**64 - 5, count).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("m", [5, 27])
def test_rows_are_uniform(m):
    """Every row equally often, below and above the size / 2 where the left-out rows are drawn."""
    counts = sum(np.bincount(srht(32, m, seed).rows.numpy(), minlength=32) for seed in range(2000))
    assert counts.sum() == 2000 * m
    assert chisquare(counts).pvalue > 1e-3


def test_pairs_of_rows_are_uniform():
    counts = np.zeros((8, 8))
    for seed in range(4000):
        first, second = srht(8, 2, seed).rows.tolist()
        counts[first, second] += 1
    assert chisquare(counts[np.triu_indices(8, 1)]).pvalue > 1e-3


def test_signs_are_fair_and_independent_of_the_rows():
    signs = torch.stack([unpack(srht(64, 8, seed).signs, 64) for seed in range(500)])
    assert chisquare((signs > 0).sum(0).numpy(), np.full(64, 250.0), sum_check=False).pvalue > 1e-3
