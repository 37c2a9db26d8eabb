"""Named streams, and the portable generator against the vectors of its document."""

import random
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messages import VECTORS
from pfed1bs.core import native
from pfed1bs.core.rng import (
    MASK,
    ROTATION,
    ROWS,
    SIGNS,
    TIES,
    bits,
    distinct,
    key,
    sequence,
    signed,
    stream,
    word,
    words,
)
from pfed1bs.core.sketch import srht
from pfed1bs.core.votes import pack

KEYS = st.integers(0, MASK)


@pytest.fixture(scope="module", params=["native", "torch"], autouse=True)
def path(request):
    """Everything here holds with the native kernels and without them."""
    if request.param == "native" and not native.built:
        pytest.skip("the native kernels were not built")
    before, native.enabled = native.enabled, request.param == "native"
    yield request.param
    native.enabled = before


def first(count, sequence=0):
    """The weights of the vectors: 24 bits of each word, exact in float32."""
    return torch.tensor([((word(sequence, i) >> 40) - 2**23) / 2**24 for i in range(count)])


def ones(count, sequence=1):
    """The measurements of the vectors."""
    return torch.tensor([1.0 if word(sequence, i) & 1 else -1.0 for i in range(count)])


def draws(*name):
    return torch.rand(4, generator=stream(*name)).tolist()


# Named streams.


def test_a_stream_does_not_depend_on_what_was_drawn_before():
    alone = draws(0, "batches", 3, 7)
    draws(0, "batches", 2, 7)
    half = stream(0, "batches", 3, 7)
    torch.rand(2, generator=half)
    stream(0, "batches", 3, 7)
    assert torch.rand(2, generator=half).tolist() == alone[2:]
    assert draws(0, "batches", 3, 7) == alone


def test_every_part_of_a_name_matters():
    names = [
        (0,),
        (1,),
        (-1,),
        (0, "a"),
        (0, "b"),
        (0, "a", "b"),
        (0, "b", "a"),
        (0, "ab"),
        (0, "a", 1),
        (0, "a", "1"),
        (0, "a1"),
        (0, "a", 1, 2),
        (0, "a", 12),
        (0, "a", 2, 1),
        (0, ""),
        (0, "", ""),
        (0, 0),
        (2**64,),
    ]
    assert len({tuple(draws(*name)) for name in names}) == len(names)


def test_streams_of_neighbouring_clients_look_independent():
    values = torch.stack([torch.rand(2000, generator=stream(0, "batches", client, 0)) for client in range(8)])
    correlation = torch.corrcoef(values).fill_diagonal_(0).abs().max()
    assert correlation < 4 / 2000**0.5


def test_the_seed_of_a_stream_is_fixed():
    assert stream(0, "batches", 3, 7).initial_seed() == 13128005520858033812


def test_nothing_touches_the_global_random_state():
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    draws(0, "x")
    srht(100, 10, seed=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all() and before[2] == random.getstate()


# The portable generator.


@pytest.mark.parametrize("vector", VECTORS["words"])
def test_words_are_the_documented_ones(vector):
    number, index = int(vector["key"], 16), vector["index"]
    assert word(number, index) == int(words(number, 1, index)[0]) == int(vector["word"], 16)


@pytest.mark.parametrize("vector", VECTORS["keys"])
def test_keys_are_the_documented_ones(vector):
    assert key(int(vector["seed"], 16), vector["purpose"], vector["round"]) == int(vector["key"], 16)


def test_the_purposes_have_the_documented_numbers():
    assert (SIGNS, ROWS, ROTATION, TIES) == (0, 1, 2, 3)


@pytest.mark.parametrize("vector", VECTORS["bits"])
def test_bits_are_the_documented_ones(vector):
    assert bits(int(vector["key"], 16), vector["count"]).tobytes().hex() == vector["bytes"]


@pytest.mark.parametrize("vector", VECTORS["distinct"])
def test_distinct_numbers_are_the_documented_ones(vector):
    numbers = distinct(int(vector["key"], 16), vector["size"], vector["count"])
    assert numbers.tolist() == vector["numbers"] and numbers.dtype == np.int32


@pytest.mark.parametrize("vector", VECTORS["projections"])
def test_projections_are_the_documented_ones(vector):
    sketch = srht(vector["n"], vector["m"], int(vector["seed"], 16), vector["round"])
    assert sketch.padded == vector["padded"]
    assert sketch.signs.numpy().tobytes().hex() == vector["signs"] and sketch.rows.tolist() == vector["rows"]
    for name, result in (
        ("forward", sketch.forward(first(vector["n"]))),
        ("adjoint", sketch.adjoint(ones(vector["m"]))),
    ):
        assert result.numpy().tobytes() == np.array(vector[name], np.float32).tobytes()


@pytest.mark.parametrize("vector", VECTORS["checksums"])
def test_a_projection_of_full_size_has_the_documented_checksums(vector):
    n, m = vector["n"], vector["m"]
    sketch = srht(n, m, int(vector["seed"], 16), vector["round"])
    w = torch.from_numpy(((words(0, n) >> np.uint64(40)).astype(np.float64) - 2**23) / 2**24).float()
    u = torch.from_numpy((words(1, m) & np.uint64(1)).astype(np.float32) * 2 - 1)
    q = sketch.forward(w)
    found = {"signs": sketch.signs, "rows": sketch.rows, "forward": q, "sketch": pack(q), "adjoint": sketch.adjoint(u)}
    assert {name: f"0x{zlib.crc32(value.numpy().tobytes()):08x}" for name, value in found.items()} == {
        name: vector[name] for name in found
    }


@settings(deadline=None)
@given(KEYS, st.integers(0, 200), st.integers(0, 2**40))
def test_words_are_the_same_at_once_and_one_by_one(number, count, start):
    assert words(number, count, start).tolist() == [word(number, start + i) for i in range(count)]


@settings(deadline=None)
@given(KEYS, st.integers(0, 200))
def test_tensors_of_words_have_the_same_bits(number, count):
    found = sequence(torch.tensor(signed(number)), count)
    assert found.numpy().view(np.uint64).tolist() == words(number, count).tolist()


@settings(deadline=None)
@given(KEYS, st.integers(0, 300))
def test_bits_are_those_of_the_words(number, count):
    packed = bits(number, count)
    unpacked = np.unpackbits(packed, bitorder="little")
    assert len(packed) == (count + 7) // 8 and not unpacked[count:].any()
    assert unpacked[:count].tolist() == [word(number, i // 64) >> i % 64 & 1 for i in range(count)]


def slow(number, size, count):
    """The rule of the document, one candidate at a time."""
    taken, candidate = set(), 0
    while len(taken) < min(count, size - count):
        half = word(number, candidate // 2) >> 32 * (candidate % 2) & 0xFFFFFFFF
        taken.add(half * size >> 32)
        candidate += 1
    return sorted(taken if 2 * count <= size else set(range(size)) - taken)


@settings(deadline=None)
@given(KEYS, st.integers(0, 9).map(lambda power: 1 << power), st.data())
def test_distinct_numbers_follow_the_rule_of_the_document(number, size, data):
    count = data.draw(st.integers(0, size))
    assert distinct(number, size, count).tolist() == slow(number, size, count)


@pytest.mark.parametrize("count", [0, 1, 1638, 8192, 16383, 16384])
def test_distinct_numbers_are_distinct_ascending_and_in_range(count):
    numbers = distinct(key(5, ROWS), 1 << 14, count).astype(np.int64)
    assert len(numbers) == count and (np.diff(numbers) > 0).all()
    assert ((numbers >= 0) & (numbers < 1 << 14)).all()


def test_the_largest_sizes_fit():
    numbers = distinct(key(5, ROWS), 1 << 24, 1000)
    assert len(set(numbers.tolist())) == 1000 and 2**23 < numbers[-1] < 2**24


# Statistics with fixed keys: the bounds are the 0.1 % and 99.9 % quantiles of chi-square.


@pytest.mark.parametrize("count", [1, 5, 8, 11])
def test_every_number_is_drawn_equally_often(count):
    sets, size = 2000, 16
    drawn = np.bincount(np.concatenate([distinct(key(i, ROWS), size, count) for i in range(sets)]), minlength=size)
    share = count / size
    variance = sets * share * (1 - share) * size / (size - 1)  # of draws without replacement
    assert 3.48 < ((drawn - sets * share) ** 2).sum() / variance < 37.70


def test_every_set_is_drawn_equally_often():
    sets = [tuple(distinct(key(i, ROWS), 4, 2).tolist()) for i in range(3000)]
    drawn = np.unique(np.array(sets), axis=0, return_counts=True)[1]
    assert len(drawn) == 6 and 0.21 < ((drawn - 500) ** 2 / 500).sum() < 20.52


def test_every_bit_of_a_word_is_fair():
    values = words(key(0, SIGNS), 4096)
    fair = np.array([int((values >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)])
    assert 33.3 < ((fair - 2048) ** 2 / 1024).sum() < 105.0


def test_signs_of_different_seeds_rounds_and_purposes_disagree_on_half_of_the_bits():
    one = np.unpackbits(bits(key(0, SIGNS, 0), 10_000))
    for other in (key(1, SIGNS, 0), key(0, SIGNS, 1), key(0, ROWS, 0), key(0, TIES, 0)):
        assert abs((one ^ np.unpackbits(bits(other, 10_000))).mean() - 0.5) < 0.02  # four standard deviations


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_must_fit_in_64_bits(seed):
    with pytest.raises(ValueError, match=f"seed must fit in 64 bits, got {seed}; choose one in 0 .. 2.64 - 1"):
        key(seed, SIGNS)


def test_a_round_must_not_be_negative():
    with pytest.raises(ValueError, match="round must not be negative, got -1; rounds count from 0"):
        key(0, SIGNS, -1)


def test_names_of_streams_cannot_run_into_each_other():
    with pytest.raises(ValueError, match="separator"):
        stream(0, "a\x1fstr:b")
    assert stream(0, "a", "b").initial_seed() != stream(0, "ab").initial_seed()
