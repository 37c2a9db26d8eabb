"""Signs and floats as bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfed1bs.wire.codecs import Floats, Signs


def test_signs_are_little_endian_bits_with_one_for_plus():
    assert Signs(1).encode(torch.tensor([1.0])) == b"\x01"
    assert Signs(1).encode(torch.tensor([-1.0])) == b"\x00"
    assert Signs(7).encode(torch.tensor([1.0, -1, -1, -1, -1, -1, 1])) == b"\x41"
    assert Signs(8).encode(torch.tensor([-1.0, -1, -1, -1, -1, -1, -1, 1])) == b"\x80"
    assert Signs(9).encode(torch.tensor([1.0, 1, -1, -1, -1, -1, -1, -1, 1])) == b"\x03\x01"


def test_floats_are_little_endian_and_row_after_row():
    assert Floats().encode(torch.tensor(1.0)).hex() == "0000803f"
    assert Floats((2, 2)).encode(torch.tensor([[1.0, 2], [3, -4]])).hex() == "0000803f0000004000004040000080c0"


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 1), (8, 1), (9, 2), (20_353, 2_545)])
def test_signs_take_one_bit_each(count, size):
    codec = Signs(count)
    values = torch.where(torch.arange(count) % 3 == 0, 1.0, -1.0)
    data = codec.encode(values)
    assert codec.shape == (count,) and codec.size == len(data) == size
    assert torch.equal(codec.decode(data), values) and codec.decode(data).dtype == torch.float32


@pytest.mark.parametrize(("shape", "size"), [((), 4), ((1,), 4), ((7,), 28), ((2, 3), 24), ((2, 1, 2), 16)])
def test_floats_take_four_bytes_each(shape, size):
    codec = Floats(shape)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    data = codec.encode(values)
    assert codec.shape == shape and codec.size == len(data) == size
    assert torch.equal(codec.decode(data), values) and codec.decode(data).shape == shape


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=1, max_size=100))
def test_packed_signs_travel_as_they_are(values):
    codec = Signs(len(values))
    data = codec.encode(torch.tensor(values))
    packed = codec.packed(data)
    assert packed.dtype == torch.uint8 and bytes(packed.tolist()) == data
    assert codec.encode(packed) == data and codec.decode(data).tolist() == values


def test_signs_of_many_clients_are_packed_at_once():
    values = torch.where(torch.arange(2 * 3 * 9).reshape(2, 3, 9) % 5 < 2, 1.0, -1.0)
    packed = Signs(9).pack(values)
    assert packed.shape == (2, 3, 2)
    assert [Signs(9).encode(packed[1, i]) for i in range(3)] == [Signs(9).encode(values[1, i]) for i in range(3)]


def test_a_view_with_gaps_and_a_tensor_in_a_graph_encode_like_their_values():
    values = torch.arange(12.0).reshape(3, 4)
    assert Floats((4, 3)).encode(values.T) == Floats((4, 3)).encode(values.T.contiguous())
    assert Floats((3, 4)).encode(values.clone().requires_grad_()) == Floats((3, 4)).encode(values)
    signs = torch.tensor([1.0, 9, -1, 9, 1, 9])[::2]
    assert Signs(3).encode(signs) == Signs(3).encode(signs.requires_grad_()) == b"\x05"


def test_float64_signs_are_signs_too():
    assert Signs(3).encode(torch.tensor([1, -1, 1], dtype=torch.float64)) == b"\x05"


def test_extreme_floats_are_kept():
    values = torch.tensor([0.0, -0.0, 3.4028234663852886e38, 1.401298464324817e-45, 1.1754943508222875e-38])
    assert Floats((5,)).decode(Floats((5,)).encode(values)).numpy().tobytes() == values.numpy().tobytes()


def test_decoded_values_can_be_changed_without_a_warning():
    data = Floats((2,)).encode(torch.ones(2))
    Floats((2,)).decode(data).add_(1)
    Signs(2).packed(b"\x03").add_(1)
    assert data == Floats((2,)).encode(torch.ones(2))


@pytest.mark.parametrize("bad", [0.0, 0.5, 2.0, float("nan"), float("inf")])
def test_what_is_no_sign_is_refused(bad):
    with pytest.raises(ValueError, match=r"signs must be \+1 or -1; pass sign\(x\), where 0 counts as \+1"):
        Signs(3).encode(torch.tensor([1.0, bad, -1.0]))
    with pytest.raises(ValueError, match="signs must be"):
        Signs(3).encode(torch.tensor([bad, 1.0, -1.0]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused_on_both_sides(bad):
    with pytest.raises(ValueError, match="values must be finite, got NaN or infinity; lower the learning rate"):
        Floats((2,)).encode(torch.tensor([1.0, bad]))
    with pytest.raises(ValueError, match="values must be finite, got NaN or infinity"):
        Floats((2,)).decode(torch.tensor([1.0, bad]).numpy().tobytes())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool])
def test_only_float32_is_encoded_as_floats(dtype):
    with pytest.raises(ValueError, match=rf"values must be float32, got {dtype}; convert them with .float\(\)"):
        Floats((2,)).encode(torch.ones(2, dtype=dtype))


@pytest.mark.parametrize(
    ("codec", "data", "words"),
    [
        (Signs(9), b"\x00", "9 signs are 2 bytes, got 1"),
        (Signs(9), b"\x00\x00\x00", "9 signs are 2 bytes, got 3"),
        (Signs(9), b"\x00\x02", "unused bits of the last byte must be 0"),
        (Signs(1), b"\x80", "unused bits of the last byte must be 0"),
        (Floats((2,)), bytes(7), "2 float32 values are 8 bytes, got 7"),
        (Floats(), b"", "1 float32 values are 4 bytes, got 0"),
    ],
)
def test_bytes_that_nothing_encodes_to_are_refused(codec, data, words):
    with pytest.raises(ValueError, match=words):
        codec.decode(data)


def test_packed_signs_must_have_the_right_size_and_no_stray_bits():
    with pytest.raises(ValueError, match="9 signs are 2 bytes, got 3"):
        Signs(9).encode(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="unused bits"):
        Signs(9).encode(torch.tensor([0, 255], dtype=torch.uint8))


@pytest.mark.parametrize("make", [lambda: Signs(0), lambda: Floats((0,)), lambda: Floats((3, 0))])
def test_a_field_without_values_is_refused(make):
    with pytest.raises(ValueError, match="needs at least one, got .*; leave the field out"):
        make()
