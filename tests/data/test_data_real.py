"""The real data sets, where they are at hand: PFED1BS_DATA, or shared/data beside the repository."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from pfed1bs.data import federate, load

# SHA-256 of the pixels (N, height, width, channels), train and test.
PIXELS = {
    "mnist": (
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    ),
    "fmnist": (
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    ),
    "cifar10": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    ),
    "cifar100": (
        "157b7548b6d2b4da2ae963795c03d4d123420005f6254d8464f4a187363399b8",
        "91fb51b5318fcba8fa478c7f9a936aed2c5903e8f8a78d420ce455547a7e91af",
    ),
    "svhn": (
        "288712664a8491c2cad39540057d9b1bc3db0cfbd0cf2f95901f0c547760da43",
        "170d5290e8c87ce7ebd5ff203ee176ec9a4abf7989af1f9db53c5559322d5c5b",
    ),
}


@pytest.fixture(scope="module")
def root():
    place = Path(os.environ.get("PFED1BS_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (place / "mnist").is_dir():
        pytest.skip(f"no data sets in {place}; set PFED1BS_DATA to test with them")
    return place


def moments(images):
    """Mean and deviation of every channel of pixels in 0 .. 255, from how often each of the values occurs."""
    counts = np.stack([np.bincount(images[:, channel].ravel(), minlength=256) for channel in range(images.shape[1])])
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2)


def digest(images):
    return hashlib.sha256(np.ascontiguousarray(images.transpose(0, 2, 3, 1))).hexdigest()


@pytest.mark.parametrize("name", list(PIXELS))
def test_pixels_are_the_published_ones_and_statistics_fit(root, name):
    pytest.importorskip("PIL")
    data = load(name, root)
    assert (digest(data.train_inputs), digest(data.test_inputs)) == PIXELS[name]
    assert set(data.train_labels) == set(range(data.num_classes)) == set(data.test_labels)
    # Two of the five are subsets; their own statistics are within 0.003 of the full sets'.
    np.testing.assert_allclose(moments(data.train_inputs), (data.mean, data.std), atol=0.003)


def test_mnist_clients_with_two_labels_have_about_as_many_samples_as_the_authors(root):
    federation = federate(load("mnist", root), clients=20, scheme="labels:2")
    assert federation.shape == (1, 28, 28)
    train, test = federation.table()
    assert [set(row.nonzero().flatten().tolist()) for row in train[:5]] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}]
    assert int(train.sum() + test.sum()) == 70_000 and 2550 < train.sum() / 20 < 2625 + 1
    assert abs(float(federation.inputs.mean())) < 0.01 and abs(float(federation.inputs.std()) - 1) < 0.01
