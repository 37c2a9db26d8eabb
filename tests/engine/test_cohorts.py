"""What is random about the clients of a round: streams of their own, the same bits on any device."""

import pytest
import torch

from pfed1bs.core.rng import MASK, stream, word
from pfed1bs.engine.cohorts import Cohort

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def cohort(*ids, round=3):
    return Cohort(7, round, torch.tensor(ids), torch.ones(len(ids)), torch.full((len(ids),), -1))


def drawn(client, count, name="noise", round=3):
    """The numbers of 32 bits of one client, half a word at a time."""
    own = stream(7, name, client, round).initial_seed() & MASK
    return [word(own, i // 2) >> 32 * (i % 2) & 0xFFFFFFFF for i in range(count)]


@pytest.mark.parametrize("device", DEVICES)
def test_whole_numbers_are_halves_of_the_words_of_a_client(device):
    rows = [row.cpu() for row in cohort(2, 5).integers("noise", 7, device)]
    assert [[number % 2**32 for number in row.tolist()] for row in rows] == [drawn(2, 7), drawn(5, 7)]


@pytest.mark.parametrize("device", DEVICES)
def test_uniform_numbers_are_their_upper_24_bits(device):
    found = cohort(2, 5).uniform("noise", 3, 5, device=device)
    assert found.device.type == device and found.shape == (2, 3, 5)
    assert (found.flatten(1) * 2**24).tolist() == [[number >> 8 for number in drawn(client, 15)] for client in (2, 5)]


def test_a_name_a_client_and_a_round_have_streams_of_their_own():
    found = cohort(2, 5).uniform("noise", 50)
    others = [cohort(2, 5).uniform("other", 50), cohort(2, 5, round=4).uniform("noise", 50), found.flip(0)]
    assert not any(torch.equal(found, other) for other in others)
    assert torch.equal(found[1:], cohort(5).uniform("noise", 50))
