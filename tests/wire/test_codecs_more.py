import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs.wire.codecs import Levels, Sparse


def test_levels_are_packed_from_the_lowest_bit():
    codec = Levels((3,), 8)
    assert codec.bits == 3 and codec.size == 2
    assert codec.encode(torch.tensor([1, 6, 5])) == bytes([0b01110001, 0b1])  # 5 = 101: its top bit is in byte 1
    assert codec.decode(bytes([0b01110001, 0b1])).tolist() == [1, 6, 5]


@pytest.mark.parametrize(("levels", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (15, 4), (16, 4), (257, 9), (65536, 16)])
def test_levels_take_the_fewest_bits_that_hold_them(levels, bits):
    assert Levels((8,), levels).bits == Levels((8,), levels).size == bits


@given(st.integers(2, 300), st.data())
def test_levels_come_back(levels, data):
    values = torch.tensor(data.draw(st.lists(st.integers(0, levels - 1), min_size=1, max_size=40)))
    codec = Levels((len(values),), levels)
    encoded = codec.encode(values)
    assert len(encoded) == codec.size
    assert torch.equal(codec.decode(encoded), values.int())


@given(st.integers(2, 20), st.integers(1, 20), st.data())
def test_bytes_of_levels_are_refused_or_those_of_what_they_decode_to(levels, count, data):
    codec = Levels((count,), levels)
    raw = data.draw(st.binary(min_size=codec.size, max_size=codec.size))
    try:
        values = codec.decode(raw)
    except ValueError:
        return
    assert codec.encode(values) == raw


@pytest.mark.parametrize(
    ("data", "rule"), [(b"\x03\x00", "1 bytes, got 2"), (b"\x03", "0 .. 2"), (b"\x40", "unused bits")]
)
def test_levels_refuse_wrong_lengths_values_and_unused_bits(data, rule):
    with pytest.raises(ValueError, match=rule):
        Levels((3,), 3).decode(data)


@pytest.mark.parametrize(("values", "rule"), [([0, 1, 3], "0 .. 2"), ([0, -1, 1], "0 .. 2"), ([0.0, 1, 2], "whole")])
def test_levels_refuse_values_that_do_not_fit(values, rule):
    with pytest.raises(ValueError, match=rule):
        Levels((3,), 3).encode(torch.tensor(values))


def test_levels_keep_the_shape_of_the_field():
    values = torch.arange(6).reshape(2, 3)
    assert torch.equal(Levels((2, 3), 6).decode(Levels((2, 3), 6).encode(values)), values.int())


def test_sparse_writes_magnitude_then_gaps_with_signs():
    codec = Sparse(8, 2)  # p = 1/4: one low bit and the sign
    assert codec.low == 2
    x = torch.tensor([0, 0, 0.5, 0, 0, 0, 0, -0.5])
    # Place 2 is visited at time 10 mod 8 = 2, place 7 at 35 mod 8 = 3.
    # Two values. Gap 2, positive: 4 -> 0 1, low bits 0 0; gap 0, negative: 1 -> 1, low bits 1 0. A zero fills up.
    assert codec.stride == 5
    assert codec.encode(x) == b"\x00\x00\x00\x3f" + bytes([0b00100110])
    assert torch.equal(codec.decode(codec.encode(x)), x)


def test_sparse_says_how_many_values_there_are_if_they_are_fewer_than_count():
    # One value of 2, at time 2, positive: a magnitude of -0.5, the number 1, then 4 -> 0 1 and 0 0.
    x = torch.tensor([0, 0, 0.5, 0, 0, 0, 0, 0])
    assert Sparse(8, 2).encode(x) == b"\x00\x00\x00\xbf" + bytes([1, 0b0010])
    assert torch.equal(Sparse(8, 2).decode(Sparse(8, 2).encode(x)), x)


def test_sparse_sends_nothing_but_a_zero_for_a_vector_of_zeros():
    assert Sparse(100, 5).encode(torch.zeros(100)) == bytes(4)
    assert torch.equal(Sparse(100, 5).decode(bytes(4)), torch.zeros(100))


@given(st.integers(1, 200), st.data())
def test_sparse_vectors_come_back(n, data):
    count = data.draw(st.integers(1, n))
    places = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=count))
    magnitude = data.draw(st.floats(2.0**-140, 2.0**127, width=32))
    x = torch.zeros(n)
    for place in places:
        x[place] = magnitude if data.draw(st.booleans()) else -magnitude
    codec = Sparse(n, count)
    encoded = codec.encode(x)
    assert len(encoded) <= codec.longest
    assert torch.equal(codec.decode(encoded), x)


@given(st.integers(1, 200), st.data())
def test_hostile_bytes_are_refused_or_those_of_what_they_decode_to(n, data):
    codec = Sparse(n, data.draw(st.integers(1, n)))
    raw = data.draw(st.sampled_from([b"\x00\x00\x80\x3f", b""])) + data.draw(st.binary(max_size=codec.longest + 1))
    try:
        x = codec.decode(raw)
    except ValueError:
        return
    assert codec.encode(x) == raw


def _code(number: int, *bits: int) -> bytes:
    return b"\x00\x00\x80\xbf" + bytes([number]) + np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"\x00\x00", "4 to"),
        (b"\x00\x00\x80\x3f" + b"\xff" * 4, "4 to 7 bytes, got 8"),  # 4, one for a number, and 2 * 3 + 16 / 4 bits
        (_code(1, 0, 0, 0, 0, 1, 0, 0), "beyond the last of 8"),  # gap 8 of 8
        (_code(1, 0, 0, 0, 0, 0, 1, 0, 0), "add up to more than 16"),
        (_code(3, *[1] * 3, *[0] * 6), "in 1 .. 1, got 3"),
        (_code(2, *[1] * 2, *[0] * 4), "in 1 .. 1, got 2"),
        (_code(0, 0), "in 1 .. 1, got 0"),
        (b"\x00\x00\x80\xbf", "in 1 .. 1, got 0"),
        (bytes(4) + bytes([0b1]), "do not fill"),
        (b"\x00\x00\x00\x80", "magnitude"),
        (b"\x00\x00\xc0\x7f" + bytes([0b11]), "finite"),
        (b"\x00\x00\x80\x3f" + bytes([0b1]), "do not fill"),
        (_code(1, 1, 0, 0, 1), "do not fill"),
    ],
)
def test_sparse_names_the_rule_that_bytes_break(data, rule):
    with pytest.raises(ValueError, match=rule):
        Sparse(8, 2).decode(data)


@pytest.mark.parametrize(
    ("x", "rule"),
    [([1.0, 1, 1, 0], "at most 2"), ([1.0, 2, 0, 0], "one finite"), ([float("inf"), 0, 0, 0], "one finite")],
)
def test_sparse_refuses_vectors_that_are_not_ternary(x, rule):
    with pytest.raises(ValueError, match=rule):
        Sparse(4, 2).encode(torch.tensor(x))


@pytest.mark.parametrize("build", [lambda: Levels((0,), 4), lambda: Levels((3,), 1), lambda: Sparse(4, 5)])
def test_fields_without_values_are_refused(build):
    with pytest.raises(ValueError, match="needs at least one|must be in"):
        build()


@pytest.mark.parametrize("step", [1, 2, 9, 256, 784])
@pytest.mark.parametrize("n", [203_530, 280_074])
def test_neighbours_and_columns_take_the_bits_of_positions_at_random(n, step):
    count = -(-n // 400)
    x = torch.zeros(n)
    x[torch.arange(count) * step % n] = 0.25
    assert 8 * len(Sparse(n, count).encode(x)) == pytest.approx(count * 11.11 + 32, rel=0.03)


@given(st.integers(1, 10_000))
def test_every_place_is_visited_once(n):
    stride = Sparse(n, 1).stride
    assert len({place * stride % n for place in range(n)}) == n
