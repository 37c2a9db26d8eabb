"""The projections: against their dense matrices, their laws, the seed's contract, and their refusals."""

import math

import pytest
import torch

from pfed1bs.core import native, rng
from pfed1bs.core.sketch import gaussian, srht
from pfed1bs.core.transform import matrix
from pfed1bs.core.votes import sign, unpack

SIZES = [(1, 1), (2, 1), (2, 2), (3, 4), (5, 3), (8, 8), (100, 10), (100, 128), (1000, 100), (1100, 60)]


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng.stream(0, "test", *shape), dtype=torch.float64).to(dtype)


def dense(sketch):
    """Phi from its definition: sqrt(n'/m) S H D P."""
    size = sketch.padded
    signs = torch.ones(sketch.n) if sketch.signs is None else unpack(sketch.signs, sketch.n)
    return (size / sketch.m) ** 0.5 * matrix(size)[sketch.rows.long(), : sketch.n] * signs


def assert_acts_like(sketch, phi, dtype):
    """forward, adjoint and pull are products with phi, and each other's transposes."""
    exact = 1e-12 if dtype == torch.float64 else 1e-5
    w, u = numbers(2, 3, sketch.n, dtype=dtype), numbers(2, 3, sketch.m, dtype=dtype)
    norm = phi.norm(2).item() * 4
    torch.testing.assert_close(
        sketch.forward(w).double(), w.double() @ phi.T, rtol=0, atol=exact * norm * sketch.n**0.5
    )
    torch.testing.assert_close(sketch.adjoint(u).double(), u.double() @ phi, rtol=0, atol=exact * norm * sketch.m**0.5)
    inner = (sketch.forward(w) * u).double().sum(-1) - (w * sketch.adjoint(u)).double().sum(-1)
    assert (inner.abs() <= exact * w.norm(dim=-1) * u.norm(dim=-1)).all()
    v = sign(u[0, 0])
    v[0] = 0
    misfit = v.abs().double() * torch.tanh(0.5 * (w.double() @ phi.T)) - v.double()
    torch.testing.assert_close(sketch.pull(w, v, 0.5).double(), misfit @ phi, rtol=0, atol=exact * norm * sketch.m**0.5)


@pytest.mark.parametrize("n, m", SIZES)
@pytest.mark.parametrize("use_D", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_srht_is_its_dense_matrix(either_path, n, m, use_D, dtype):
    sketch = srht(n, m, seed=3, use_D=use_D)
    assert_acts_like(sketch, dense(sketch), dtype)
    torch.testing.assert_close(sketch.matrix(), dense(sketch), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n, m", [(1, 1), (5, 3), (100, 10), (10, 100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_is_its_dense_matrix(n, m, dtype):
    sketch = gaussian(n, m, seed=3)
    assert_acts_like(sketch, sketch.entries.double(), dtype)
    torch.testing.assert_close(sketch.matrix(), sketch.entries.double())


def test_gaussian_entries_have_variance_one_over_m():
    entries = gaussian(300, 50, seed=1).entries
    assert abs(entries.mean().item()) < 4 / 15000**0.5 / 50**0.5
    assert abs(entries.var().item() * 50 - 1) < 4 * (2 / 15000) ** 0.5


@pytest.mark.kernel
@pytest.mark.parametrize("n, m", [*SIZES, (70_000, 7_000), (300_000, 30_000), (1 << 18, 1 << 18), (3_000_000, 9_999)])
def test_native_bits_are_those_of_torch_on_any_number_of_threads(monkeypatch, threads, n, m):
    sketch = srht(n, m, seed=5)
    rows = 3 if n < 100_000 else 1
    w, u = numbers(rows, n, dtype=torch.float32), numbers(rows, m, dtype=torch.float32)
    results = {}
    for path in (True, False):
        monkeypatch.setattr(native, "enabled", path)
        for count in (1, 2):
            threads(count)
            results[path, count] = sketch.forward(w), sketch.adjoint(u)
    for forward, adjoint in results.values():
        assert torch.equal(forward, results[False, 1][0])
        assert torch.equal(adjoint, results[False, 1][1])


@pytest.mark.kernel
@pytest.mark.parametrize("n, rows", [(5, 3), (3000, 1), (70000, 2), (20000, 5)])
def test_adjoint_stays_within_its_memory_and_the_room_behind_it(threads, n, rows):
    from pfed1bs.core import _fht

    phi = srht(n, max(1, n // 10), seed=1)
    u = numbers(rows, phi.m, dtype=torch.float32)
    room = rows * n + phi.padded - n
    for count in (1, 2):
        threads(count)
        memory = torch.full((room + 32,), 7.0)
        at = (u.data_ptr(), memory[16:].data_ptr(), phi.signs.data_ptr(), phi.rows.data_ptr())
        _fht.lift(*at, rows, n, phi.padded.bit_length() - 1, phi.m, phi.m**-0.5, count)
        assert torch.equal(memory[16:][: rows * n].view(rows, n), phi.adjoint(u))
        assert (memory[:16] == 7).all() and (memory[16 + room :] == 7).all()
    assert phi.adjoint(u).is_contiguous()


def test_padding_reaches_the_next_power_of_two_and_no_further():
    assert [srht(n, 1, 0).padded for n in (1, 2, 3, 4, 5, 1000, 1024)] == [1, 2, 4, 4, 8, 1024, 1024]


@pytest.mark.parametrize("m", [1, 6, 64])
def test_rows_are_orthogonal_when_nothing_is_padded(m):
    phi = srht(64, m, seed=2).matrix()
    torch.testing.assert_close(phi @ phi.T, 64 / m * torch.eye(m, dtype=torch.float64), rtol=0, atol=1e-12)


def test_norm_is_at_most_and_usually_exactly_the_lemmas():
    """|Phi| <= sqrt(n'/m); equality if m + n > n' or a pair {i, i + n'/2} was drawn; D changes nothing."""
    sketch = srht(1000, 100, seed=0)
    bound = (1024 / 100) ** 0.5
    assert torch.linalg.matrix_norm(sketch.matrix(), 2).item() == pytest.approx(bound, rel=1e-9)
    without = srht(1000, 100, seed=0, use_D=False)
    assert torch.equal(without.rows, sketch.rows)
    singular = torch.linalg.svdvals(sketch.matrix())
    torch.testing.assert_close(torch.linalg.svdvals(without.matrix()), singular)


def test_norm_falls_short_without_a_pair_of_rows():
    for seed in range(200):
        sketch = srht(547, 55, seed)
        if len(set((sketch.rows % 512).tolist())) == 55:
            norm = torch.linalg.matrix_norm(sketch.matrix(), 2).item() / (1024 / 55) ** 0.5
            assert 0.78 < norm < 0.86
            return
    pytest.fail("every one of 200 seeds drew a pair of rows")


def test_squared_norm_is_kept_on_average():
    w = numbers(100)
    ratios = torch.stack([srht(100, 10, seed).forward(w).square().sum() for seed in range(800)]) / w.square().sum()
    assert abs(ratios.mean().item() - 1) < 4 * ratios.std().item() / 800**0.5


def test_hamming_distance_of_signs_is_the_angle():
    w = numbers(2000, dtype=torch.float32)
    other = numbers(2, 2000, dtype=torch.float32)[1]
    other -= w * (w @ other) / (w @ w)
    other *= w.norm() / other.norm()
    sketch = srht(2000, 1000, seed=4)
    for ratio in (0.1, 0.3, 1.0):
        differ = sign(sketch.forward(w)) != sign(sketch.forward(w + ratio * other))
        assert abs(differ.float().mean().item() - math.atan(ratio) / math.pi) < 3 / 1000**0.5


def test_linear_decoding_of_the_signs_points_along_x():
    """cos(Phi^T sign(Phi x), x) is about sqrt(2 m / (pi n')), the length along x about sqrt(2 m / pi)."""
    x = numbers(4096)
    sketch = srht(4096, 410, seed=6)
    decoded = sketch.adjoint(sign(sketch.forward(x)))
    cosine = torch.nn.functional.cosine_similarity(decoded, x, dim=0).item()
    assert cosine == pytest.approx((2 * 410 / (math.pi * 4096)) ** 0.5, rel=0.1)
    assert (decoded @ x / x.norm()).item() == pytest.approx((2 * 410 / math.pi) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    "sketch", [srht(6, 3, 1), srht(8, 8, 1), gaussian(6, 3, 1)], ids=["padded", "full", "gaussian"]
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own forward mode uses it
def test_derivatives_are_right(sketch):
    w = numbers(2, sketch.n).requires_grad_()
    u = numbers(2, sketch.m).requires_grad_()
    v = sign(numbers(sketch.m) + 0.1)
    assert torch.autograd.gradcheck(sketch.forward, (w,), check_forward_ad=True)
    assert torch.autograd.gradcheck(sketch.adjoint, (u,), check_forward_ad=True)
    assert torch.autograd.gradcheck(lambda w: sketch.pull(w, v, 0.7), (w,))


def test_pull_is_the_gradient_of_the_smoothed_penalty():
    """Lemma 2: sum log cosh(gamma q) / gamma - <v, q> with q = Phi w."""
    sketch, gamma = srht(12, 5, 2), 3.0
    w, v = numbers(12).requires_grad_(), sign(numbers(5))
    q = sketch.forward(w)
    (torch.log(torch.cosh(gamma * q)).sum() / gamma - v @ q).backward()
    torch.testing.assert_close(sketch.pull(w.detach(), v, gamma), w.grad)


def test_vmap_batches_weights_and_consensus(either_path):
    sketch = srht(20, 7, 1)
    w, v = numbers(4, 20, dtype=torch.float32), sign(numbers(4, 7, dtype=torch.float32))
    assert torch.equal(torch.func.vmap(sketch.forward)(w), sketch.forward(w))
    assert torch.equal(torch.func.vmap(sketch.adjoint, in_dims=1)(v.T), sketch.adjoint(v))
    assert torch.equal(torch.func.vmap(lambda w, v: sketch.pull(w, v, 2.0))(w, v), sketch.pull(w, v, 2.0))
    grads = torch.func.vmap(torch.func.grad(lambda row: sketch.forward(row).square().sum() / 2))(w)
    torch.testing.assert_close(grads, sketch.adjoint(sketch.forward(w)))


def test_a_client_alone_is_itself_inside_a_stack(either_path):
    sketch = srht(1000, 100, 1)
    w, v = numbers(5, 1000, dtype=torch.float32), sign(numbers(100, dtype=torch.float32))
    assert torch.equal(sketch.forward(w)[3], sketch.forward(w[3]))
    assert torch.equal(sketch.pull(w, v, 1e4)[3], sketch.pull(w[3], v, 1e4))


def test_views_and_unaligned_slices_are_taken(either_path):
    sketch = srht(1000, 100, 1)
    columns = numbers(1000, 3, dtype=torch.float32)
    assert torch.equal(sketch.forward(columns.T), sketch.forward(columns.T.clone()))
    flat = numbers(1003, dtype=torch.float32)
    assert torch.equal(sketch.forward(flat[3:]), sketch.forward(flat[3:].clone()))
    assert torch.equal(sketch.adjoint(flat[3:103]), sketch.adjoint(flat[3:103].clone()))
    assert sketch.forward(torch.zeros(0, 1000)).shape == (0, 100)


@pytest.mark.parametrize(
    "n, m, rule",
    [
        (0, 1, "n must be at least 1, got 0"),
        (-3, 1, "n must be at least 1, got -3"),
        ((1 << 31) + 1, 1, "n must be at most 2\\^31, got 2147483649"),
        (5, 0, "m must be at least 1, got 0"),
        (5, 9, "at most the padded length 8, got 9"),
    ],
)
def test_impossible_sizes_are_refused(n, m, rule):
    with pytest.raises(ValueError, match=rule):
        srht(n, m, seed=0)


def test_a_seed_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="seed must fit in 64 bits"):
        srht(5, 2, seed=2**64)


@pytest.mark.parametrize("sketch", [srht(6, 3, 1), gaussian(6, 3, 1)], ids=["srht", "gaussian"])
def test_wrong_arguments_are_refused(sketch):
    with pytest.raises(ValueError, match=r"last axis of the weights must have length 6, got shape \(2, 5\)"):
        sketch.forward(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"last axis of the measurements must have length 3, got shape \(\)"):
        sketch.adjoint(torch.tensor(1.0))
    with pytest.raises(ValueError, match="last axis of the consensus must have length 3"):
        sketch.pull(torch.zeros(6), torch.zeros(6), 1.0)
    with pytest.raises(ValueError, match="weights must be float32 or float64, got torch.int64"):
        sketch.forward(torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="measurements must be float32 or float64, got torch.float16"):
        sketch.adjoint(torch.zeros(3, dtype=torch.float16))


@pytest.mark.gpu
def test_cuda_gives_the_signs_of_the_cpu():
    sketch = srht(5000, 500, 1)
    w = numbers(3, 5000, dtype=torch.float32)
    here, there = sketch.forward(w), sketch.forward(w.cuda()).cpu()
    clear = here.abs() > 1e-6
    assert torch.equal(sign(here)[clear], sign(there)[clear])


def test_a_dense_projection_is_sent_to_a_place_once():
    phi, w = gaussian(9, 4, 0), torch.ones(2, 9, dtype=torch.float64)
    assert torch.equal(phi.forward(w), phi.forward(w)) and len(phi._placed) == 1
    assert phi._matrix(w) is phi._matrix(w) and phi._matrix(w).dtype == torch.float64
    torch.testing.assert_close(phi.forward(w).float(), phi.forward(w.float()))
