"""Messages: literal bytes, round trips and every refusal."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messages import CODECS, DOCUMENT, VECTORS, Text, codec, fields, same, signed, tensors
from pfed1bs.core.votes import pack
from pfed1bs.wire import rice
from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.messages import (
    HEADER,
    KINDS,
    Refused,
    coordinates,
    decode,
    decoder,
    encode,
    encoder,
    fingerprint,
    fixed_size,
    read_header,
)
from pfed1bs.wire.rows import CountedRows, Rows

# Literal bytes, from the document.


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda vector: vector["hex"][:8])
def test_documented_messages_have_the_documented_bytes(vector):
    layout = {name: codec(text) for name, text in vector["layout"].items()}
    message, known = fields(layout, vector["fields"]), fields(layout, vector.get("known", {}))
    where = {"kind": vector["kind"], "round": vector["round"], "samples": vector["samples"], "known": known}
    data = bytes.fromhex(vector["hex"])
    assert f"{fingerprint(layout):04x}" == vector["fingerprint"]
    assert encode(layout, message, **where) == data
    assert same(decode(layout, data, **where), message)


def test_every_codec_has_a_documented_message():
    assert {text.split()[0] for vector in VECTORS["messages"] for text in vector["layout"].values()} == {*CODECS}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["because"])
def test_documented_refusals_are_refused_for_the_documented_reason(vector):
    with pytest.raises(Refused) as refusal:
        decode({"consensus": Signs(9)}, bytes.fromhex(vector["hex"]), kind="down", round=3, samples=0)
    assert str(refusal.value).startswith(vector["because"])


@pytest.mark.parametrize("vector", VECTORS["rice"], ids=lambda vector: vector["bytes"])
def test_documented_numbers_have_the_documented_code(vector):
    numbers, low, data = vector["numbers"], vector["low"], bytes.fromhex(vector["bytes"])
    assert rice.encode(np.array(numbers, np.int64), low) == data
    assert rice.decode(data, low, len(numbers), sum(numbers)).tolist() == numbers


def test_the_wire_name_of_a_codec_is_its_own_word_and_not_the_name_of_its_class():
    class Renamed(Signs):
        pass

    codecs = [Signs(9), Floats(), Floats((2, 3)), Levels((3,), 4), Sparse(100, 5), Differences(9), Rows(10, 256)]
    names = ["signs 9", "floats", "floats 2x3", "levels 3 4", "sparse 100 5", "differences 9", "rows 10x256"]
    codecs, names = [*codecs, CountedRows(10, 256), Either(3, 5)], [*names, "counted-rows 10x256", "either 3 5"]
    assert [codec.wire for codec in codecs] == names
    assert fingerprint({"a": Renamed(9)}) == fingerprint({"a": Signs(9)})


def test_the_worked_example_of_the_document_is_its_first_message():
    block = re.search(r"```\n(03 .{2,20}version.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]
    written = "".join(re.match(r"(?:[0-9a-f]{2} )*[0-9a-f]{2}", line)[0] for line in block.splitlines())
    assert written.replace(" ", "") == VECTORS["messages"][0]["hex"]


def test_the_words_of_every_refusal_stand_in_the_document():
    values = re.compile(r"\b([0-9a-f]{8}|[0-9a-f]{4}|[0-9]+|up|down)\b")
    words = values.sub("_", DOCUMENT.read_text().split("### What is refused")[1].split("###")[0])
    for vector in VECTORS["refused"]:
        with pytest.raises(Refused) as refusal:
            decode({"consensus": Signs(9)}, bytes.fromhex(vector["hex"]), kind="down", round=3, samples=0)
        text = values.sub("_", str(refusal.value)).partition("too long:")
        assert f"`{text[0] or text[1]}" in words


def test_the_header_has_twenty_bytes_and_says_what_it_was_given():
    data = encode({"a": Signs(9)}, {"a": torch.ones(9)}, kind="up", round=7, samples=300)
    header = read_header(data)
    assert HEADER.size == 20 and len(data) == 22
    assert (header.version, header.kind, header.round, header.count, header.samples) == (3, 2, 7, 9, 300)


def test_layouts_that_differ_in_name_order_codec_or_size_have_different_fingerprints():
    layouts = [
        {"a": Signs(32)},
        {"b": Signs(32)},
        {"a": Signs(33)},
        {"a": Floats((1,))},
        {"a": Floats()},
        {"a": Floats((2, 3))},
        {"a": Floats((6,))},
        {"a": Signs(8), "b": Floats()},
        {"b": Floats(), "a": Signs(8)},
        {},
    ]
    assert len({fingerprint(layout) for layout in layouts}) == len(layouts)


def test_sizes_add_up():
    layout = {"a": Signs(9), "b": Floats((2, 3)), "c": Floats()}
    assert coordinates(layout) == 16 and fixed_size(layout) == 20 + 2 + 24 + 4
    assert fixed_size({"a": Text(), "b": Signs(3)}) is None
    assert fixed_size({}) == 20


# Round trips.

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
U32 = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([-1.0, 1.0]), min_size=1, max_size=70), st.lists(FINITE, min_size=1, max_size=9), U32, U32
)
def test_every_message_comes_back_bit_for_bit(signs, values, round, samples):
    layout = {"z": Signs(len(signs)), "w": Floats((len(values),))}
    message = tensors({"z": signs, "w": values})
    data = encode(layout, message, kind="up", round=round, samples=samples)
    assert len(data) == fixed_size(layout) == 20 + (len(signs) + 7) // 8 + 4 * len(values)
    assert same(decode(layout, data, kind="up", round=round, samples=samples), message)
    kept = decode(layout, data, kind="up", round=round, packed=True)
    assert same(kept, {"z": pack(message["z"]), "w": message["w"]})
    assert encode(layout, kept, kind="up", round=round, samples=samples) == data


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_message_is_a_header_alone(kind):
    data = encode({"a": Signs(9)}, {}, kind=kind, round=0)
    assert len(data) == 20 and decode({"a": Signs(9)}, data, kind=kind, round=0) == {}
    nothing = encode({}, {}, kind=kind, round=0)
    assert len(nothing) == 20 and decode({}, nothing, kind=kind, round=0) == {}


def test_fields_of_varying_size_carry_their_length_unless_they_are_the_last():
    layout = {"a": Text(), "b": Signs(3), "c": Text()}
    message = {"a": torch.tensor([12]), "b": torch.ones(3), "c": torch.tensor([345])}
    data = encode(layout, message, kind="up", round=0)
    assert data[20:] == b"\x02\x00\x00\x00" + b"12" + b"\x07" + b"345"
    assert same(decode(layout, data, kind="up", round=0), message)


def test_the_decoded_message_shares_no_memory_with_the_bytes():
    data = encode({"w": Floats((2,))}, {"w": torch.ones(2)}, kind="up", round=0)
    for packed in (True, False):
        decode({"w": Floats((2,))}, data, kind="up", round=0, packed=packed)["w"].zero_()
    assert decode({"w": Floats((2,))}, data, kind="up", round=0)["w"].tolist() == [1, 1]


# What a sender must not do.


@pytest.mark.parametrize(
    ("message", "where", "words"),
    [
        ({"b": torch.ones(9)}, {}, r"the fields must be \['a'\] in that order \(or none\), got \['b'\]"),
        ({"a": torch.ones(8)}, {}, r"field 'a' must have shape \(9,\), got \(8,\)"),
        ({"a": torch.ones(1, 9)}, {}, r"field 'a' must have shape \(9,\), got \(1, 9\)"),
        ({"a": torch.ones(9)}, {"round": -1}, r"round must be in 0 .. 2\^32 - 1, .* got -1"),
        ({"a": torch.ones(9)}, {"round": 2**32}, r"round must be in 0 .. 2\^32 - 1, .* got 4294967296"),
        ({"a": torch.ones(9)}, {"samples": 2**32}, r"samples must be in 0 .. 2\^32 - 1, .* got 4294967296"),
    ],
)
def test_a_sender_is_told_what_is_wrong(message, where, words):
    with pytest.raises(ValueError, match=words):
        encode({"a": Signs(9)}, message, **{"kind": "up", "round": 0, **where})


def test_the_order_of_the_fields_is_that_of_the_layout():
    with pytest.raises(ValueError, match="in that order"):
        encode({"a": Signs(1), "b": Signs(1)}, tensors({"b": [1], "a": [1]}), kind="up", round=0)


def test_more_coordinates_than_the_header_can_count_are_refused():
    huge = {"a": Floats((2**31,)), "b": Floats((2**31,))}
    with pytest.raises(ValueError, match=r"number of coordinates must be in 0 .. 2\^32 - 1, .* got 4294967296"):
        encode(huge, {"a": torch.empty(0), "b": torch.empty(0)}, kind="up", round=0)


# What a receiver refuses beyond the documented list: fields inside a message whose checksum is right.

LAYOUT = {"a": Text(), "z": Signs(9), "w": Floats((2,))}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "field 'a' is cut inside its length"),
        (b"\x01\x00\x00", "field 'a' is cut inside its length"),
        (b"\x01\x00\x00\x00", "field 'a' needs 1 bytes, 0 are left"),
        (b"\xff\xff\xff\xff" + b"1", "field 'a' needs 4294967295 bytes, 1 are left"),
        (b"\x01\x00\x00\x00" + b"x", "field 'a': one to nine digits only"),
        (b"\x01\x00\x00\x00" + b"1\xff", "field 'z' needs 2 bytes, 1 are left"),
        (b"\x01\x00\x00\x00" + b"1\xff\x02" + bytes(8), "field 'z': unused bits of the last byte must be 0"),
        (b"\x01\x00\x00\x00" + b"1\xff\x01" + bytes(7), "field 'w' needs 8 bytes, 7 are left"),
        (b"\x01\x00\x00\x00" + b"1\xff\x01" + bytes(11), "3 bytes too many after the last field"),
        (b"\x01\x00\x00\x00" + b"1\xff\x01" + bytes(4) + b"\x00\x00\xc0\x7f", "field 'w': values must be finite"),
        (b"\x01\x00\x00\x00" + b"1\xff\x01" + b"\x00\x00\x80\xff" + bytes(4), "field 'w': values must be finite"),
    ],
)
def test_a_wrong_payload_is_refused_by_field(payload, words):
    for packed in (True, False):
        with pytest.raises(Refused, match=words):
            decode(LAYOUT, signed((2, fingerprint(LAYOUT), 0, 12, 0), payload), kind="up", round=0, packed=packed)


def test_read_header_checks_version_and_checksum():
    data = bytes.fromhex(VECTORS["messages"][0]["hex"])
    with pytest.raises(Refused, match="too short: a message has at least 20 bytes, got 0"):
        read_header(b"")
    with pytest.raises(Refused, match="version is 0, expected 3"):
        read_header(b"\0" + data[1:])
    with pytest.raises(Refused, match="checksum"):
        read_header(data + b"\0")


def test_any_sample_count_is_taken_when_none_was_agreed_on():
    data = encode({"a": Signs(1)}, {"a": torch.ones(1)}, kind="up", round=0, samples=5)
    assert decode({"a": Signs(1)}, data, kind="up", round=0)["a"].tolist() == [1]


@pytest.mark.parametrize("names", [("z", "s"), ("w",), ("d", "z", "w")])
def test_the_messages_of_many_have_the_bytes_and_numbers_of_each_alone(names):
    every = {"z": Signs(11), "s": Floats((), least=0), "w": Floats((3,)), "d": Differences(11)}
    draw, layout = torch.Generator().manual_seed(1), {name: every[name] for name in names}
    drawn = {name: torch.randn(4, *one.shape, generator=draw) for name, one in layout.items()}
    said = {name: x.abs() if name == "s" else x if name == "w" else pack(x) for name, x in drawn.items()}
    held = {"d": pack(-drawn["d"])} if "d" in names else {}
    where = {"kind": "up", "round": 7}
    one = encoder(layout, said, samples=[3, 1, 4, 1], known=held, **where)
    for i, samples in enumerate([3, 1, 4, 1]):
        own, known = ({name: x[i] for name, x in given.items()} for given in (said, held))
        data = encode(layout, own, samples=samples, known=known, **where)
        assert one(i) == data and one(i) == data
        assert same(decoder(layout, known=known, packed=True, **where)(data, samples), own)


@pytest.mark.parametrize("spoilt, words", [(2, "unused bits of the last byte"), (None, "values must be at least 0")])
def test_one_wrong_field_among_many_is_not_sent(spoilt, words):
    said = {"z": torch.zeros(4, 2, dtype=torch.uint8), "s": torch.ones(4)}
    if spoilt is None:
        said["s"][3] = -1
    else:
        said["z"][spoilt, 1] = 8
    with pytest.raises(ValueError, match=words):
        encoder({"z": Signs(11), "s": Floats((), least=0)}, said, kind="up", round=0, samples=[1] * 4)


@pytest.mark.parametrize("value, words", [(-1.0, "at least 0, got -1"), (float("nan"), "finite"), (-np.inf, "finite")])
def test_one_number_is_held_against_its_rules_when_it_is_read(value, words):
    with pytest.raises(ValueError, match=words):
        Floats((), least=0).decode(np.float32(value).tobytes())
