"""Damaged messages by the thousand: each is the original or refused."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messages import VECTORS, Text, same, signed
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import HEADER, Refused, coordinates, decode, encode, fingerprint, read_header


def damaged(rng, data, other):
    """One of the accidents that happen to messages."""
    at = rng.randrange(len(data))
    match rng.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data + rng.randbytes(rng.randrange(1, 30))
        case 2:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 3:
            return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at + rng.randrange(1, 9) :]
        case 4:
            return data[:at] + other[rng.randrange(len(other)) :]
        case 5:
            return rng.randbytes(rng.randrange(60))
        case 6:
            return data[: HEADER.size] + rng.randbytes(len(data) - HEADER.size)
        case _:
            return rng.choice([other, data, data[at:] + data[:at]])


LAYOUTS = [
    {"a": Signs(9)},
    {"a": Signs(64)},
    {"w": Floats((3, 2))},
    {"z": Signs(5), "s": Floats()},
    {"a": Text(), "z": Signs(5)},
]


def test_twelve_thousand_damaged_messages_are_the_original_or_refused():
    rng, draws = random.Random(2026), torch.Generator().manual_seed(0)
    counts = {"original": 0, "refused": 0}
    for layout in LAYOUTS:
        sent = {}
        for number in range(40):
            message = {name: _drawn(codec, draws) for name, codec in layout.items()} if number else {}
            sent[encode(layout, message, kind="up", round=4, samples=10)] = message
        late = [encode(layout, message, kind="up", round=5, samples=10) for message in sent.values()]
        for _ in range(2_400):
            received = damaged(rng, rng.choice(list(sent)), rng.choice([*sent, *late]))
            try:
                message = decode(layout, received, kind="up", round=4, samples=10)
            except Refused as refusal:
                assert len(str(refusal)) > 10 and received not in sent
                counts["refused"] += 1
            else:
                assert received in sent and same(message, sent[received])
                counts["original"] += 1
    assert counts["original"] > 500 and counts["refused"] > 10_000


def _drawn(codec, draws):
    if isinstance(codec, Text):
        return torch.randint(1000, (1,), generator=draws)
    values = torch.randn(codec.shape, generator=draws)
    return torch.where(values >= 0, 1.0, -1.0) if isinstance(codec, Signs) else values


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(LAYOUTS), st.binary(max_size=60), st.booleans())
def test_random_payloads_with_a_right_checksum_decode_to_what_encodes_to_them_or_are_refused(layout, payload, empty):
    count = 0 if empty else coordinates(layout)
    data = signed((2, fingerprint(layout), 4, count, 10), payload)
    try:
        message = decode(layout, data, kind="up", round=4, samples=10)
    except Refused:
        return
    again = encode(layout, message, kind="up", round=4, samples=10)
    assert again == data or isinstance(layout.get("a"), Text)  # "007" and "7" are the same number
    assert same(decode(layout, again, kind="up", round=4, samples=10), message)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=80), st.sampled_from(LAYOUTS))
def test_random_bytes_are_refused(data, layout):
    with pytest.raises(Refused):
        decode(layout, data, kind="down", round=0)


@settings(deadline=None)
@given(st.data())
def test_every_single_flipped_bit_is_noticed(data):
    message = bytes.fromhex(data.draw(st.sampled_from(VECTORS["messages"]))["hex"])
    bit = data.draw(st.integers(0, 8 * len(message) - 1))
    flipped = (int.from_bytes(message, "little") ^ 1 << bit).to_bytes(len(message), "little")
    with pytest.raises(Refused):
        read_header(flipped)
