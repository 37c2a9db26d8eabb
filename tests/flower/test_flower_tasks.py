"""Regression with dropout on Flower: the bits of the simulator, and scores that are not right answers."""

import numpy as np
import pytest
from torch import nn

from flower_desk import Desk
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from promise import assert_messages, assert_same


def line(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, outputs))


@pytest.fixture
def desk(tmp_path):
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(120, 4)).astype(np.float32), np.arange(120) % 3
    np.savez(tmp_path / "line.npz", x=x, y=x[:, 0] - x[:, 1] + owners, owners=owners)
    data = {"data.name": str(tmp_path / "line.npz"), "data.partition": "natural", "shape": "4", "classes": 1}
    model = {"model.name": f"{__name__}:line", "model.loss": "mse", "algorithm.name": "pfed1bs-delta"}
    return Desk({"rounds": 3, "clients": 3, "steps": 2, "batch": 8, **data, **model}, tmp_path)


def test_a_regression_with_dropout_has_the_bits_of_the_simulator(desk, threads):
    threads(1)
    server = desk.server()
    ours = list(server.rounds())
    theirs = list(simulate(desk.algorithm, desk.data, rounds=3, steps=2, batch=8))
    assert_messages(ours, theirs)
    assert_same(ours[-1].progress.server, theirs[-1].progress.server)
    ids, scores = server.judge(ours[-1].progress)
    expected = evaluate(desk.algorithm, desk.data, theirs[-1].progress, steps=2, batch=8)
    assert ids.tolist() == [0, 1, 2] and scores.keys() == expected.keys()
    for kind, score in scores.items():
        assert score.metrics == ("r2", "mae")
        assert_same(score.sums, expected[kind].sums)


@pytest.mark.parametrize("score", [[0.0] * 5, [0.0, 0.0, 0.0, 0.0, 10.0, 1e31], [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]])
def test_scores_of_a_regression_are_checked_too(desk, score):
    server = desk.server()
    assert server._scores({"score/personal": [-3.0, 9.0, 1.0, 1.0, 10.0, 0.1]})
    with pytest.raises(ValueError, match="must be 4 counts, samples and loss|counts more samples or loss"):
        server._scores({"score/personal": score})
