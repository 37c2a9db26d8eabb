"""What a test may ask of two ways to compute the same: equal bits where they are promised here, closeness elsewhere."""

from itertools import pairwise

import torch

from pfed1bs.algorithms import make
from pfed1bs.core.reproducible import guarantee

SHORT = {"decomfl": {"moves": 2, "directions": 2}}  # options
PROMISED = guarantee().full  # MKL in its reproducible mode; OpenBLAS, Accelerate and a late import promise nothing


def short(name, task, **options):
    """A method whose rounds are no longer than a comparison needs."""
    return make(name, task, **SHORT.get(name, {}), **options)


def assert_same(ours, theirs):
    """The same tensors by name, bit for bit or else up to a few signs that rounding has turned over."""
    assert set(ours) == set(theirs)
    for name, one in ours.items():
        other = theirs[name]
        if PROMISED:
            assert torch.equal(one, other), name
        elif one.is_floating_point():
            assert (one - other).norm() <= 0.05 * other.norm() + 1e-6, name
        else:
            assert (one != other).double().mean() <= 0.2, name


def assert_alike(*results):
    """The same for tuples of tensors, each with the next."""
    for ours, theirs in pairwise(results):
        assert_same(dict(enumerate(ours)), dict(enumerate(theirs)))


def assert_messages(ours, theirs):
    """The same bytes of the same clients in every round, or else as many messages."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.uplinks == other.uplinks if PROMISED else len(one.uplinks) == len(other.uplinks)
