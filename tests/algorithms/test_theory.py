"""The paper's penalty, its lemmas on votes, sampling and model norms, checked on problems small enough to enumerate."""

from itertools import combinations, product

import pytest
import torch

from pfed1bs.algorithms import make
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import gaussian, penalty, smooth_l1, srht
from pfed1bs.core.votes import pack, sign, tally, unpack
from pfed1bs.nn.task import Task

N, M, PADDED = 20, 8, 32
SKETCHES = {
    "srht": srht(N, M, seed=3),
    "without D": srht(N, M, seed=3, use_D=False),
    "gaussian": gaussian(N, M, seed=3),
}


def randn(name, *shape):
    return torch.randn(*shape, generator=stream(0, name), dtype=torch.float64)


def signs(name, *shape):
    return sign(randn(name, *shape))


def one_sided(v, y):
    """g of Eq. 2: the l1 norm of the negative part of v * y."""
    return (v * y).clamp(max=0).abs().sum(-1)


def differences(f, w, step=1e-6):
    """Central differences of f at w, one coordinate after the other."""
    return torch.stack([(f(w + step * e) - f(w - step * e)) / (2 * step) for e in torch.eye(len(w), dtype=w.dtype)])


def test_one_sided_penalty_is_half_of_l1_norm_minus_product_for_signs():
    y = randn("y", 50, M)
    for v in signs("v", 50, M):
        assert torch.allclose(one_sided(v, y), (y.abs().sum(1) - y @ v) / 2, rtol=0, atol=1e-14)


def test_that_identity_fails_where_the_consensus_is_zero():
    v, y = torch.tensor([0.0, 1.0]), torch.tensor([-3.0, -2.0])
    assert one_sided(v, y) == 2
    assert (y.abs().sum() - v @ y) / 2 == 3.5  # the coordinate without a consensus adds |y| / 2


@pytest.mark.parametrize("name", SKETCHES)
def test_masked_penalty_tends_to_twice_the_one_sided_norm(name):
    w, v = randn("w", N), torch.tensor([1.0, -1, 0, 1, -1, 0, 1, 1], dtype=torch.float64)
    q = SKETCHES[name].forward(w)
    assert penalty(SKETCHES[name], w, v, 1e12) == pytest.approx(2 * float(one_sided(v, q)), abs=1e-10)
    literal = penalty(SKETCHES[name], w, v, 1e12, masked=False)
    assert literal == pytest.approx(2 * float(one_sided(v, q)) + float(q[v == 0].abs().sum()), abs=1e-10)


@pytest.mark.parametrize("gamma", [1, 7, 100])
@pytest.mark.parametrize("name", SKETCHES)
def test_pull_is_the_gradient_of_the_masked_penalty(name, gamma):
    sketch, w = SKETCHES[name], randn("w", N)
    for v in (signs("v", M), signs("v", M) * torch.tensor([1, 0, 1, 0, 0, 1, 1, 0])):
        numeric = differences(lambda x, v=v: penalty(sketch, x, v, gamma), w)
        assert torch.allclose(sketch.pull(w, v, gamma), numeric, rtol=0, atol=1e-8)


@pytest.mark.parametrize("gamma", [1, 7, 100])
def test_gradient_of_the_literal_penalty_is_the_printed_one(gamma):
    sketch, w = SKETCHES["srht"], randn("w", N)
    for v in (signs("v", M), torch.zeros(M, dtype=torch.float64)):
        numeric = differences(lambda x, v=v: penalty(sketch, x, v, gamma, masked=False), w)
        printed = sketch.adjoint(torch.tanh(gamma * sketch.forward(w)) - v)
        assert torch.allclose(printed, numeric, rtol=0, atol=1e-8)


def test_pull_is_the_gradient_at_the_papers_gamma_away_from_the_kink():
    sketch, w, v = SKETCHES["srht"], randn("w", N), signs("v", M)
    assert sketch.forward(w).abs().min() > 1e-3
    numeric = differences(lambda x: penalty(sketch, x, v, 1e4), w)
    assert torch.allclose(sketch.pull(w, v, 1e4), numeric, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pull_vanishes_at_its_own_signs_as_gamma_grows(dtype):
    sketch, w = SKETCHES["srht"], randn("w", N).to(dtype)
    v = sign(sketch.forward(w))
    assert sketch.pull(w, v, 1.0).norm() > 0.1
    assert torch.equal(sketch.pull(w, v, 1e9), torch.zeros(N, dtype=dtype))


def test_smooth_l1_has_the_values_of_log_cosh():
    assert smooth_l1(torch.tensor(0.0), 5.0) == 0
    assert smooth_l1(torch.tensor(2.0).log(), 1.0) == pytest.approx(0.2231435513)  # cosh(log 2) = 5/4
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    for gamma in (0.5, 7.0, 100.0):
        naive = torch.cosh(gamma * x).log() / gamma
        assert torch.isfinite(naive).all()
        assert torch.allclose(smooth_l1(x, gamma), naive, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_smooth_l1_stays_finite_where_log_cosh_overflows(dtype):
    x = torch.tensor([1e2, -1e2, 1e-4, 0.0], dtype=dtype)
    assert not torch.isfinite(torch.cosh(1e4 * x).log()).all()
    assert torch.allclose(smooth_l1(x, 1e4), torch.tensor([1e2, 1e2, 4.337808e-5, 0], dtype=dtype), rtol=1e-6)


def test_smooth_l1_lies_between_the_l1_norm_and_its_shift():
    z = randn("z", 1000, M)
    for gamma in (0.1, 3.0, 1e4):
        h, norm = smooth_l1(z, gamma).sum(1), z.abs().sum(1)
        assert bool((h <= norm).all())
        assert bool((h >= norm - M * 0.693147180559946 / gamma - 1e-14).all())  # reached where z is large


@pytest.mark.parametrize("weights, ties", [((1, 2, 4, 8), 0), ((1, 2, 3, 6), None), ((1, 1, 1, 1), None)])
def test_minimisers_of_the_vote_are_majorities_with_free_ties(weights, ties):
    m = 8
    z = torch.tensor([[1, 1, 1, 1, -1, -1, 1, -1], [1, 1, 1, -1, -1, 1, -1, -1],
                      [1, 1, -1, -1, -1, -1, 1, 1], [1, -1, -1, -1, 1, 1, -1, 1]])  # fmt: skip
    votes = torch.tensor(weights) @ z
    every = torch.tensor(list(product([-1, 1], repeat=m)))
    costs = torch.stack([one_sided(v, z) for v in every]) @ torch.tensor(weights)
    best = every[costs == costs.min()]
    tied = int((votes == 0).sum())
    assert ties is None or tied == ties
    assert tied > 0 or ties == 0
    assert len(best) == 2**tied
    assert torch.equal(best[:, votes != 0], votes[votes != 0].sign().expand(len(best), -1))
    previous = torch.tensor([-1.0, 1, -1, 1, -1, 1, -1, 1])
    outcome = tally(list(pack(z.float())), weights, pack(previous), m)
    v = unpack(outcome.bits, m)
    assert outcome.ties == tied
    assert bool((best == v).all(1).any())
    assert torch.equal(v[votes == 0], previous[votes == 0])


def test_one_tie_leaves_two_minimisers_and_three_leave_eight():
    z = torch.tensor([[1, 1, 1, 1], [1, 1, 1, -1]])
    every = torch.tensor(list(product([-1, 1], repeat=4)))
    for pair, minimisers in ((z, 2), (torch.tensor([[1, 1, 1, 1], [1, -1, -1, -1]]), 8)):
        costs = torch.stack([one_sided(v, pair).sum() for v in every])
        assert int((costs == costs.min()).sum()) == minimisers


@pytest.mark.parametrize("sampled", [1, 2, 3, 5, 6])
def test_sampling_variance_is_an_equality_and_gives_the_papers_constant(sampled):
    clients, m = 6, 16
    shares = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.float64) / 21
    scaled = shares[:, None] * sign(srht(N, m, seed=1).forward(randn("models", clients, N)))
    mean = scaled.mean(0)
    subsets = list(combinations(range(clients), sampled))
    errors = torch.stack([(scaled[list(some)].mean(0) - mean).square().sum() for some in subsets])
    factor = (clients - sampled) / (sampled * clients * (clients - 1))
    variance = float(errors.mean())
    assert variance == pytest.approx(factor * float((scaled - mean).square().sum()), abs=1e-16)
    printed = 2 * m * (clients * (clients - sampled) / (sampled * (clients - 1)) * float(shares.square().sum())) ** 0.5
    moments = factor * float(scaled.square().sum())  # the proof's bound on the variance; its K must not be dropped
    assert clients * 2 * m**0.5 * moments**0.5 == pytest.approx(printed, rel=1e-14)
    assert variance <= moments
    if sampled == clients:
        assert variance < 1e-30
        assert printed == 0


@pytest.mark.parametrize("n, m", [(20, 8), (32, 8), (20, 16), (17, 3)])
def test_projection_norm_is_at_most_that_of_lemma_1_and_does_not_depend_on_the_signs(n, m):
    for seed in range(20):
        sketch = srht(n, m, seed)
        norm, limit = float(torch.linalg.matrix_norm(sketch.matrix(), 2)), (PADDED / m) ** 0.5
        plain = srht(n, m, seed, use_D=False).matrix()
        paired = len(set((sketch.rows % (PADDED // 2)).tolist())) < m
        assert norm <= limit + 1e-14
        assert norm == pytest.approx(float(torch.linalg.matrix_norm(plain, 2)), rel=1e-14)
        assert norm == pytest.approx(limit, rel=1e-13) or not (n == PADDED or m + n > PADDED or paired)


def test_projection_norm_is_not_always_that_of_lemma_1():
    sketch = srht(17, 3, seed=0)
    assert sketch.rows.tolist() == [16, 21, 29]  # on 17 columns their products are +-1, their squares 17, all over 3
    assert torch.linalg.matrix_norm(sketch.matrix(), 2) ** 2 == pytest.approx(19 / 3, rel=1e-14)  # not 32 / 3


def papers_norm(first, lr, mu, steps, size, pull):
    """W of Lemma 4, and W with its geometric sum taken once; `size` is G, `pull` is 2 lam sqrt(n')."""
    alpha = 1 - lr * mu * (1 / 2 - 3 * lr * mu)
    c = (2 * lr / mu + 3 * lr**2) * size**2 + (lr / mu + 3 * lr**2) * pull**2
    printed = (first**2 + c / ((1 - alpha) * (1 - alpha**steps))) ** 0.5
    return printed, max(first**2, c / (1 - alpha)) ** 0.5


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5, 1.0])
def test_model_norm_stays_below_the_corrected_bound_against_an_adversary(share):
    sketch, lam, mu, size, gamma = SKETCHES["srht"], 0.05, 0.1, 1.0, 10.0
    lr, pull = share / mu, 2 * lam * PADDED**0.5
    w = randn("w", N)
    bound = max(float(w.norm()), (size + pull) / mu)
    printed, once = papers_norm(float(w.norm()), lr, mu, 10, size, pull) if share < 1 / 6 else (bound, bound)
    assert bound <= once <= printed
    largest = 0.0
    for v in signs("adversary", 1000, M):
        moved = (1 - lr * mu) * w - lr * lam * sketch.pull(w, v, gamma)
        w = moved + lr * size * moved / moved.norm()  # a task gradient of norm G, straight outwards
        largest = max(largest, float(w.norm()))
        assert w.norm() <= bound
    assert largest > 0.99 * size / mu  # the adversary does reach what the task gradient alone allows


def test_projections_reach_the_l1_bound_that_the_theorem_uses():
    for n, m in ((20, 8), (32, 8), (17, 32)):
        w = randn("w", 200, n)
        assert bool((srht(n, m, seed=2).forward(w).abs().sum(1) <= PADDED**0.5 * w.norm(dim=1)).all())
    sketch, z = srht(PADDED, M, seed=2), signs("z", M)
    w = sketch.adjoint(z)
    assert sketch.forward(w).abs().sum() == pytest.approx(PADDED**0.5 * float(w.norm()), rel=1e-14)


def test_a_dense_projection_says_beforehand_what_it_takes():
    large, small = (Task(torch.nn.Linear(size, 100)) for size in (2000, 20))
    told = "the dense projection takes 14.9 GiB of memory, and every round reads it"
    assert make("pfed1bs", large, projection="gaussian").remark == told  # 200,100 x 20,010 x 4 bytes
    assert make("pfed1bs", small, projection="gaussian").remark == make("pfed1bs", large).remark == ""
