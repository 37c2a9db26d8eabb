import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs.wire import rice


def test_small_values_give_the_bits_of_the_definition():
    # low = 1: 0 -> 1, 3 -> 0 1, 4 -> 0 0 1, then the low bits 0 1 0; together 1 0 1 0 0 1 0 1 | 0, seven unused zeros
    assert rice.encode(np.array([0, 3, 4]), 1) == bytes([0b10100101, 0])
    assert rice.decode(bytes([0b10100101, 0]), 1, 3, 7).tolist() == [0, 3, 4]


def test_exponent_is_that_of_the_published_shares():
    assert [rice.exponent(p) for p in (1 / 400, 1 / 100, 1 / 25, 0.25, 0.7, 1)] == [8, 6, 4, 1, 0, 0]


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_exponent_refuses_shares_that_are_none(share):
    with pytest.raises(ValueError, match=r"must be in \(0, 1\]"):
        rice.exponent(share)


def test_a_number_has_the_fewest_bytes_that_hold_the_largest():
    assert [rice.width(most) for most in (0, 1, 255, 256, 65_535, 65_536)] == [0, 1, 1, 2, 2, 3]


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(0, 12))
def test_values_come_back(values, low):
    data = rice.encode(np.array(values, np.int64), low)
    assert rice.decode(data, low, len(values), sum(values)).tolist() == values
    bits = sum((value >> low) + 1 + low for value in values)
    assert len(data) == (bits + 7) // 8


@given(st.binary(max_size=60), st.integers(0, 12), st.integers(0, 80))
def test_bytes_are_refused_or_the_code_of_what_they_decode_to(data, low, number):
    try:
        values = rice.decode(data, low, number, 1000)
    except ValueError:
        return
    assert rice.encode(values, low) == data and len(values) == number and values.sum() <= 1000


@pytest.mark.parametrize(
    ("data", "number", "rule"),
    [
        (b"", 1, "1 numbers with 2 low bits do not fill the 0 bytes"),
        (b"\x00", 1, "do not fill"),  # no end of the unary part
        (b"\x80", 1, "do not fill"),  # no room for the low bits
        (b"\x01\x00", 1, "do not fill the 2 bytes"),  # a byte too many
        (b"\x09", 1, "do not fill"),  # an unused bit that is set
        (b"\x08", 1, "more than 11"),  # 3 << 2
        (b"\xf9", 2, "more than 11"),  # 3 + 11, although the unary parts alone stand for no more than 8
    ],
)
def test_bytes_that_no_numbers_are_coded_to_are_refused_with_their_rule(data, number, rule):
    with pytest.raises(ValueError, match=rule):
        rice.decode(data, 2, number, 11)


@pytest.mark.parametrize("values", [[0], [7, 0, 900, 3], [1] * 50, list(range(200))])
def test_the_chosen_number_of_low_bits_is_the_shortest(values):
    values = np.array(values)
    assert len(rice.encode(values, rice.best(values))) == min(len(rice.encode(values, low)) for low in range(12))


@pytest.mark.parametrize(("n", "count"), [(203_530, 509), (280_074, 701)])
def test_uniform_positions_take_the_expected_length(n, count):
    p, low = 1 / 400, 8
    expected = count * (low + 1 / (1 - (1 - p) ** 2**low))
    lengths = []
    for seed in range(20):
        positions = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
        lengths.append(8 * len(rice.encode(np.diff(positions, prepend=-1) - 1, low)))
    assert np.mean(lengths) == pytest.approx(expected, rel=0.01)
