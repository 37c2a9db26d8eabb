"""Checksums and checks of numbers, native and not: what zlib and NumPy say."""

import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs.core import checks, native
from pfed1bs.core.checks import crc32, finite, joined, sealed
from pfed1bs.core.rng import stream


@given(st.binary(max_size=700), st.integers(0, 2**32 - 1))
def test_the_checksum_is_that_of_zlib(data, before):
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data), before) == zlib.crc32(data, before)


def test_the_checksum_of_long_bytes_is_that_of_zlib(either_path):
    data = np.random.default_rng(0).bytes(1_000_003)
    assert crc32(data) == zlib.crc32(data)
    for start in range(65):  # any alignment, any rest
        assert crc32(memoryview(data)[start : 4096 + 2 * start]) == zlib.crc32(data[start : 4096 + 2 * start])


@given(st.binary(max_size=700), st.binary(max_size=700))
def test_checksums_of_pieces_join_to_that_of_the_whole(first, second):
    assert joined(crc32(first), crc32(second), len(second)) == zlib.crc32(first + second)
    assert joined(0, crc32(second), 1 << 40) == crc32(second)  # nothing before, however long


@pytest.mark.parametrize("lengths", [(), (0,), (3,), (3, 0, 100_000), (1,) * 70])
def test_sealed_bytes_hold_head_checksum_and_pieces(either_path, lengths):
    pieces = [np.random.default_rng(size).bytes(size) for size in lengths]
    crc = zlib.crc32(b"head" + b"".join(pieces))
    found = sealed(b"head", [memoryview(piece) for piece in pieces])
    assert found == b"head" + crc.to_bytes(4, "little") + b"".join(pieces)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_one_number_that_is_not_finite_is_found(either_path, bad, place):
    values = np.full(10_000, np.finfo(np.float32).max, np.float32)
    values[::3] = -0.0
    assert finite(values) and finite(values[::2]) and finite(values[:0])
    values[place] = bad
    assert not finite(values)


def test_numbers_are_copied_out_of_bytes_at_any_address(either_path):
    values = np.random.default_rng(0).standard_normal(600_001, np.float32)
    data = b"odd" + values.tobytes()
    crc, found = checks.opened(memoryview(data)[3:], 7)
    assert found.tolist() == values.tolist() and crc == zlib.crc32(data[3:], 7)
    found += 1
    assert np.array_equal(np.frombuffer(data[3:], np.float32), values)
    bad = np.float32([1, np.inf]).tobytes()
    assert checks.opened(bad) == (zlib.crc32(bad), None)


def test_nothing_is_sealed_with_floats_that_are_not_finite(either_path):
    bad, good = np.float32([1, np.nan]).tobytes(), np.float32([1, 2]).tobytes()
    assert sealed(b"head", [good, bad], floats=0b11) is None and sealed(b"head", [good, bad], floats=0b10) is None
    assert sealed(b"head", [good, bad], floats=0b01) == sealed(b"head", [good, bad])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [1, 7, 100, 203_530, 1_500_001])
def test_weighted_sums_have_the_bits_of_torch_on_every_device_and_number_of_threads(device, n, threads):
    threads(2)
    total, ours = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64, device=device)
    for client, share in enumerate((0.3, 1 / 7, 0.06, 1.0)):
        x = torch.randn(n, generator=stream(client, "x"))
        total.add_(x, alpha=share)
        assert checks.accumulate(ours, x.to(device), share) is ours
    assert torch.equal(ours.cpu(), total)


@pytest.mark.parametrize(("total", "x"), [(torch.float32, torch.float32), (torch.float64, torch.float64)])
def test_sums_of_other_kinds_are_left_to_torch(total, x):
    ours = torch.ones(259, dtype=total)
    assert checks.accumulate(ours, torch.full((259,), 3, dtype=x), 0.5).tolist() == [2.5] * 259
    assert checks.accumulate(torch.ones(4, 2).double().mT, torch.ones(2, 4), 1.0).tolist() == [[2.0] * 4] * 2


@pytest.mark.kernel
def test_bytes_are_not_taken_from_what_holds_none():
    with pytest.raises(TypeError):
        native.sealed(b"head", ["text"], 0)
    with pytest.raises(ValueError, match="at most 64 pieces"):
        native.sealed(b"head", [b""] * (checks.PIECES + 1), 0)
