"""Values of one of two lengths, and bytes that a sender should not have written."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs.wire.either import Either

CODEC = Either(2, 5)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5), st.booleans())
def test_values_come_back_and_zeros_at_the_end_cost_nothing(values, short):
    x = torch.tensor([*values[:2], 0, 0, 0] if short else values, dtype=torch.float32)
    data = CODEC.encode(x)
    assert len(data) == (20 if x[2:].any() else 8)
    assert torch.equal(CODEC.decode(data), x)


def test_a_negative_zero_is_sent_among_the_first_alone():
    data = CODEC.encode(torch.tensor([1.0, -0.0, -0.0, 0, 0]))
    assert data == struct.pack("<2f", 1, -0.0) and CODEC.decode(data).signbit().tolist() == [False, True] + 3 * [False]


def test_two_equal_lengths_are_one():
    codec = Either(2, 2)
    assert codec.encode(torch.zeros(2)) == bytes(8) and codec.decode(bytes(8)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "2 or 5 float32 values take four bytes each, got 0 bytes"),
        (bytes(12), "got 12 bytes"),
        (struct.pack("<5f", 1, 1, 0, 0, 0), "not all 0"),
        (struct.pack("<2f", 1, torch.inf), "finite"),
        (struct.pack("<5f", 1, 1, 0, 0, torch.nan), "finite"),
    ],
)
def test_bytes_that_no_values_have_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        CODEC.decode(data)


@pytest.mark.parametrize(
    ("x", "words"), [(torch.ones(5).double(), "float32"), (torch.tensor([0.0, 0, 0, 0, torch.nan]), "finite")]
)
def test_values_that_are_no_finite_float32_are_not_sent(x, words):
    with pytest.raises(ValueError, match=words):
        CODEC.encode(x)


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3)])
def test_the_shorter_length_comes_first(lengths):
    with pytest.raises(ValueError, match=r"in 1 \.\. the longer one = 3"):
        Either(*lengths)
