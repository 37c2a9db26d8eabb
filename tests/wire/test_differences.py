"""Signs sent as differences: round trips, sizes and hostile bytes."""

import random
import tracemalloc
import zlib
from itertools import product
from math import ceil, log2

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfed1bs.core.votes import pack, unpack
from pfed1bs.wire.codecs import Differences
from pfed1bs.wire.messages import Refused, decode, encode


def flipped(known, places):
    x = known.clone()
    x[torch.tensor(places, dtype=torch.long)] *= -1
    return x


def drawn(count, share, seed=0):
    """Packed signs, and the same with a share of them flipped."""
    rng = np.random.default_rng(seed)
    known = torch.from_numpy(rng.choice([-1.0, 1.0], count).astype(np.float32))
    return pack(known), pack(flipped(known, np.flatnonzero(rng.random(count) < share)))


@st.composite
def pairs(draw):
    """Known signs and those to be sent, with any number of differences and often few."""
    count = draw(st.integers(1, 2000))
    known, x = drawn(count, draw(st.sampled_from([0, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 1])), draw(st.integers(0, 99)))
    return count, unpack(known, count), unpack(x, count)


@settings(deadline=None, max_examples=300)
@given(pairs(), st.booleans(), st.booleans())
def test_every_pair_comes_back_in_no_more_than_one_byte_above_the_plain_form(pair, packs, packs_known):
    count, known, x = pair
    codec = Differences(count)
    data = codec.encode(pack(x) if packs else x, pack(known) if packs_known else known)
    assert len(data) <= codec.longest == ceil(count / 8) + 1
    assert torch.equal(codec.decode(data, known), x)
    assert torch.equal(codec.packed(data, pack(known)), pack(x))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 100, 2000])
def test_equal_complementary_and_one_difference_at_either_end_come_back(count):
    known, codec = unpack(drawn(count, 0)[0], count), Differences(count)
    for places in ([], range(count), [0], [count - 1], [0, count - 1], range(0, count, 2)):
        x = flipped(known, list(places))
        assert torch.equal(codec.decode(codec.encode(x, known), known), x)


def test_the_bytes_are_those_of_the_documented_example():
    x = flipped(-torch.ones(100), [3, 40, 90])
    assert Differences(100).encode(x, -torch.ones(100)).hex() == "04" + "7550" + "03" + "894301"
    assert zlib.crc32(bytes([8, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0])) & 0xFFFF == 0x5075
    assert Differences(9).encode(torch.ones(9)).hex() == "ff" + "ff01"


def test_equal_signs_take_the_head_alone():
    known, _ = drawn(20_353, 0)
    assert len(Differences(20_353).encode(known, known)) == 1 + 2 + 2


def test_without_a_reference_or_with_a_useless_one_the_plain_form_is_sent():
    known, x = drawn(1000, 0.5)
    codec = Differences(1000)
    for held in (None, known):
        data = codec.encode(x, held)
        assert data == b"\xff" + x.numpy().tobytes()
        assert torch.equal(codec.packed(data), x) and torch.equal(codec.packed(data, known), x)


@pytest.mark.parametrize("share", [0.0002, 0.002, 0.02])
def test_random_differences_take_the_entropy_and_two_percent(share):
    count = 1_500_000
    known, x = drawn(count, share)
    p = int((unpack(known, count) != unpack(x, count)).sum()) / count
    entropy = -count * (p * log2(p) + (1 - p) * log2(1 - p)) / 8
    assert entropy < len(Differences(count).encode(x, known)) < 1.02 * entropy


def test_a_receiver_without_the_reference_or_with_another_one_is_told():
    known, x = drawn(1000, 0.01)
    codec = Differences(1000)
    data = codec.encode(x, known)
    with pytest.raises(ValueError, match="does not have; ask for the plain form"):
        codec.decode(data)
    for place in range(1000):
        with pytest.raises(ValueError, match="other signs than this receiver has"):
            codec.decode(data, flipped(unpack(known, 1000), [place]))
    message = encode({"v": codec}, {"v": x}, kind="down", round=1, known={"v": known})
    with pytest.raises(Refused, match="field 'v': it holds differences to signs"):
        decode({"v": codec}, message, kind="down", round=1)
    assert torch.equal(decode({"v": codec}, message, kind="down", round=1, known={"v": known}, packed=True)["v"], x)


def body(low, number, bits, count=100):
    """A coded field of bits, first one lowest, with a check that is right if nothing differs from all -1."""
    check = zlib.crc32(bytes((count + 7) // 8)).to_bytes(4, "little")[:2]
    packed = int(bits[::-1] or "0", 2).to_bytes((len(bits) + 7) // 8, "little")
    return bytes([low]) + check + number.to_bytes((count.bit_length() + 7) // 8, "little") + packed


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "begin with 4 bytes, got 0"),
        (body(0, 0, "")[:3], "begin with 4 bytes, got 3"),
        (b"\xff", "100 signs are 13 bytes, got 0"),
        (b"\xff" + bytes(14), "100 signs are 13 bytes, got 14"),
        (b"\xff" + bytes(12) + b"\x10", "unused bits"),
        (body(8, 0, ""), "first byte must be 255 or at most 7, got 8"),
        (body(254, 1, "1"), "first byte must be 255 or at most 7, got 254"),
        (body(0, 0, "00000000"), "0 numbers with 0 low bits do not fill the 1 bytes"),
        (body(0, 2, "10000000"), "2 numbers with 0 low bits do not fill"),
        (body(0, 1, "10000001"), "1 numbers with 0 low bits do not fill"),
        (body(7, 1, "01"), "do not fill"),
        (body(1, 1, "100000001"), "do not fill"),
        (body(0, 200, "1" * 72), "200 differences among 100 signs"),
        (body(7, 1, "01" + "0" * 7), "add up to more than 99"),
        (body(7, 1, "1" + "0010011"), "add up to more than 99"),
        (body(0, 0, "") + bytes(10), "less than 14 bytes, got 14"),
        (body(0, 1, "1"), "other signs than this receiver has"),
    ],
)
def test_a_wrong_field_is_refused_with_its_rule(data, words):
    for read in (Differences(100).decode, Differences(100).packed):
        with pytest.raises(ValueError, match=words):
            read(data, -torch.ones(100))


def test_the_last_place_is_not_beyond_the_last():
    x = flipped(-torch.ones(100), [99])  # a gap of 99 = 64 + 0b100011
    data = Differences(100).encode(x, -torch.ones(100))
    assert data[:1] + data[3:] == bytes([6, 1, int("01110001"[::-1], 2)])
    assert torch.equal(Differences(100).decode(data, -torch.ones(100)), x)


@pytest.mark.parametrize("count", [1, 9, 100, 2000])
def test_damaged_fields_are_the_original_or_refused(count):
    rng = random.Random(2026)
    known, x = drawn(count, 0.02)
    codec = Differences(count)
    data = codec.encode(x, known)
    refused = 0
    for _ in range(1500):
        at = rng.randrange(len(data))
        received = rng.choice(
            [
                data[:at],
                data + rng.randbytes(rng.randrange(1, 9)),
                data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :],
                bytes([rng.randrange(255)]) + data[1:at] + rng.randbytes(len(data) - at),
                bytes([rng.randrange(12)]) + rng.randbytes(rng.randrange(count)),
            ]
        )
        try:
            found = codec.packed(received, known)
        except ValueError as error:
            assert len(str(error)) > 10
            refused += 1
        else:
            plain = received[:1] == b"\xff"  # there every byte counts, and the checksum of the message guards it
            assert torch.equal(found, x) or (plain and found.numpy().tobytes() == received[1:])
    assert refused > 500


@settings(deadline=None, max_examples=500)
@given(st.integers(1, 300), st.integers(0, 9) | st.integers(0, 255), st.binary(max_size=45))
def test_random_bytes_are_refused_or_decode_to_signs_with_the_check_they_carry(count, first, rest):
    known, _ = drawn(count, 0)
    data = bytes([first]) + rest
    try:
        signs = Differences(count).packed(data, known)
    except ValueError:
        return
    assert torch.equal(Differences(count).packed(Differences(count).encode(signs, known), known), signs)
    assert first == 255 or zlib.crc32(signs.numpy().tobytes()).to_bytes(4, "little")[:2] == rest[:2]


def test_hostile_bytes_of_a_large_message_are_refused_within_a_few_words_for_every_sign():
    count = 1_500_000
    codec, known = Differences(count), torch.zeros(187_500, dtype=torch.uint8)
    numbers, fills = (0, 1, 30_000, count, (1 << 24) - 1), (b"\0", b"\xff", b"\x55")
    tracemalloc.start()
    for low, number, fill in product((0, 1, 20, 21), numbers, fills):
        data = bytes([low, 0, 0]) + number.to_bytes(3, "little") + fill * (codec.longest - 7)
        with pytest.raises(ValueError, match=r"do not fill|add up|other signs|among"):
            codec.packed(data, known)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * count
