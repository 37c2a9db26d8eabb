"""A round by hand: the public functions do what pfed1bs-delta does, with the same bits."""

import pytest
import torch

from pfed1bs import OneBitCode, Refused, decode_step, encode_step, encode_update, make
from pfed1bs.algorithms.base.onebit import SAFE, bounded
from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.task import Task

CODE = OneBitCode(n=403, ratio=0.2, seed=5)
SIZES = (30, 10, 20)


def updates(seed=0):
    return torch.randn(3, 403, generator=torch.Generator().manual_seed(seed))


def said(round=2, of=CODE):
    return [encode_update(of, x, round=round, samples=size) for x, size in zip(updates(), SIZES, strict=True)]


@pytest.mark.parametrize("rotate", [True, False])
def test_a_round_by_hand_has_the_bits_of_the_method(rotate):
    code, step = OneBitCode(403, 0.2, 5, rotate), bounded(torch.tensor(SIZES) / 60, 0.2, most=SAFE)
    delta = make("pfed1bs-delta", Task(torch.nn.Linear(402, 1), "mse"), seed=5, ratio=0.2, rotate=rotate, step=step)
    order = sorted(range(3), key=lambda i: said(of=code)[i])  # the order of their bytes, by hand the order of the sum
    cohort = Cohort(5, 2, torch.arange(3), torch.tensor([SIZES[i] for i in order]), torch.full((3,), 1))
    _, spoken = delta.spoken({}, updates()[order], 2)
    spoken["signs"] = delta.up["signs"].pack(spoken["signs"])
    server = delta.init(3)[0] | {"theta": torch.zeros(403)}
    after = delta.aggregate(server, [{k: v[i] for k, v in spoken.items()} for i in range(3)], cohort)
    step = decode_step(code, encode_step(code, said(of=code), round=2), round=2)
    assert torch.equal(step, after["theta"]) and step.norm() > 0


def test_a_message_has_the_bytes_that_were_announced_both_ways():
    assert CODE.size == 20 + 4 + 10 == len(said()[0]) == len(encode_step(CODE, said(), round=2))
    assert encode_update(CODE, updates()[0], round=2) == encode_update(CODE, updates()[0], round=2, samples=1)
    assert OneBitCode(4097).size + OneBitCode(4097).size == 152


def test_the_order_of_arrival_changes_no_bit():
    assert encode_step(CODE, said(), round=2) == encode_step(CODE, said()[::-1], round=2)


def test_the_step_is_right_in_the_mean():
    x = torch.randn(403, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(403)
    for t in range(400):
        total += decode_step(CODE, encode_step(CODE, [encode_update(CODE, x, round=t)], round=t), round=t)
    share = float(total @ x / (x @ x)) / 400
    assert abs(share * (torch.pi / 2) / 0.2**0.5 - 1) < 0.1  # as long as the update, noise included


def test_a_step_and_its_noise_are_no_longer_than_an_update_of_one_of_many_clients():
    for clients in (1, 5, 40):
        code = OneBitCode(4096, 0.1, seed=1)
        generator = torch.Generator().manual_seed(clients)
        heard = [encode_update(code, torch.randn(4096, generator=generator), round=3) for _ in range(clients)]
        length = decode_step(code, encode_step(code, heard, round=3), round=3).norm() / 64
        assert length < 1.1 and (clients > 20 or length > 0.6)


def test_what_does_not_fit_is_refused_with_the_way_out():
    with pytest.raises(UserError, match="flat tensor of 403 numbers, got shape .*parameters_to_vector"):
        encode_update(CODE, torch.zeros(13, 31), round=0)
    with pytest.raises(UserError, match="NaN or infinity; lower the learning rate"):
        encode_update(CODE, torch.full((403,), torch.nan), round=0)
    with pytest.raises(UserError, match="needs the update of one client"):
        encode_step(CODE, [], round=0)
    with pytest.raises(UserError, match="one of them samples"):
        encode_step(CODE, [encode_update(CODE, updates()[0], round=0, samples=0)], round=0)
    with pytest.raises(UserError, match=r"ratio must be a share in \(0, 1\], got 2"):
        OneBitCode(403, ratio=2)
    with pytest.raises(UserError, match="n must be at least 1, got 0"):
        OneBitCode()
    with pytest.raises(Refused, match="round is 2, expected 3"):
        encode_step(CODE, said(round=2), round=3)
    with pytest.raises(Refused, match="kind is up, expected down"):
        decode_step(CODE, said()[0], round=2)
