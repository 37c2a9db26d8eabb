"""A federation over a network gives the simulator's bits, for every method, with clients that come and go."""

import pytest
import torch

from flower_desk import Desk
from pfed1bs.algorithms import REGISTRY
from pfed1bs.engine.rounds import simulate
from pfed1bs.engine.scores import evaluate
from promise import PROMISED, assert_messages, assert_same

RUN = {
    "rounds": 3,
    "clients": 5,
    "sampled": 3,
    "steps": 2,
    "batch": 8,
    "data.cap": 60,
    "data.partition": "dirichlet:0.5",
}


def simulated(desk, **options):
    config = desk.config
    size = {"steps": config.steps, "batch": config.batch, "seed": config.seed_of("batches")}
    algorithm = desk.server().algorithm
    return list(simulate(algorithm, desk.data, rounds=config.rounds, sampled=config.sampled, **size, **options))


def assert_clients(desk, ours, theirs):
    for client, state in desk.states(ours.progress).items():
        assert_same(state, {name: value[client : client + 1] for name, value in theirs.progress.clients.items()})


VARIANTS = [
    *({"algorithm.name": name} for name in REGISTRY),
    {"algorithm.name": "pfed1bs", "algorithm.code": "entropy"},
    {"algorithm.name": "pfed1bs", "algorithm.train": "all", "algorithm.momentum": 0.5},
    {"algorithm.name": "pfed1bs", "algorithm.start": "own", "algorithm.v0": "sketch"},
    {"algorithm.name": "pfed1bs-delta", "algorithm.keep": "best"},
    {
        "algorithm.name": "pfed1bs-delta",
        "algorithm.snapshots": "coded",
        "algorithm.ratio": 0.5,
        "rounds": 20,
        "sampled": 1,
        "min_clients": 1,
    },
    {"algorithm.name": "local", "algorithm.train": "all"},
    {"algorithm.name": "dispfl", "algorithm.neighbours": 1},
    {"algorithm.name": "fedavg", "partition_seed": 3, "init_seed": 4, "batches_seed": 5},
    {"algorithm.name": "signsgd", "rounds": 6, "sampled": 2},
    {"algorithm.name": "stc", "rounds": 6, "sampled": 1, "min_clients": 1},
]


def test_a_client_of_a_network_has_the_bits_of_one_thread_on_two(tmp_path, threads):
    states = []
    for number in (1, 2):
        threads(number)
        desk = Desk({**RUN, "algorithm.name": "ef-sign"}, tmp_path / str(number))
        states.append(list(desk.server().rounds())[-1].progress.server)
    assert_same(*states)


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: " ".join(map(str, options.values())))
def test_a_network_gives_the_bits_of_the_simulator(options, tmp_path, threads):
    threads(1)
    desk = Desk({**RUN, **options}, tmp_path)
    server = desk.server()
    ours, theirs = list(server.rounds()), simulated(desk)
    assert_messages(
        ours, theirs
    )  # a client alone has the bits that it has in the simulator's stack (test_same_bits.py)
    if PROMISED:
        assert [done.traffic for done in ours] == [done.traffic for done in theirs]
    for mine, reference in zip(ours, theirs, strict=True):
        assert_same(mine.log, {name: value for name, value in reference.log.items() if value.dtype != torch.uint8})
    assert_same(ours[-1].progress.server, theirs[-1].progress.server)
    assert_clients(desk, ours[-1], theirs[-1])
    ids, scores = server.judge(ours[-1].progress)
    expected = evaluate(
        server.algorithm, desk.data, theirs[-1].progress, steps=2, batch=8, seed=desk.config.seed_of("batches")
    )
    assert ids.tolist() == [0, 1, 2, 3, 4] and set(scores) == set(expected)
    for kind, score in scores.items():
        assert_same(score.sums, expected[kind].sums)
