"""The transform: against the dense matrix, bit for bit between its paths, differentiable, and its refusals."""

from functools import cache
from resource import RUSAGE_SELF, getrusage

import pytest
import torch

from pfed1bs.core import native
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import blockwise, butterfly, hadamard, kernel, matrix
from pfed1bs.core.votes import pack, unpack, weigh


def numbers(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=stream(0, "test", *shape)).to(dtype)


def test_matrix_of_size_four_is_sylvesters():
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert (2 * matrix(4)).tolist() == signs


def test_transform_of_a_short_vector_by_hand(either_path):
    assert hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [5.0, -1.0, -2.0, 0.0]
    assert hadamard(torch.tensor([7.0])).tolist() == [7.0]


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transform_is_the_dense_product(either_path, n, dtype):
    x = numbers(3, n, dtype=dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14  # 6 levels at most
    torch.testing.assert_close(hadamard(x), x @ matrix(n, dtype), rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize("factors", [(4, 4), (2, 8), (8, 2, 4)])
def test_transform_factors_into_a_kronecker_product(factors):
    product = torch.ones(1, 1, dtype=torch.float64)
    for factor in factors:
        product = torch.kron(product, matrix(factor))
    x = numbers(5, len(product), dtype=torch.float64)
    torch.testing.assert_close(hadamard(x), x @ product, rtol=0, atol=1e-13)


def test_transform_is_its_own_inverse(either_path):
    x = numbers(2, 1 << 14)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=0, atol=1e-5)  # float32, 28 levels


def variants():
    """Every instruction set of this processor."""
    if not native.built:
        return []
    from pfed1bs.core import _fht

    best = _fht.isa()
    found = [name for name in ("avx512", "avx2", "generic") if _fht.use(name)]
    _fht.use(best)
    return found


@pytest.fixture(params=["avx512", "avx2", "generic"])
def instructions(request):
    if request.param not in variants():
        pytest.skip(f"this processor or build has no {request.param} kernels")
    from pfed1bs.core import _fht

    best = _fht.isa()
    _fht.use(request.param)
    yield request.param
    _fht.use(best)


@cache
def transformed(log2, rows):
    """Rows of numbers, and their transforms by torch."""
    x = numbers(rows, 1 << log2)
    return x, butterfly(x, x.shape[1] ** -0.5)


@cache
def sketched(log2):
    """A sketch of nearly so many weights, and forward and adjoint of some numbers by torch."""
    (x,), n = transformed(log2, 1)[0], (1 << log2) - 5
    sketch = srht(n, len(x) // 10, seed=3)
    u, signs = numbers(sketch.m), unpack(sketch.signs, n)
    lifted = butterfly(torch.zeros(len(x)).index_copy(0, sketch.rows.long(), u), sketch.m**-0.5)[:-5] * signs
    padded = torch.nn.functional.pad(x[:-5] * signs, (0, 5))
    return sketch, x[:-5], butterfly(padded, sketch.m**-0.5)[sketch.rows.long()], u, lifted


@pytest.mark.kernel
@pytest.mark.parametrize("log2", [*range(21), 22])
def test_native_bits_are_those_of_the_butterfly(instructions, threads, log2):
    assert kernel() == instructions
    x, expected = transformed(log2, 3 if log2 < 14 else 1)
    for count in (1, 2, 3):
        threads(count)
        assert torch.equal(hadamard(x), expected)
        assert torch.equal(hadamard(x, out=x.clone()), expected)


@pytest.fixture(params=[1 << 15, 1 << 18, 1 << 20, 1 << 24])
def processor_cache(request):
    """Rows are cut for a second-level cache of this many bytes."""
    from pfed1bs.core import _fht

    _fht.fit(request.param)
    yield
    _fht.fit(0)


@pytest.mark.kernel
@pytest.mark.parametrize("log2", [4, 6, 8, 9, 11, 13, 17, 20])
def test_bits_do_not_depend_on_the_size_of_the_cache(instructions, processor_cache, threads, log2):
    x, expected = transformed(log2, 1)
    sketch, w, projected, u, lifted = sketched(log2)
    for count in (1, 2):
        threads(count)
        assert torch.equal(hadamard(x), expected)
        assert torch.equal(hadamard(x, out=x.clone()), expected)
        assert torch.equal(sketch.forward(w), projected)
        assert torch.equal(sketch.adjoint(u), lifted)


@pytest.mark.kernel
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_shared_among_threads_are_those_of_one(threads, rows):
    x = numbers(rows, 1 << 15)
    threads(1)
    alone = torch.stack([hadamard(row) for row in x])
    threads(2)
    assert torch.equal(hadamard(x), alone)


@pytest.mark.kernel
@pytest.mark.parametrize("instructions", ["generic"], indirect=True)
def test_rows_longer_than_one_pass_of_high_levels_are_right(instructions, threads):
    """2^26 floats need one pass more; the transform of a unit vector is a row of signs."""
    threads(2)
    x = torch.zeros(1 << 26)
    place = 0b10_1001_0111_0010_0001_0110_1001
    x[place] = 2.0**13
    hadamard(x, out=x)
    probes = [0, 1, place, (1 << 26) - 1, 1 << 25, 0b11 << 18]
    assert x[probes].tolist() == [(-1.0) ** (probe & place).bit_count() for probe in probes]
    assert x.min() == -1 and x.max() == 1 and x.sum() == 0


@pytest.mark.kernel
def test_a_long_result_takes_the_memory_of_one_given_up_and_never_of_one_in_use():
    x = torch.ones(1 << 20)
    first, second = hadamard(x), hadamard(-x)
    assert (first[0], first.count_nonzero()) == (1024, 1)
    assert (second[0], second.count_nonzero()) == (-1024, 1)
    place = second.data_ptr()
    del second
    third = hadamard(x.view(1024, 1024))
    assert third.data_ptr() == place and third.shape == (1024, 1024)
    part = third[1:]
    del third
    assert hadamard(x).data_ptr() != place
    assert part.count_nonzero() == 1023 and (part[:, 0] == 32).all()


@pytest.mark.kernel
def test_long_results_of_two_lengths_in_turn_need_no_fresh_pages():
    short, long = torch.ones(1 << 19), torch.ones(1 << 24)
    for rounds in (2, 10):  # the first of them warm up
        before = getrusage(RUSAGE_SELF).ru_minflt
        for _ in range(rounds):
            hadamard(short)
            hadamard(long)
    assert getrusage(RUSAGE_SELF).ru_minflt - before < 100  # each fresh one would take at least 32 huge pages


def test_kernel_names_the_torch_path_when_switched_off(without_kernel):
    assert kernel() == "torch"


BITS = """
import torch
from pfed1bs.core.transform import hadamard, kernel
from pfed1bs.core.sketch import srht
x = torch.arange(1 << 16).sin()
phi = srht(50_000, 5_000, seed=1)
results = hadamard(x), phi.forward(x[:50_000]), phi.adjoint(x[:5_000])
print(kernel(), [y.numpy().tobytes().hex() for y in results])
"""


def test_every_kernel_can_be_forced_and_gives_the_same_bits(fresh):
    names = [*variants(), "torch"]
    answers = [fresh(BITS, PFED1BS_KERNEL=name).stdout.split(maxsplit=1) for name in names]
    assert [name for name, _ in answers] == names
    assert len({bits for _, bits in answers}) == 1


@pytest.mark.parametrize(
    "name, error",
    [
        ("sse9", "PFED1BS_KERNEL must be one of avx512, avx2, generic, torch, got sse9"),
        ("portable", "got portable"),
    ],
)
def test_an_unknown_kernel_is_refused(name, error, fresh):
    refused = fresh("import pfed1bs.core.transform", PFED1BS_KERNEL=name)
    assert refused.returncode == 1 and error in refused.stderr


@pytest.mark.kernel
def test_a_kernel_that_the_processor_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(native._fht, "use", lambda name: False)
    with pytest.raises(ValueError, match="PFED1BS_KERNEL is avx512, which this processor does not have"):
        native.choose("avx512")


def test_a_kernel_that_was_not_built_is_refused(monkeypatch):
    monkeypatch.setattr(native, "built", False)
    assert native.choose("torch") is False and native.choose(None) is False
    with pytest.raises(ValueError, match="PFED1BS_KERNEL is generic, but pfed1bs.core._fht was not built"):
        native.choose("generic")


def test_any_batch_shape_is_taken(either_path):
    x = numbers(2, 3, 4, 8)
    torch.testing.assert_close(hadamard(x)[1, 2, 3], matrix(8, torch.float32) @ x[1, 2, 3], rtol=0, atol=1e-5)
    assert hadamard(x[:0]).shape == (0, 3, 4, 8)


def test_views_and_unaligned_slices_are_taken(either_path):
    x = numbers(65, 64)
    expected = hadamard(x[1:].T.clone())
    assert torch.equal(hadamard(x[1:].T), expected)
    flat = numbers(4099)
    assert torch.equal(hadamard(flat[3:]), hadamard(flat[3:].clone()))
    out = torch.zeros(4101)
    hadamard(flat[3:], out=out[5:])
    assert torch.equal(out[5:], hadamard(flat[3:].clone()))
    assert out[:5].tolist() == [0.0] * 5


def test_out_is_written_and_returned(either_path):
    x, out = numbers(3, 16), torch.empty(3, 16)
    assert hadamard(x, out=out) is out
    assert torch.equal(out, hadamard(x))
    columns = torch.empty(16, 3).T
    assert torch.equal(hadamard(x, out=columns), out)


def test_out_may_overlap_x(either_path):
    memory = numbers(24)
    expected = hadamard(memory[:16].clone())
    assert torch.equal(hadamard(memory[:16], out=memory[8:]), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own forward mode uses it
def test_derivatives_are_transforms():
    x = numbers(2, 8, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(hadamard, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(hadamard, (x,))


def test_gradient_in_float32_is_the_transform_of_the_cotangent(either_path):
    x = numbers(4, 32).requires_grad_()
    weights = numbers(4, 32) + 1
    (hadamard(x) * weights).sum().backward()
    assert torch.equal(x.grad, hadamard(weights))


def test_vmap_and_grad_compose(either_path):
    x = numbers(16, 5)
    assert torch.equal(torch.func.vmap(hadamard, in_dims=1)(x), hadamard(x.T))
    grads = torch.func.vmap(torch.func.grad(lambda row: (hadamard(row) ** 2).sum() / 2), in_dims=1)(x)
    torch.testing.assert_close(grads, x.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n, wanted", [(0, 1), (3, 4), (12, 16)])
def test_other_lengths_are_refused(n, wanted):
    with pytest.raises(ValueError, match=f"power of two, got {n}; pad it to {wanted}"):
        hadamard(torch.zeros(2, n))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16, torch.complex64])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="must be float32 or float64"):
        hadamard(torch.zeros(4, dtype=dtype))


@pytest.mark.parametrize(
    "out, got",
    [
        (torch.zeros(2, 4), r"\(2, 4\), torch.float32 and cpu"),
        (torch.zeros(4, dtype=torch.float64), r"\(4,\), torch.float64 and cpu"),
        (torch.zeros(4, device="meta"), r"\(4,\), torch.float32 and meta"),
    ],
)
def test_an_out_of_another_kind_is_refused(out, got):
    with pytest.raises(ValueError, match=rf"out must have .* of x, \(4,\), torch.float32 and cpu, got {got}"):
        hadamard(torch.zeros(4), out=out)


def test_an_out_cannot_be_differentiated_through():
    x = torch.zeros(4, requires_grad=True)
    with pytest.raises(ValueError, match="out cannot be differentiated"):
        hadamard(x, out=torch.zeros(4))
    with torch.no_grad():
        assert hadamard(x, out=torch.ones(4)).tolist() == [0.0] * 4


@pytest.mark.kernel
def test_blocks_have_the_bits_of_their_own_transforms(instructions):
    sizes = [2048, 64, 2, 1]
    x = numbers(2, sum(sizes))
    expected = torch.cat([butterfly(part, part.shape[-1] ** -0.5) for part in torch.split(x, sizes, -1)], -1)
    assert torch.equal(blockwise(x, sizes), expected)
    assert torch.equal(blockwise(x[1], sizes), expected[1])


@pytest.mark.kernel
def test_signs_are_weighed_alike_with_all_instructions(instructions, threads):
    messages, shares, m = pack(numbers(300, 4099)), numbers(300).double().tolist(), 4099
    expected = torch.zeros(m, dtype=torch.float64)
    for message, share in zip(messages, shares, strict=True):
        expected += share * unpack(message, m).double()
    for count in (1, 2):
        threads(count)
        assert torch.equal(weigh([*messages], shares, m), expected)


def test_global_random_state_is_untouched():
    before = torch.get_rng_state()
    hadamard(numbers(64))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_cuda_gives_the_bits_of_the_cpu():
    x = numbers(2, 1 << 12)
    assert torch.equal(hadamard(x.cuda()).cpu(), hadamard(x))
