import sys
from math import inf

import pytest
import torch
from torch import Tensor, nn

from pfed1bs.compressors import QSGD, Binary, Compressor, Eden, OneBitCS, ZSign, decompressed
from pfed1bs.compressors.onebitcs import biht, top
from pfed1bs.core import native
from pfed1bs.core.sketch import srht
from pfed1bs.core.transform import matrix
from pfed1bs.core.votes import pack, sign
from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.workers import alone
from pfed1bs.nn.task import Task
from pfed1bs.wire.messages import Message, decode, encode


def cohort(round: int = 0, *clients: int) -> Cohort:
    ids = torch.tensor(clients or (0,))
    return Cohort(0, round, ids, torch.ones_like(ids), torch.full_like(ids, -1))


def sample(n: int, seed: int = 0) -> Tensor:
    """A heavy-tailed vector with a few zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) * torch.rand(n, generator=generator) ** 3
    x[::50] = 0
    return x


def apiece(said: Message) -> list[Message]:
    """The messages of a cohort, one by one."""
    return [dict(zip(said, fields, strict=True)) for fields in zip(*said.values(), strict=True)]


def through(compressor: Compressor, x: Tensor, round: int = 0, client: int = 0) -> Tensor:
    """What the server makes of the bytes of x."""
    who = cohort(round, client)
    message = {name: field[0] for name, field in compressor.compress(x[None], who).items()}
    data = encode(compressor.layout, message, kind="up", round=round)
    return compressor.decompress(decode(compressor.layout, data, kind="up", round=round, packed=True), who)


def error(estimate: Tensor, x: Tensor) -> float:
    return float((estimate - x).square().sum() / x.square().sum())


@pytest.mark.parametrize(("bits", "expected"), [(1, 0.570), (2, 0.133), (3, 0.0356), (4, 0.0096)])
def test_eden_has_the_published_error_and_no_bias(bits, expected):
    x = sample(1 << 10)
    estimates = torch.stack([through(Eden(len(x), bits), x, round) for round in range(200)])
    assert sum(error(estimate, x) for estimate in estimates) / 200 == pytest.approx(expected, rel=0.02)
    assert error(estimates.mean(0), x) == pytest.approx(expected / 200, rel=0.1)


@pytest.mark.parametrize(("bits", "expected"), [(0.5, torch.pi - 1), (0.25, 2 * torch.pi - 1)])
def test_eden_below_one_bit_sends_a_share_of_the_coordinates_and_has_no_bias(bits, expected):
    x = sample(1 << 10)
    estimates = torch.stack([through(Eden(len(x), bits), x, round) for round in range(200)])
    assert Eden(len(x), bits).layout["fine"].size == bits * (1 << 10) / 8
    assert sum(error(estimate, x) for estimate in estimates) / 200 == pytest.approx(expected, rel=0.05)
    assert error(estimates.mean(0), x) == pytest.approx(expected / 200, rel=0.1)


def test_eden_between_two_widths_has_an_error_between_theirs():
    x = sample(1 << 10)
    errors = [sum(error(through(Eden(len(x), bits), x, round), x) for round in range(20)) for bits in (1, 1.5, 2)]
    assert errors[0] > 1.2 * errors[1] > 1.4 * errors[2]
    assert {name: codec.size for name, codec in Eden(1 << 10, 1.5).layout.items()} == {
        "coarse": 64,
        "fine": 128,
        "scale": 4,
    }


def test_eden_with_one_bit_sends_the_signs_of_the_rotated_update():
    x = torch.tensor([3.0, -1, 2, 0, 1])
    compressor, who = Eden(5), cohort(7, 3)
    y = (matrix(8).float()[:, :5] * compressor._signs(who)) @ x
    message = compressor.compress(x[None], who)
    assert message["coarse"].tolist() == [(y >= 0).int().tolist()]
    back = matrix(8).float()[:5] @ torch.where(y >= 0, 1.0, -1.0) * compressor._signs(who)
    expected = float(y @ y) / float(y.abs().sum()) * back  # |y|_2^2 / |y|_1
    assert torch.allclose(through(compressor, x, 7, 3), expected, atol=1e-5)  # float32


def test_eden_rotates_every_client_and_round_differently():
    compressor = Eden(1000)
    signs = [compressor._signs(cohort(round, client)) for round in (0, 1) for client in (0, 1)]
    for i in range(4):
        for j in range(i):
            assert abs(float(signs[i] @ signs[j])) < 130  # 4 standard deviations of 1000 coins


@pytest.mark.parametrize("bits", [0.5, 1, 1.5, 4])
def test_eden_of_nothing_is_nothing(bits):
    assert torch.equal(through(Eden(10, bits), torch.zeros(10)), torch.zeros(10))


@pytest.mark.parametrize("bits", [0, 4.5, 1e-3])
def test_eden_refuses_widths_that_it_cannot_send(bits):
    with pytest.raises(ValueError, match="algorithm.bits"):
        Eden(100, bits)


def noisy_mean(compressor: Compressor, x: Tensor, clients: int) -> Tensor:
    """The mean estimate of many clients that all have the update x."""
    who = cohort(0, *range(clients))
    message = compressor.compress(x.expand(clients, -1), who)
    packed = compressor.layout["signs"].pack(message["signs"])
    return torch.stack([compressor.decompress({"signs": bits}, who) for bits in packed]).mean(0)


@pytest.mark.parametrize(("z", "expected"), [(1, 0.293), (inf, 0.300)])
def test_zsign_is_debiased_as_published(z, expected):
    # The accumulated gradient is 0.3 everywhere: the update is -lr 0.3; 400 clients x 1000 coordinates, error 0.002.
    lr = 0.05
    mean = noisy_mean(ZSign(1000, lr, sigma=1.0, z=z), torch.full((1000,), -lr * 0.3), 400)
    assert float(mean.mean()) / -lr == pytest.approx(expected, abs=0.005)


def test_zsign_with_uniform_noise_is_exact_up_to_sigma_and_clips_beyond():
    gradient = torch.tensor([-3.0, -0.5, 0, 0.25, 1, 2])
    mean = noisy_mean(ZSign(6, 0.1, sigma=1.0, z=inf), -0.1 * gradient, 20_000)
    assert torch.allclose(mean / -0.1, gradient.clamp(-1, 1), atol=0.03)  # 4 standard deviations


def test_zsign_sends_one_bit_per_weight_and_fresh_noise_in_every_round():
    compressor, x = ZSign(1000, 0.1, 1.0), torch.zeros(1, 1000)
    assert compressor.layout["signs"].size == 125
    first, second = (compressor.compress(x, cohort(round))["signs"] for round in (0, 1))
    assert 400 < int((first != second).sum()) < 600


@pytest.mark.parametrize(("sigma", "z"), [(0, 1), (1, 2)])
def test_zsign_refuses_noise_that_it_cannot_undo(sigma, z):
    with pytest.raises(ValueError, match="algorithm.(sigma|z)"):
        ZSign(10, 0.1, sigma, z)


def test_qsgd_rounds_to_the_levels_on_either_side():
    x = torch.tensor([3.0, -4, 0, 1, 0, 0])  # norms of the buckets of 4 and 2: sqrt(26) and 0
    who = cohort(0, *range(4000))
    message = QSGD(6, levels=2, bucket=4).compress(x.expand(4000, -1), who)
    levels = message["levels"] - 2
    exact = 2 * x / 26**0.5  # 1.18, -1.57, 0, 0.39
    assert [column.unique().tolist() for column in levels.T] == [[1, 2], [-2, -1], [0], [0, 1], [0], [0]]
    assert torch.allclose(levels.float().mean(0), exact, atol=0.04)  # 5 standard deviations
    assert torch.allclose(message["norms"], torch.tensor([26**0.5, 0]).expand(4000, 2))


@pytest.mark.parametrize(("levels", "bucket"), [(1, 512), (7, 512), (1, 0), (5, 100)])
def test_qsgd_has_no_bias_and_the_error_of_its_bound(levels, bucket):
    x = sample(2000)
    size = bucket or 2000
    bound = min(size / levels**2, size**0.5 / levels)
    estimates = torch.stack([through(QSGD(2000, levels, bucket), x, round) for round in range(200)])
    errors = sum(error(estimate, x) for estimate in estimates) / 200
    assert 0 < errors <= bound
    assert error(estimates.mean(0), x) == pytest.approx(errors / 200, rel=0.25)


def test_qsgd_of_nothing_is_nothing_and_of_one_value_exact():
    assert torch.equal(through(QSGD(10), torch.zeros(10)), torch.zeros(10))
    one = torch.zeros(10)
    one[3] = -0.7
    for round in range(50):
        assert torch.equal(through(QSGD(10), one, round), one)


@pytest.mark.parametrize(("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4)])
def test_qsgd_sends_a_sign_and_the_level_in_fixed_length(levels, bits):
    sizes = {name: codec.size for name, codec in QSGD(1000, levels, 0).layout.items()}
    assert sizes == {"levels": 125 * bits, "norms": 4}


@pytest.mark.parametrize(("levels", "bucket"), [(0, 512), (1, -1)])
def test_qsgd_refuses_levels_and_buckets_that_are_none(levels, bucket):
    with pytest.raises(ValueError, match="algorithm.(levels|bucket)"):
        QSGD(10, levels, bucket)


def test_top_keeps_the_largest_magnitudes_where_they_are():
    assert top(torch.tensor([[1.0, -4, 3, 0], [0, 2, -1, 1.5]]), 2).tolist() == [[0, -4, 3, 0], [0, 2, 0, 1.5]]


@pytest.mark.kernel
@pytest.mark.skipif(sys.platform != "linux", reason="torch chooses among equal ones by another library there")
def test_the_kernel_keeps_what_torch_keeps_among_equal_magnitudes_too(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    for n, count in ((64, 1), (1000, 15), (5000, 64), (4000, 61)):
        x = (20 * torch.randn(3, n, generator=draw)).round()  # some larger than the last one kept, many equal to it
        kept = top(x, count)
        assert (kept != 0).sum(1).tolist() == [count] * 3
        with monkeypatch.context() as without:
            without.setattr(native, "enabled", False)
            assert torch.equal(top(x, count), kept)


def test_the_largest_are_found_among_numbers_that_are_not():
    x = torch.arange(640.0)
    x[[3, 200]] = torch.tensor([torch.nan, -inf])
    assert top(x, 3).nonzero().flatten().tolist() == [3, 200, 639]


def test_biht_finds_what_a_client_kept_at_twenty_measurements_each():
    n, m, kappa = 1 << 14, (1 << 14) // 10, (1 << 14) // 200
    cosines = []
    for seed in range(6):
        x = top(torch.randn(n, generator=torch.Generator().manual_seed(seed)), kappa)
        sketch = srht(n, m, seed)
        estimate = biht(sketch, sign(sketch.forward(x)), kappa, 30)
        assert float(estimate.norm()) == pytest.approx(1, abs=1e-5) and int((estimate != 0).sum()) == kappa
        cosines.append(float(estimate @ x / x.norm()))
    assert sum(cosines) / 6 >= 0.99


def test_biht_stops_when_all_signs_are_right_and_ignores_zeros():
    sketch = srht(64, 32, 0)
    x = torch.zeros(64)
    x[5] = -1.0
    y = sign(sketch.forward(x))
    assert torch.equal(biht(sketch, y, 1, 0), x) and torch.equal(biht(sketch, y, 1, 1000), x)
    y[::2] = 0
    assert torch.equal(biht(sketch, y, 1, 10), x)
    assert torch.equal(biht(sketch, torch.zeros(32), 3, 10), torch.zeros(64))


def test_one_bit_sensing_sends_the_norm_only_if_asked():
    assert {name: codec.size for name, codec in OneBitCS(203_530, 20_353, 1017, 0).layout.items()} == {
        "signs": 2545,
        "norm": 4,
    }
    assert list(OneBitCS(100, 10, 3, 0, norm=False).layout) == ["signs"]


def test_one_bit_sensing_brings_back_the_kept_part_of_an_update():
    x = top(torch.randn(4096, generator=torch.Generator().manual_seed(1)), 20)
    code = OneBitCS(4096, 1000, 20, seed=0)
    assert error(through(code, x), x) < 0.02
    assert error(through(OneBitCS(4096, 1000, 20, seed=0, norm=False), x), x / x.norm()) < 0.02
    assert torch.equal(through(code, torch.zeros(4096)), torch.zeros(4096))


def test_binary_updates_come_back_exactly():
    task = Task(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)))
    x = torch.tensor([0.5, -0.5, 0.5, 0.5, -0.5, -0.5, 0.125, -7, 0.25, -0.25])
    code = Binary(task.parts)
    assert torch.equal(through(code, x), x)
    assert {name: codec.size for name, codec in code.layout.items()} == {"signs": 1, "scales": 8, "plain": 8}
    assert list(Binary(Task(nn.Linear(3, 2, bias=False)).parts).layout) == ["signs", "scales"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_updates_are_decompressed_alike_on_any_number_of_threads(threads, count):
    threads(count)
    compressor, who = Eden(1 << 14), cohort(1, *range(9))
    updates = torch.stack([sample(1 << 14, client) for client in range(9)])
    said = compressor.compress(updates, who)
    messages = apiece(said)
    with alone():
        found = torch.stack([*decompressed(compressor, messages, who)])
        expected = [compressor.decompress(one, who.rows(slice(i, i + 1))) for i, one in enumerate(messages)]
    assert torch.equal(found, torch.stack(expected))
    with pytest.raises(ValueError, match="shorter|longer"):
        list(decompressed(compressor, messages[:4], who))


def test_what_has_to_be_searched_for_is_searched_for_where_the_clients_are():
    class Far:
        """An update on another device."""

        def cpu(self):
            return torch.zeros(1)

    class Told(OneBitCS):
        def decompress(self, message, cohort):
            places.append(message["signs"].device.type)
            return Far()

    class Decoded(Told):
        solves = False

    who, places = cohort(0, 1, 2), []
    said = OneBitCS(4096, 1000, 20, seed=0).compress(torch.stack([sample(4096), sample(4096, 1)]), who)
    messages = apiece(said)
    with alone(torch.device("meta")):
        assert [one.device.type for one in decompressed(Told(4096, 1000, 20, 0), messages, who)] == ["cpu", "cpu"]
        list(decompressed(Decoded(4096, 1000, 20, 0), messages, who))
    list(decompressed(Told(4096, 1000, 20, 0), messages, who))  # nobody computes on another device any more
    assert places == ["meta"] * 2 + ["cpu"] * 4


@pytest.mark.gpu
def test_an_update_is_found_on_a_gpu_as_on_the_cpu():
    who, compressor = cohort(0, 1, 2), OneBitCS(40_000, 8_000, 100, seed=0, iterations=10)
    said = compressor.compress(torch.stack([sample(40_000), sample(40_000, 1)]), who)
    said["signs"] = pack(said["signs"])
    messages = apiece(said)
    with alone(torch.device("cuda")):
        there = torch.stack([*decompressed(compressor, messages, who)])
    here = torch.stack([*decompressed(compressor, messages, who)])
    assert there.device.type == "cpu"
    assert torch.cosine_similarity(there, here).min() > 0.999  # among equal magnitudes others may be kept
