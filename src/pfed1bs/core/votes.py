"""One-bit votes: the sign, bits packed eight to a byte, and the weighted majority of packed messages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from pfed1bs.core import cuda, cuda_bits, native

GROUP = 16  # messages read at once: one pass over the counters for all of them
LIMIT = 1 << 62  # sums of weights stay below it, so that twice a sum fits in 64 bits


@dataclass(frozen=True)
class Tally:
    """The outcome of a vote."""

    bits: Tensor  # packed like the messages
    ties: int  # coordinates that kept their previous bit


def sign(x: Tensor) -> Tensor:
    """+1 where x >= 0, -1 below, in the dtype of x; zero has a sign, because the wire has no third symbol."""
    return x.detach().clone().ge_(0).mul_(2).sub_(1)  # bits that never are bool take a third of the time


def pack(x: Tensor) -> Tensor:
    """The signs of (..., m) numbers as (..., ceil(m/8)) bytes: bit i % 8 of byte i // 8 is 1 for +, unused ones 0."""
    if not x.is_floating_point() or not x.dim():
        raise ValueError(f"only real vectors can be packed, got {x.dtype} of shape {tuple(x.shape)}; convert it first")
    if x.dtype == torch.float32 and native.usable(x):
        packed, finite = native.pack(x.contiguous())
    elif x.dtype == torch.float32 and cuda.usable(x):
        packed, good = cuda_bits.pack(x.contiguous())
        finite = bool(good)
    else:
        packed, finite = _pack(x >= 0), bool(torch.isfinite(x).all())
    if not finite:
        raise ValueError("only finite numbers have a sign to send, got NaN or infinity; lower the learning rate")
    return packed


def pack_signs(x: Tensor) -> tuple[Tensor, Tensor]:
    """The bits of (..., m) signs on a device, and whether all are +1 or -1, there: nobody waits for it."""
    if x.dtype == torch.float32 and cuda.usable(x):
        return cuda_bits.pack(x.contiguous(), exact=True)
    return _pack(x >= 0), (x.abs() == 1).all()


def unpack(bits: Tensor, m: int) -> Tensor:
    """The m signs of packed (..., ceil(m/8)) bytes as float32 +-1, shape (..., m)."""
    _check(bits, m)
    if native.usable(bits):
        return native.unpack(bits.contiguous(), m)
    if cuda.usable(bits):
        return cuda_bits.unpack(bits.contiguous(), m)
    return _unpack(bits, m).float().mul_(2).sub_(1)


def vote(messages: Iterable[Tensor], weights: Iterable[int] | Tensor, previous: Tensor, m: int) -> Tensor:
    """The weighted majority of packed messages of m signs, packed; ties keep the bit of `previous` (Lemma 6)."""
    return tally(messages, weights, previous, m).bits


def tally(messages: Iterable[Tensor], weights: Iterable[int] | Tensor, previous: Tensor, m: int) -> Tally:
    """The vote and its number of ties; messages are read one group at a time and the sums are exact."""
    counts = _weights(weights)
    _check(previous, m)
    if previous.dim() != 1:
        raise ValueError(f"the previous consensus must be one packed message, got shape {tuple(previous.shape)}")
    dtype = torch.int32 if sum(counts) < 1 << 30 else torch.int64
    counters = torch.zeros(m, dtype=dtype, device=previous.device)  # sum of the weights of the + votes
    voters = iter(messages)
    for start in range(0, len(counts), GROUP):
        group = counts[start : start + GROUP]
        received = list(_checked(islice(voters, len(group)), previous, m))
        if len(received) < len(group):
            raise ValueError(f"every weight needs a message, got {start + len(received)} for {len(counts)} weights")
        if native.usable(previous):
            native.count(received, group, counters)
        elif cuda.usable(previous):
            cuda_bits.count(received, group, counters)
        else:
            for message, weight in zip(received, group, strict=True):
                counters.add_(_unpack(message, m), alpha=weight)
    if next(voters, None) is not None:
        raise ValueError(f"every message needs a weight, got more messages than the {len(counts)} weights")
    ours = native.decide if native.usable(previous) else cuda_bits.decide if cuda.usable(previous) else _decide
    return Tally(*ours(counters, sum(counts), previous.contiguous()))


def weigh(messages: Sequence[Tensor], shares: Sequence[float], m: int) -> Tensor:
    """The sum of share_k z_k over packed messages of m signs z_k, (m,) in float64, in their order."""
    sums = torch.zeros(m, dtype=torch.float64)
    for message in messages:
        _check(message, m)
    if len(messages) != len(shares):
        raise ValueError(f"every message needs a share, got {len(shares)} for {len(messages)} messages")
    if all(native.usable(message) and message.is_contiguous() for message in messages):
        native.weigh(messages, shares, sums)
        return sums
    for message, share in zip(messages, shares, strict=True):
        sums.add_(unpack(message, m), alpha=share)
    return sums


def _decide(counters: Tensor, total: int, previous: Tensor) -> tuple[Tensor, int]:
    balance = 2 * counters.long() - total
    tied = balance == 0
    return _pack((balance > 0) | (tied & _unpack(previous, len(counters)).bool())), int(tied.sum())


def _weights(weights: Iterable[int] | Tensor) -> list[int]:
    numbers = weights.tolist() if isinstance(weights, Tensor) else list(weights)
    for weight in numbers:
        if isinstance(weight, bool) or not isinstance(weight, int):
            raise ValueError(f"weights must be integers (sample counts), got {weight!r}; round them")
        if weight < 0:
            raise ValueError(f"weights must not be negative, got {weight}; leave that voter out")
    if not numbers:
        raise ValueError("a vote needs at least one voter, got none; keep the previous consensus instead")
    if not sum(numbers):
        raise ValueError("weights must not all be zero; leave the voters without samples out")
    if sum(numbers) >= LIMIT:
        raise ValueError(f"the sum of the weights must be below 2^62, got {sum(numbers)}; divide them")
    return numbers


def _checked(messages: Iterator[Tensor], previous: Tensor, m: int) -> Iterator[Tensor]:
    for message in messages:
        _check(message, m)
        if message.shape != previous.shape:
            raise ValueError(f"a message must have the shape {tuple(previous.shape)}, got {tuple(message.shape)}")
        if message.device != previous.device:
            raise ValueError(f"a message is on {message.device}, the previous consensus on {previous.device}; move one")
        yield message.contiguous()


def _check(bits: Tensor, m: int) -> None:
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}; there is nothing to vote on")
    if not isinstance(bits, Tensor) or bits.dtype != torch.uint8:
        kind = bits.dtype if isinstance(bits, Tensor) else type(bits).__name__
        raise ValueError(f"packed signs must be a tensor of bytes (uint8), got {kind}; pack(x) makes one")
    if not bits.dim() or bits.shape[-1] != (m + 7) // 8:
        raise ValueError(f"{m} packed signs take {(m + 7) // 8} bytes, got shape {tuple(bits.shape)}")


def _pack(positive: Tensor) -> Tensor:
    m = positive.shape[-1]
    bits = torch.nn.functional.pad(positive.to(torch.uint8), (0, -m % 8)).reshape(*positive.shape[:-1], -1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return bits.bitwise_left_shift(places).sum(-1, dtype=torch.uint8)


def _unpack(bits: Tensor, m: int) -> Tensor:
    """(..., m) of 0 and 1."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(-1) >> places & 1).flatten(-2)[..., :m]
