import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs import golomb


def test_small_values_give_the_bits_of_the_definition():
    # low = 1: 0 -> 0 0, 3 -> 1 0 1, 4 -> 1 1 0 0; together 0 0 1 0 1 1 1 0 | 0, then seven ones of filling
    assert golomb.encode(np.array([0, 3, 4]), 1) == bytes([0b01110100, 0b11111110])
    assert golomb.decode(bytes([0b01110100, 0b11111110]), 1).tolist() == [0, 3, 4]


def test_exponent_is_that_of_the_published_shares():
    assert [golomb.exponent(p) for p in (1 / 400, 1 / 100, 1 / 25, 0.25, 0.7, 1)] == [8, 6, 4, 1, 0, 0]


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_exponent_refuses_shares_that_are_none(share):
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        golomb.exponent(share)


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(0, 12))
def test_values_come_back(values, low):
    data = golomb.encode(np.array(values, np.int64), low)
    assert golomb.decode(data, low).tolist() == values
    bits = sum((value >> low) + 1 + low for value in values)
    assert len(data) == (bits + 7) // 8


@given(st.binary(max_size=60), st.integers(0, 12))
def test_bytes_are_refused_or_the_code_of_what_they_decode_to(data, low):
    try:
        values = golomb.decode(data, low)
    except ValueError:
        return
    assert golomb.encode(values, low) == data


@pytest.mark.parametrize("data", [b"\xff", b"\x00\xff\xff", b"\xfe"])
def test_a_byte_of_ones_or_half_a_code_at_the_end_is_refused(data):
    with pytest.raises(ValueError, match="no whole code"):
        golomb.decode(data, 8)


@pytest.mark.parametrize(("n", "count"), [(203_530, 509), (280_074, 701)])
def test_uniform_positions_take_the_expected_length(n, count):
    p, low = 1 / 400, 8
    expected = count * (low + 1 / (1 - (1 - p) ** 2**low))
    lengths = []
    for seed in range(20):
        positions = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
        lengths.append(8 * len(golomb.encode(np.diff(positions, prepend=-1) - 1, low)))
    assert np.mean(lengths) == pytest.approx(expected, rel=0.01)
