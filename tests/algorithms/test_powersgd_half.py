"""PowerSGD with one factor a round: two rounds by hand, exact means, copies that agree, and the bytes of the sheet."""

import inspect
from math import sqrt

import pytest
import torch
from torch import nn

import promise
import test_every_algorithm as common
from flower_desk import RUN, Desk
from pfed1bs.algorithms import make
from pfed1bs.compressors import Alternating, LowRank
from pfed1bs.compressors.alternating import orthonormal
from pfed1bs.data import federate, load
from pfed1bs.engine.attacking import Attack, attacking
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.exchange import hear, tell
from pfed1bs.engine.rounds import simulate
from pfed1bs.facts.traffic import task
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import HEADER, decode, encode
from promise import assert_messages, assert_same

CHECKS = [check for name, check in vars(common).items() if name.startswith("test_")]


def data(clients=4):
    return federate(load("digits"), clients, "dirichlet:0.5", cap=60)


def half(model=None, **options):
    return make("powersgd", Task(model or build("mlp", (1, 8, 8), 10)), **{"factors": "half", "rank": 1, **options})


def cohort(round, *sizes):
    ids = torch.arange(len(sizes))
    return Cohort(0, round, ids, torch.tensor(sizes), torch.full((len(sizes),), round - 1))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_two_rounds_of_a_diagonal_matrix():
    """Together they are the one step of both factors, if nothing is added between them."""
    method = half(nn.Linear(2, 2, bias=False))
    server = {**method.init(1)[0], "q": torch.tensor([0.5, 0.5]).sqrt()}  # Q' = (1, 1), orthonormal
    begun, copy = server["w"], {"theta": server["w"][None], "q": server["q"][None]}
    expected = [  # what is said, what moves, what stays, the next start
        ([3 / sqrt(2), 1 / sqrt(2)], [1.5, 1.5, 0.5, 0.5], [1.5, -1.5, -0.5, 0.5], [3 / sqrt(10), 1 / sqrt(10)]),
        ([4 / sqrt(10), -4 / sqrt(10)], [1.2, -1.2, 0.4, -0.4], [0.3, -0.3, -0.9, 0.9], [1 / sqrt(2), -1 / sqrt(2)]),
    ]
    m = torch.tensor([[3.0, 0, 0, 1]])
    for t, (factor, move, left, start) in enumerate(expected):
        said = method.half.compress(m, server["q"][None], t)
        torch.testing.assert_close(said["factor"], torch.tensor([factor]))
        m = m - method.product(said, server["q"][None], t)
        torch.testing.assert_close(m, torch.tensor([left]), rtol=0, atol=1e-6)
        before, server = server["w"], method.aggregate(server, [{"factor": said["factor"][0]}], cohort(t, 5))
        torch.testing.assert_close(server["w"] - before, torch.tensor(move), rtol=0, atol=1e-6)
        torch.testing.assert_close(server["q"], torch.tensor(start))
        copy = method.absorb(copy, {"factor": server["factor"]}, t + 1)
        assert torch.equal(copy["theta"][0], server["w"]) and torch.equal(copy["q"][0], server["q"])
    torch.testing.assert_close(server["w"] - begun, torch.tensor([2.7, 0.3, 0.9, 0.1]))  # as of both factors
    assert set(server) == {"w", "factor", "q"}  # no memory


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_two_rounds_of_one_update_are_one_round_of_both_factors(rank):
    code = LowRank(Task(nn.Linear(7, 5)).parts, rank)
    turns, m = Alternating(code), normal(1, 40)
    start = turns.basis(torch.zeros(turns.long), -1, torch.Generator().manual_seed(1))
    both = code.decompress(code.compress(m, start[None, : 7 * rank]))
    left = m
    for t in range(2):
        said = turns.compress(left, start[None], t)
        left = left - code.decompress(turns.pair(said, start[None], t))
        start = turns.basis(said["factor"][0], t, torch.Generator().manual_seed(1))
    torch.testing.assert_close(m - left, both, rtol=0, atol=1e-5)


@pytest.mark.parametrize("t", [0, 1])
def test_the_mean_of_factors_is_the_factor_of_the_mean(t):
    method = half(nn.Linear(4, 3), rank=2, server_lr=0.5)
    server, who, m = method.init(3)[0], cohort(t, 1, 3, 4), normal(3, 15)
    if t:
        server["q"] = method.half.basis(normal(method.half.long), 0, torch.Generator())
    said = method.half.compress(m, server["q"].expand(3, -1), t)
    after = method.aggregate(server, [{name: x[i] for name, x in said.items()} for i in range(3)], who)
    assert {name: len(x) for name, x in said.items()} == {"vectors": 3, "factor": 3}
    for name, x in said.items():
        assert torch.equal(after[name], (who.weights.double() @ x.double()).float())
    mean = method.half.compress((who.weights.double() @ m.double()).float()[None], server["q"][None], t)
    torch.testing.assert_close(after["factor"], mean["factor"][0], rtol=0, atol=1e-6)
    moves = method.product(said, server["q"].expand(3, -1), t)
    torch.testing.assert_close(after["w"] - server["w"], 0.5 * who.weights.float() @ moves, rtol=0, atol=1e-6)
    torch.testing.assert_close((after["w"] - server["w"])[12:], 0.5 * who.weights.float() @ m[:, 12:])  # biases


def test_square_matrices_at_full_rank_are_fedavg():
    federation, ends = data(), []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64))  # 64 classes, of which ten are there
    for name, options in (("powersgd", {"factors": "half", "rank": 1000}), ("fedavg", {})):
        *_, done = simulate(make(name, Task(model), **options), federation, rounds=3, steps=3, batch=8)
        ends.append(done.progress.server["w"])
    torch.testing.assert_close(*ends, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("shape", "whole"), [((3, 6), 0), ((6, 3), 1)])
def test_at_full_rank_every_second_round_leaves_nothing(shape, whole):
    """A matrix with fewer inputs than outputs is whole in even rounds, one with fewer outputs in odd ones."""
    turns, m = Alternating(LowRank(Task(nn.Linear(*shape, bias=False)).parts, 9)), normal(1, 18)
    for t in range(2):
        start = turns.basis(normal(turns.long, seed=2), t - 1, torch.Generator())[None]
        lost = m - turns.code.decompress(turns.pair(turns.compress(m, start, t), start, t))
        assert (float(lost.norm()) < 1e-5) == (t == whole)


def test_what_is_not_sent_waits_at_the_clients():
    method, moved = half(), None
    for done in simulate(method, data(), rounds=6, steps=3, batch=8):
        clients, shares = done.progress.clients, done.cohort.weights
        moved = method.init(1)[0]["w"].double() if moved is None else moved
        moved += shares @ (clients["w"] - clients["theta"]).double()
        waiting = shares @ clients["error"].double()
        assert float((done.progress.server["w"] + waiting - moved).abs().max()) < 1e-6  # float32, few sums
        assert float(waiting.norm()) > 0.01 and "error" not in done.progress.server
        assert not clients["error"][:, method.code.plain].any()  # biases have no memory


@pytest.mark.parametrize("lost", [False, True])
def test_who_was_away_has_the_servers_bits_after_what_it_missed_or_a_snapshot(lost):
    method, federation = half(rank=2, server_lr=0.5), data(6)
    for done in simulate(method, federation, rounds=7, sampled=2, steps=2, batch=8):
        now, t = done.progress, done.number + 1
        all_of_them = Cohort(0, t, torch.arange(6), federation.sizes, now.seen)
        news = tell(method, now.server, now.history, all_of_them, range(6) if lost else ())
        assert {item.kind for items in news for item in items} == ({"snapshot"} if lost else {"down"})
        heard, _ = hear(method, now.clients, news)
        assert torch.equal(heard["theta"], now.server["w"].expand(6, -1))
        assert torch.equal(heard["q"], now.server["q"].expand(6, -1)) and torch.equal(
            heard["error"], now.clients["error"]
        )
    assert len({len(items) for items in news}) > 1 or lost  # some had missed more than others


SHEET = {"mlp": (29_408, "0.140"), "vgg8": (95_120, "0.454"), "vgg16": (1_086_576, "5.181")}  # r = 1, mean of 2 rounds


@pytest.mark.parametrize("net", SHEET)
def test_messages_have_the_bytes_of_the_sheet_in_the_mean_of_two_rounds(net):
    method = make("powersgd", task(net), factors="half", rank=1)
    server, sizes = method.init(1)[0], []
    for t in range(2):
        said = method.half.compress(normal(1, method.task.n, seed=t), server["q"][None], t)
        up = encode(method.up, {name: x[0] for name, x in said.items()}, kind="up", round=t)
        message = decode(method.up, up, kind="up", round=t)
        assert all(torch.equal(message[name], x[0]) for name, x in said.items())
        server = method.aggregate(server, [message], cohort(t, 1))
        down = encode(method.down, method.broadcast(server, cohort(t + 1, 1)), kind="down", round=t + 1)
        factor = sum((rows, columns)[t] for _, rows, columns, _ in method.code.matrices)
        assert len(up) == len(down) == HEADER.size + 4 * (factor + len(method.code.plain))
        sizes.append(8 * (len(up) - HEADER.size))
    assert sum(sizes) / 2 == SHEET[net][0]
    assert f"{20 * sum(sizes) / 8 / 2**20:.3f}" == SHEET[net][1]  # 20 clients, both ways, half of two rounds


def test_the_simulator_sends_the_factors_in_turns():
    lengths = [done.traffic for done in simulate(half(), data(), rounds=4, steps=1, batch=4)]
    p, q = (4 * (HEADER.size + 4 * (266 + own)) for own in (256 + 10, 64 + 256))
    assert [one.up for one in lengths] == [p, q, p, q]
    assert [one.down for one in lengths] == [4 * HEADER.size, p, q, p]


def test_the_first_basis_is_random_orthonormal_and_the_same_for_all():
    method = half(rank=3)
    server, clients = method.init(2)
    first, second = server["q"][:192].view(64, 3), server["q"][192:960].view(256, 3)
    for basis in (first, second):
        torch.testing.assert_close(basis.T @ basis, torch.eye(3))
    assert torch.equal(clients["q"], server["q"].expand(2, -1))
    assert not torch.equal(make("powersgd", method.task, 1, factors="half", rank=3).init(1)[0]["q"], server["q"])


def plain(columns, others):
    """Gram and Schmidt, twice, in numbers of Python: every sum half on half."""

    def total(x):
        while len(x) > 1:
            half = (len(x) + 1) // 2
            x = [x[i] + x[half + i] if half + i < len(x) else x[i] for i in range(half)]
        return x[0] if x else 0.0

    def rest(found, x):
        along = [total([a * b for a, b in zip(u, x, strict=True)]) for u in found]
        return [x[i] - total([u[i] * c for u, c in zip(found, along, strict=True)]) for i in range(len(x))]

    found = []
    for own, other in zip(columns, others, strict=True):
        left = rest(found, own)
        left = other if total([a * a for a in left]) <= 1e-12 * total([a * a for a in own]) else left
        left = rest(found, left)
        length = sqrt(total([a * a for a in left]))
        found.append([a / length for a in left])
    return found


@pytest.mark.parametrize(("length", "rank"), [(1, 1), (2, 2), (7, 3), (64, 5), (301, 2)])
def test_a_basis_has_the_bits_of_arithmetic_in_a_fixed_order(length, rank):
    x, others = normal(length, rank), normal(length, rank, seed=1)
    for given in (x, 1e-30 * x, x.index_fill(1, torch.tensor([rank - 1]), 0)):
        basis = orthonormal(given, others)
        expected = plain(given.double().T.tolist(), others.double().T.tolist())
        assert torch.equal(basis, torch.tensor(expected, dtype=torch.float64).T.float())
        torch.testing.assert_close(basis.T @ basis, torch.eye(rank))


def test_a_basis_spans_what_it_came_from_and_dead_columns_begin_anew():
    x, others = normal(9, 3), normal(9, 3, seed=1)
    basis = orthonormal(x, others)
    torch.testing.assert_close(basis @ (basis.T @ x), x)
    x[:, 1] = 2 * x[:, 0]
    basis = orthonormal(x, others)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3))
    torch.testing.assert_close(basis @ (basis.T @ x), x)
    own = others[:, 1] - basis[:, :1] @ (basis[:, :1].T @ others[:, 1])
    torch.testing.assert_close(basis[:, 1], own / own.norm())


def test_nothing_is_nothing_and_the_next_direction_is_another():
    method = half(nn.Linear(5, 4))
    server = method.init(1)[0]
    zero = {"vectors": torch.zeros(4), "factor": torch.zeros(5)}
    starts = [server["q"]]
    for t in range(3):
        after = method.aggregate(server, [zero], cohort(t, 1))
        assert torch.equal(after["w"], server["w"])
        server = after
        assert float(server["q"].norm()) == pytest.approx(1)
        starts.append(server["q"])
    assert not torch.equal(starts[0], starts[2])


def test_numbers_beyond_the_factor_of_a_round_are_not_passed_on():
    method = half(nn.Linear(5, 4))
    said = {"vectors": torch.ones(4), "factor": torch.ones(5)}  # the factor of round 0 has four
    after = method.aggregate(method.init(1)[0], [said], cohort(0, 1))
    assert after["factor"].tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("kind", ["sign-flip", "random", "constant", "collude", "scale", "replay"])
def test_liars_keep_to_the_layout(kind):
    method = attacking(half(), Attack.of(f"{kind}:0.5:1" if kind == "scale" else f"{kind}:0.5"))
    assert len(list(simulate(method, data(), rounds=3, steps=1, batch=4))) == 3


def test_a_client_alone_sends_what_it_sends_among_others():
    turns = Alternating(LowRank(Task(build("mlp", (1, 8, 8), 10)).parts, 3))
    x, factor = normal(5, 19_210), normal(turns.long)
    for t in range(2):
        start = turns.basis(factor, t - 1, torch.Generator()).expand(5, -1)
        together = turns.compress(x, start, t)
        for i in range(5):
            alone = turns.compress(x[i : i + 1], start[:1], t)
            assert all(torch.equal(alone[name][0], together[name][i]) for name in together)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_factor_a_round_passes_the_checks_of_all_methods(check, tmp_path, monkeypatch):
    for module in (common, promise):
        monkeypatch.setattr(module, "make", lambda name, task, **options: make(name, task, factors="half", **options))
    common.method.cache_clear(), common.whole.cache_clear()
    given = {"name": "powersgd", "tmp_path": tmp_path, "device": "cpu", "monkeypatch": monkeypatch}
    check(**{name: given[name] for name in inspect.signature(check).parameters})
    assert common.method("powersgd").factors == "half"
    common.method.cache_clear(), common.whole.cache_clear()


def test_a_network_has_the_bits_of_the_simulator(tmp_path, threads):
    threads(1)
    desk = Desk({**RUN, "algorithm.name": "powersgd", "algorithm.factors": "half"}, tmp_path)
    ours = list(desk.server().rounds())
    theirs = list(simulate(desk.algorithm, desk.data, rounds=RUN["rounds"], steps=RUN["steps"], batch=RUN["batch"]))
    assert_messages(ours, theirs)
    assert_same(ours[-1].progress.server, theirs[-1].progress.server)
