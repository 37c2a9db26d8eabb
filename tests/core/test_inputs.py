"""Tensors whose memory is not what they say, sizes that row numbers cannot count, and memory that is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pfed1bs.core import native, rng
from pfed1bs.core.checks import accumulate
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import hadamard
from pfed1bs.core.votes import pack, unpack

PHI = srht(60, 24, seed=1)


@pytest.mark.parametrize(
    "apply",
    [hadamard, lambda x: PHI.forward(x[..., :60]), lambda x: PHI.adjoint(x[..., :24]), pack],
    ids=["hadamard", "forward", "adjoint", "pack"],
)
def test_a_view_with_a_minus_counts_with_its_minus(apply):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    view = torch._neg_view(x)
    assert view.is_neg() and torch.equal(apply(view), apply(-x))


def test_a_result_goes_into_a_view_with_a_minus_with_its_minus():
    x, below = torch.randn(8, generator=torch.Generator().manual_seed(0)), torch.zeros(8)
    hadamard(x, out=torch._neg_view(below))
    assert torch.equal(below, -hadamard(x))
    total = torch.zeros(8, dtype=torch.float64)
    assert torch.equal(accumulate(total, torch._neg_view(x), 0.5), -0.5 * x.double())
    assert torch.equal(accumulate(torch._neg_view(total.clone()), x, 0.5), torch.zeros(8, dtype=torch.float64))


def test_shapes_can_be_asked_for_without_numbers():
    with FakeTensorMode():
        x = torch.empty(3, 64)
        assert hadamard(x).shape == (3, 64)
        assert unpack(torch.empty(3, 8, dtype=torch.uint8), 64).shape == (3, 64)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(("size", "count"), [(1 << 32, 3), (1 << 40, 3), (12, 3), (0, 0), (-8, 1), (8, 9), (8, -1)])
def test_numbers_beyond_what_rows_can_count_are_refused(size, count, enabled, monkeypatch):
    monkeypatch.setattr(native, "enabled", native.enabled and enabled)
    with pytest.raises(ValueError, match=r"up to 2\^31|distinct ones"):
        rng.distinct(1, size, count)
    with pytest.raises(ValueError, match=r"at most 2\^31"):
        srht((1 << 31) + 1, 3, seed=0)


@pytest.mark.kernel
def test_rows_of_the_longest_projection_are_not_negative():
    rows = rng.distinct(5, 1 << 31, 1000)
    assert rows.dtype == np.int32 and (np.diff(rows) > 0).all() and rows[0] >= 0


@pytest.mark.kernel
def test_large_memory_that_is_kept_can_be_taken_by_the_system():
    """What Linux may take at any time is counted as lazily freed."""
    maps = Path("/proc/self/smaps_rollup")
    if not maps.exists():
        pytest.skip("the system does not say it")

    def lazy():
        return int(maps.read_text().partition("LazyFree:")[2].split()[0]) << 10

    before, size = lazy(), 1 << 25
    held = native.empty(size).fill_(1)
    assert lazy() - before < size
    del held
    assert lazy() - before >= 4 * size
    native.empty(size).fill_(1)
