"""The GPU kernels: bit for bit those of the CPU, on a GPU and, by their C twin, on any machine with a compiler."""

from types import SimpleNamespace

import pytest
import torch

from pfed1bs.core import cuda, cuda_bits, native, nvrtc, rng
from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import Rotation, srht
from pfed1bs.core.transform import butterfly, hadamard
from pfed1bs.core.votes import pack, pack_signs, sign, tally, unpack
from pfed1bs.engine.pending import Pending, Unknown
from pfed1bs.engine.recorder import Recorder


def numbers(*shape):
    return torch.randn(*shape, generator=stream(0, "test", *shape))


def tables(phi, device):
    return cuda.Tables(phi.n, phi.m, phi.signs, phi.rows, device, phi.keys)


@pytest.mark.parametrize("m", [1, 20, 1000])
def test_a_gpu_draws_the_signs_of_a_rotation_itself(device, monkeypatch, m):
    x, expected = numbers(2, m), Rotation(m, 5, 3).signs
    monkeypatch.setattr(cuda, "usable", lambda x: True)
    assert torch.equal(Rotation(m, 5, 3)._signs(x.to(device)).cpu(), expected)


@pytest.mark.parametrize("log2", [2, 3, 5, 7, 8, 10, 12, 13, 14, 15, 16, 18])
def test_transform_has_the_bits_of_the_butterfly(device, log2):
    x = numbers(3 if log2 < 15 else 2, 1 << log2)
    out = torch.full_like(x, torch.nan).to(device)
    cuda.transform(x.to(device), out, 0.3)
    assert torch.equal(out.cpu(), butterfly(x, 0.3))


@pytest.mark.parametrize("largest", [13, 14, 15])
@pytest.mark.parametrize("log2", range(1, 32))
def test_passes_cover_every_level_once_and_fit_the_chip(log2, largest):
    cuts = cuda.stretches(log2, largest)
    assert [cut.shift for cut in cuts] == [sum(cut.levels for cut in cuts[:i]) for i in range(len(cuts))]
    assert sum(cut.levels for cut in cuts) == log2
    twice = {13: 23, 14: 25, 15: 26}[largest]
    assert len(cuts) == (1 if log2 <= min(largest, 14) else 2 if log2 <= twice else 3)
    for cut in cuts:
        assert 12 <= cut.tile <= largest  # 128 to 1024 threads, 33, 66 or 132 KiB of shared memory
        assert cut.levels + cut.columns <= cut.tile
        assert not cut.shift or (3 <= cut.columns <= cut.shift and cut.levels >= 5)


@pytest.mark.parametrize(
    "kib, expected", [(227, 15), (163, 15), (99, 14), (96, 14), (64, 13), (48, 13)]
)  # H100, A100, RTX 4090, V100, T4, any
def test_tiles_fit_the_shared_memory_of_the_chip(monkeypatch, kib, expected):
    monkeypatch.setattr(nvrtc, "shared_memory", lambda device: kib << 10)
    assert cuda.largest.__wrapped__(torch.device("cuda", 0)) == expected


@pytest.mark.parametrize("log2, largest", [(14, 13), (15, 13)])
def test_smaller_tiles_give_the_same_bits(device, monkeypatch, log2, largest):
    monkeypatch.setattr(cuda, "largest", lambda device: largest)
    n = (1 << log2) - 5
    phi, x, w = srht(n, n // 10, seed=7), numbers(1, 1 << log2), numbers(1, n)
    out = torch.full_like(x, torch.nan).to(device)
    cuda.transform(x.to(device), out, 0.3)
    assert torch.equal(out.cpu(), butterfly(x, 0.3))
    made = cuda.project(w.to(device), tables(phi, device))
    lifted = cuda.lift(made, tables(phi, device))
    monkeypatch.setattr(native, "enabled", False)
    assert torch.equal(made.cpu(), phi.forward(w)) and torch.equal(lifted.cpu(), phi.adjoint(phi.forward(w)))


def test_three_passes_give_the_same_bits(device, monkeypatch):
    short = [cuda.Stretch(0, 7, 12), cuda.Stretch(7, 5, 12), cuda.Stretch(12, 5, 12)]  # chips have them from 2^24 on
    monkeypatch.setattr(cuda, "stretches", lambda log2, largest: short)
    n = (1 << 17) - 4101  # the last rows of every pass are padding
    phi, x, w, u = srht(n, 9000, seed=7), numbers(1, 1 << 17), numbers(1, n), numbers(1, 9000)
    out = torch.full_like(x, torch.nan).to(device)
    cuda.transform(x.to(device), out, 0.3)
    assert torch.equal(out.cpu(), butterfly(x, 0.3))
    assert torch.equal(cuda.project(w.to(device), tables(phi, device)).cpu(), phi.forward(w))
    assert torch.equal(cuda.lift(u.to(device), tables(phi, device)).cpu(), phi.adjoint(u))


@pytest.mark.gpu
@pytest.mark.parametrize("log2", [24, 26, 27])  # two passes, the longest of two on the largest tiles, three
def test_long_transforms_on_a_gpu_have_the_bits_of_the_cpu(log2):
    x = numbers(1, 1 << log2)
    assert torch.equal(hadamard(x.cuda()).cpu(), hadamard(x))


@pytest.mark.gpu
@pytest.mark.parametrize("rows, n", [(2, 15_299_748), (1, (1 << 26) - 3)])  # VGG16, and all that two passes can do
def test_sketches_of_large_models_on_a_gpu_have_the_bits_of_the_cpu(rows, n):
    phi, w = srht(n, n // 10, seed=7, round=3), numbers(rows, n)
    u = phi.forward(w)
    made = phi.forward(w.cuda())
    assert torch.equal(made.cpu(), u) and torch.equal(pack(made).cpu(), pack(u))
    assert torch.equal(phi.adjoint(u.cuda()).cpu(), phi.adjoint(u))


def test_lengths_that_31_bits_cannot_count_go_through_torch(monkeypatch):
    monkeypatch.setattr(nvrtc, "available", lambda: True)
    monkeypatch.setattr(cuda, "plain", lambda x: True)
    x = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert [length for length in (2, 4, 1 << 30, 1 << 31) if cuda.usable(x, length)] == [4, 1 << 30]
    monkeypatch.setattr(nvrtc, "enabled", False)
    assert not cuda.usable(x)


def test_transform_may_write_over_its_input_and_read_from_any_address(device):
    x = numbers(1, 1 << 15)
    own, odd = x.clone().to(device), torch.cat([torch.zeros(1), x[0]]).to(device)[1:]
    cuda.transform(own, own, 1.0)
    out = torch.empty_like(odd)
    cuda.transform(odd, out, 1.0)
    assert torch.equal(own.cpu(), butterfly(x, 1.0)) and torch.equal(out.cpu(), own[0].cpu())


@pytest.mark.parametrize(
    "n, m",
    [
        (3, 2),
        (5, 8),
        (64, 10),
        (1000, 100),
        (4097, 4096),
        (20_000, 2_000),
        (32_768, 31),
        (40_003, 999),
        (70_004, 7_001),
    ],
)
@pytest.mark.parametrize("use_D", [True, False])
def test_sketch_and_adjoint_have_the_bits_of_the_cpu(device, monkeypatch, n, m, use_D):  # noqa: N803
    phi = srht(n, m, seed=7, use_D=use_D)
    w, u = numbers(2, n), numbers(2, m)
    made, lifted = (
        cuda.project(w.to(device), tables(phi, device)),
        cuda.lift(u.to(device), tables(phi, device)),
    )
    monkeypatch.setattr(native, "enabled", False)
    assert torch.equal(made.cpu(), phi.forward(w))
    assert torch.equal(lifted.cpu(), phi.adjoint(u))


@pytest.mark.parametrize("n", [1000, 40_000])
def test_misfit_is_that_of_the_cpu_up_to_rounding(device, n):
    phi = srht(n, n // 10, seed=3)
    w, v = numbers(2, n), sign(numbers(2, n // 10))
    v[0, :5] = 0  # nothing pulls there
    for consensus in (v[0], v):
        found = cuda.misfit(w.to(device), consensus.to(device), 0.5, tables(phi, device)).cpu()
        torch.testing.assert_close(found, phi.misfit(w, consensus, 0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("m", [1, 7, 8, 9, 3001])
def test_signs_are_packed_and_unpacked_as_on_the_cpu(device, m):
    x = numbers(3, m)
    x[1, 0] = -0.0
    packed, finite = cuda_bits.pack(x.to(device))
    assert finite and torch.equal(packed.cpu(), pack(x))
    assert torch.equal(cuda_bits.unpack(packed, m).cpu(), unpack(pack(x), m))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_without_a_sign_are_found(device, value):
    x = numbers(2, 30)
    x[1, 29] = value
    assert not cuda_bits.pack(x.to(device))[1]


@pytest.mark.parametrize("value", [0.0, 1 + 2**-23, -2.0, torch.nan, torch.inf])
def test_packed_signs_come_with_a_word_whether_they_are_signs(device, value):
    x = sign(numbers(2, 30))
    packed, good = cuda_bits.pack(x.to(device), exact=True)
    assert good and torch.equal(packed.cpu(), pack(x))
    x[1, 29] = value
    assert not cuda_bits.pack(x.to(device), exact=True)[1] and not pack_signs(x)[1]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 5000])
def test_signs_are_drawn_as_on_the_cpu(device, count):
    found = cuda_bits.signs(0xFEDCBA9876543210, count, device)
    assert torch.equal(found.cpu(), torch.from_numpy(rng.bits(0xFEDCBA9876543210, count)))


@pytest.mark.parametrize(
    "size, count",
    [(1, 1), (1, 0), (2, 1), (4, 2), (4, 3), (64, 32), (64, 33), (4096, 4096), (8192, 819), (1 << 15, 30000)],
)
def test_rows_are_drawn_as_on_the_cpu(device, size, count):
    for key in (7, (1 << 64) - 1):
        found = cuda_bits.distinct(key, size, count, device)
        assert torch.equal(found.cpu(), torch.from_numpy(rng.distinct(key, size, count)))


def test_a_sketch_that_is_drawn_on_the_device_is_that_which_is_sent_to_it(device):
    phi = srht(3000, 300, seed=5, round=2)
    drawn = cuda.Tables(phi.n, phi.m, torch.zeros(1), phi.rows + 1, device, phi.keys)  # wrong, if they were sent
    sent = cuda.Tables(phi.n, phi.m, phi.signs, phi.rows, device)
    for own, other in zip(drawn.parts(), sent.parts(), strict=True):
        assert own.dtype == other.dtype and torch.equal(own.view(torch.int32), other.view(torch.int32))


def test_a_sketch_is_not_placed_while_work_is_recorded(device, monkeypatch):
    placed, late = (tables(srht(3000, 300, seed=5, round=round), device) for round in (0, 1))
    placed.parts()
    monkeypatch.setattr(cuda, "recording", lambda device: True)
    placed.parts()
    with pytest.raises(RuntimeError, match="before work with it is recorded"):
        late.parts()


@pytest.mark.parametrize("m, weights", [(1, [1]), (9, [3, 3]), (300, [1, 5, 2, 4]), (70, [1 << 40, 1, (1 << 40) - 1])])
def test_a_vote_is_that_of_the_cpu(device, monkeypatch, m, weights):
    messages, previous = pack(numbers(len(weights), m)), pack(numbers(1, m)[0])
    expected = tally(messages, weights, previous, m)
    monkeypatch.setattr(native, "usable", lambda x: False)
    if device.type == "cpu":
        monkeypatch.setattr(cuda, "usable", lambda x, length=4: True)
    found = tally(messages.to(device), weights, previous.to(device), m)
    assert torch.equal(found.bits.cpu(), expected.bits) and found.ties == expected.ties


@pytest.mark.gpu
def test_public_functions_use_the_kernels_on_a_gpu(monkeypatch):
    used = []
    for module in (cuda, cuda_bits):
        monkeypatch.setattr(module, "launch", lambda *a, **k: (used.append(a[1]), nvrtc.launch(*a, **k)))
    x, phi = numbers(2, 3, 1 << 12), srht(5000, 500, seed=1)
    w, u = numbers(3, 5000), numbers(3, 500)
    assert torch.equal(hadamard(x.cuda()).cpu(), hadamard(x))
    assert torch.equal(phi.forward(w.cuda()).cpu(), phi.forward(w))
    assert torch.equal(phi.adjoint(u.cuda()).cpu(), phi.adjoint(u))
    assert torch.equal(unpack(pack(u.cuda()), 500).cpu(), sign(u))
    torch.testing.assert_close(phi.pull(w.cuda(), sign(u[0]).cuda(), 1e4).cpu(), phi.pull(w, sign(u[0]), 1e4))
    once = ("spread_flips", "draw_signs", "first_places", "mark_firsts", "gather_counted")
    passes = [name for name in used if name not in once]
    assert passes == ["transform_pass"] * 3 + ["pack_signs", "unpack_signs"] + ["transform_pass"] * 2
    assert sorted(set(used) - set(passes)) == sorted(once) and len(used) - len(passes) == 6


@pytest.mark.parametrize("n, m, use", [(100, 30, True), (30_000, 3_000, True), (30_000, 3_000, False)])
def test_a_pending_sketch_becomes_that_of_any_round_in_the_same_memory(device, n, m, use):
    w, u, pending = numbers(2, n), numbers(2, m), Pending(device)
    phi = srht(n, m, 5, pending, use)
    places = [part.data_ptr() for part in phi.tables(device).parts()]
    for round in (0, 3, 3, 1):
        pending.become(round)
        assert srht(n, m, 5, pending, use) is phi
        real = srht(n, m, 5, round, use)
        assert torch.equal(cuda.project(w.to(device), phi.tables(device)).cpu(), real.forward(w))
        assert torch.equal(cuda.lift(u.to(device), phi.tables(device)).cpu(), real.adjoint(u))
        assert [part.data_ptr() for part in phi.tables(device).parts()] == places


def test_a_recorder_fills_in_the_sketches_of_the_round_to_come(device):
    recorder, w = Recorder(), numbers(2, 100)
    pending = recorder._pending[device] = Pending(device)
    phi = srht(100, 30, 5, pending)
    recorder.foresee(3)
    assert torch.equal(cuda.project(w.to(device), phi.tables(device)).cpu(), srht(100, 30, 5, 3).forward(w))


def test_whoever_computes_with_a_pending_round_is_told_so():
    pending = Pending(torch.device("cpu"))
    uses = (bool, int, float, str, "{}".format, lambda r: r + 1, lambda r: 2 * r, lambda r: r == 0, lambda r: r < 3)
    for use in (
        *uses,
        range,
        lambda r: [1, 2][r],
        lambda r: 1 / r,
        lambda r: stream(0, r),
        lambda r: Rotation(8, 0, r).signs,
    ):
        with pytest.raises(Unknown):
            use(pending)


def test_sketches_that_somebody_holds_are_drawn_once():
    held = srht(50, 5, 1, 2)
    assert srht(50, 5, 1, 2) is held and srht(50, 5, 1, 3) is not held
    rows = held.rows.tolist()
    del held
    assert srht(50, 5, 1, 2).rows.tolist() == rows
