"""Signs, packing and the weighted majority: by hand, by enumeration, and their refusals."""

import weakref
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfed1bs.core import native
from pfed1bs.core.rng import stream
from pfed1bs.core.votes import pack, pack_signs, sign, tally, unpack, vote, weigh


def signs(*shape):
    return sign(torch.randn(*shape, generator=stream(1, "test", *shape)))


def test_sign_of_zero_is_plus_one():
    x = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 5.0, -5.0])
    assert sign(x).tolist() == [1, 1, 1, -1, 1, -1]
    assert sign(x.double()).dtype == torch.float64
    assert sign(torch.tensor([0, -2, 3])).tolist() == [1, -1, 1]


def test_bits_are_little_endian_and_the_rest_is_zero(either_path):
    x = torch.tensor([[1.0, -1, -1, -1, -1, -1, -1, -1, 0.0], [-1.0, 1, 1, -1, -1, -1, -1, 1, -0.5]])
    assert pack(x).tolist() == [[1, 1], [0b10000110, 0]]
    assert pack(x).dtype == torch.uint8
    assert unpack(pack(x), 9).tolist() == sign(x).tolist()


@pytest.mark.parametrize(("last", "good"), [(1.0, True), (-1.0, True), (0.0, False), (0.5, False)])
def test_signs_are_packed_like_numbers_and_it_is_told_whether_they_are_signs(last, good):
    x = torch.tensor([[1.0, -1, -1], [-1.0, 1, last]])
    bits, told = pack_signs(x)
    assert torch.equal(bits, pack(x)) and bool(told) == good


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=200))
def test_unpacking_gives_the_signs_back(values):
    x = torch.tensor(values)
    packed = pack(x)
    assert packed.tolist() == np.packbits(x.numpy() >= 0, bitorder="little").tolist()
    assert torch.equal(unpack(packed, len(values)), sign(x))


@pytest.mark.kernel
@pytest.mark.parametrize("m", [1, 7, 8, 15, 63, 64, 65, 4095, 4096, 4097, 70_001])
def test_native_packing_is_that_of_torch_on_any_number_of_threads(monkeypatch, threads, m):
    x = torch.randn(3, m, generator=stream(2, m))
    for count in (1, 2):
        threads(count)
        monkeypatch.setattr(native, "enabled", True)
        packed, unpacked = pack(x), unpack(pack(x), m)
        monkeypatch.setattr(native, "enabled", False)
        assert torch.equal(packed, pack(x))
        assert torch.equal(unpacked, unpack(packed, m))


def test_double_precision_and_views_are_packed(either_path):
    x = torch.randn(9, 20, generator=stream(3), dtype=torch.float64)
    assert torch.equal(pack(x.T), pack(x.T.float().clone()))
    assert torch.equal(pack(x.float().flatten()[3:]), pack(x.flatten()[3:]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 63, 64, 99])
def test_numbers_that_are_not_finite_are_refused(either_path, bad, place):
    x = torch.zeros(100)
    x[place] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        pack(x)


def test_a_vote_by_hand(either_path):
    messages = pack(torch.tensor([[1.0, 1, -1, 1, -1], [1.0, -1, -1, -1, 1], [-1.0, 1, -1, -1, 1]]))
    previous = pack(torch.tensor([-1.0, -1, -1, 1, -1]))
    result = tally(messages, [2, 1, 1], previous, 5)
    assert unpack(result.bits, 5).tolist() == [1, 1, -1, 1, -1]  # the last two are ties, 2 : 2
    assert result.ties == 2
    assert torch.equal(vote(messages, torch.tensor([2, 1, 1]), previous, 5), result.bits)


@pytest.mark.parametrize("m", [1, 3, 10])
@pytest.mark.parametrize("weights", [[1], [1, 1], [3, 1, 2], [2, 2, 1, 1], [5, 0, 5], [7, 11, 13, 2, 4]])
def test_the_vote_minimises_the_weighted_disagreement(either_path, m, weights):
    """Lemma 6 by enumeration of all 2^m answers: the optimal ones agree but for ties, where the vote keeps its bit."""
    messages, previous = signs(len(weights), m), signs(m)
    candidates = torch.tensor(list(product([-1.0, 1.0], repeat=m)))
    score = candidates @ (messages.T @ torch.tensor(weights, dtype=torch.float32))
    best = candidates[score == score.max()]
    result = tally(pack(messages), weights, pack(previous), m)
    answer = unpack(result.bits, m)
    assert (best == answer).all(1).any()
    assert len(best) == 2**result.ties
    tied = best.min(0).values != best.max(0).values
    assert int(tied.sum()) == result.ties
    assert torch.equal(answer[tied], previous[tied])


def test_one_voter_decides_and_voters_without_weight_do_not(either_path):
    messages = pack(signs(3, 50))
    previous = pack(-signs(50))
    assert torch.equal(vote(messages[:1], [9], previous, 50), messages[0])
    assert torch.equal(vote(messages, [0, 3, 0], previous, 50), messages[1])


def test_the_order_of_voters_changes_nothing(either_path):
    messages, weights, previous = pack(signs(40, 77)), list(range(1, 41)), pack(signs(77))
    backwards = vote(messages.flip(0), weights[::-1], previous, 77)
    assert torch.equal(vote(messages, weights, previous, 77), backwards)


def test_sums_are_exact_where_floating_point_is_not(either_path):
    messages = pack(torch.tensor([[1.0], [-1.0], [-1.0]]))
    previous = pack(torch.tensor([1.0]))
    huge = 2**60
    assert vote(messages, [huge + 1, huge, 0], previous, 1).tolist() == [1]
    assert vote(messages, [huge, huge, 1], previous, 1).tolist() == [0]
    tie = tally(messages, [huge + 1, huge, 1], previous, 1)
    assert (tie.bits.tolist(), tie.ties) == ([1], 1)
    assert vote(messages, [2**31, 2**31, 1], previous, 1).tolist() == [0]
    assert vote(messages, [2**30, 2**30 - 1, 0], previous, 1).tolist() == [1]  # twice the first needs 33 bits


def test_twenty_equal_fair_voters_tie_as_often_as_the_binomial_says(either_path):
    """C(20, 10) / 2^20 = 17.6 %."""
    m = 20_000
    result = tally(pack(signs(20, m)), [1] * 20, pack(signs(m)), m)
    assert abs(result.ties / m - 184756 / 2**20) < 4 * (0.176 * 0.824 / m) ** 0.5


@pytest.mark.kernel
@pytest.mark.parametrize("m", [1, 9, 4096, 70_001])
@pytest.mark.parametrize("shift", [0, 20, 40])
def test_native_votes_are_those_of_torch_on_any_number_of_threads(monkeypatch, threads, m, shift):
    messages, weights, previous = pack(signs(35, m)), [(k % 5) << shift for k in range(35)], pack(signs(m))
    monkeypatch.setattr(native, "enabled", False)
    expected = tally(messages, weights, previous, m)
    monkeypatch.setattr(native, "enabled", True)
    for count in (1, 2):
        threads(count)
        result = tally(messages, weights, previous, m)
        assert torch.equal(result.bits, expected.bits)
        assert result.ties == expected.ties


def test_messages_are_read_one_group_at_a_time(either_path):
    """A stream of voters is never held as a whole."""
    arrived, held = [], []

    def arrivals():
        for k in range(100):
            message = pack(signs(64) if k % 2 else -signs(64))
            arrived.append(weakref.ref(message))
            held.append(sum(ref() is not None for ref in arrived))
            yield message

    assert tally(arrivals(), [1] * 100, pack(signs(64)), 64).ties == 64
    assert len(held) == 100 and max(held) <= 2 * 16


def test_unused_bits_of_messages_do_not_count(either_path):
    dirty = torch.tensor([0b11111101], dtype=torch.uint8)
    assert vote([dirty], [1], dirty, 2).tolist() == [1]
    assert vote([dirty, ~dirty], [1, 1], dirty, 2).tolist() == [1]
    assert unpack(dirty, 2).tolist() == [1, -1]


def byte(*values):
    return torch.tensor(values, dtype=torch.uint8)


@pytest.mark.parametrize(
    "messages, weights, rule",
    [
        ([], [], "at least one voter"),
        ([byte(1)], [0], "must not all be zero"),
        ([byte(1)], [-1], "must not be negative, got -1"),
        ([byte(1)], [1.5], "must be integers .* got 1.5"),
        ([byte(1)], [True], "must be integers .* got True"),
        ([byte(1)], torch.tensor([1.0]), "must be integers .* got 1.0"),
        ([byte(1), byte(1)], [2**61, 2**61], "below 2\\^62, got 4611686018427387904"),
        ([byte(1)], [1, 1], "every weight needs a message, got 1 for 2"),
        ([byte(1), byte(1)], [1], "every message needs a weight"),
        ([byte(1, 2)], [1], r"3 packed signs take 1 bytes, got shape \(2,\)"),
        ([torch.zeros(1)], [1], "must be a tensor of bytes .* got torch.float32"),
        ([b"x"], [1], "must be a tensor of bytes .* got bytes"),
        ([byte(1).reshape(1, 1)], [1], r"must have the shape \(1,\), got \(1, 1\)"),
        ([byte(1).to("meta")], [1], "is on meta, the previous consensus on cpu"),
    ],
)
def test_impossible_votes_are_refused(either_path, messages, weights, rule):
    with pytest.raises(ValueError, match=rule):
        vote(messages, weights, byte(0), 3)


def test_the_previous_consensus_is_needed():
    with pytest.raises(ValueError, match="must be a tensor of bytes .* got NoneType"):
        vote([byte(1)], [1], None, 3)
    with pytest.raises(ValueError, match="previous consensus must be one packed message"):
        vote([byte(1)], [1], byte(1).reshape(1, 1), 3)
    with pytest.raises(ValueError, match="m must be at least 1, got 0"):
        vote([byte(1)], [1], byte(1), 0)


def test_only_real_vectors_are_packed():
    with pytest.raises(ValueError, match="only real vectors can be packed, got torch.int64"):
        pack(torch.tensor([1, -1]))
    with pytest.raises(ValueError, match="only real vectors can be packed"):
        pack(torch.tensor(1.0))
    with pytest.raises(ValueError, match="9 packed signs take 2 bytes"):
        unpack(byte(1), 9)


@pytest.mark.parametrize("m", [1, 8, 13, 4099])
def test_weighed_signs_are_the_sum_in_double_one_message_after_the_other(either_path, m):
    messages = [*pack(signs(5, m))]
    shares = [0.1, 0.7, 1e-9, 0.25, 3.0]
    expected = torch.zeros(m, dtype=torch.float64)
    for message, share in zip(messages, shares, strict=True):
        expected += share * unpack(message, m).double()
    assert torch.equal(weigh(messages, shares, m), expected)
    with pytest.raises(ValueError, match="every message needs a share"):
        weigh(messages, shares[:4], m)
    with pytest.raises(ValueError, match="packed signs"):
        weigh([messages[0][:0]], shares[:1], m)
