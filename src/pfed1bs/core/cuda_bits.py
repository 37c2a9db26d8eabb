"""Bits on CUDA devices: packed signs, the vote on them, and the portable generator that draws D and S."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from pfed1bs.core.nvrtc import address, launch

MOST = 28  # log2 of the numbers that are drawn here: candidates are counted in 31 bits
SURE = 100  # words beyond those that are needed: too few different ones come less often than once in 2^100 draws
NEVER = (1 << 31) - 1  # the place of a number that is no candidate


class Bits(ctypes.Structure):
    """The arguments of packing and unpacking, as kernels/bits.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target", "bad")),
        *((name, ctypes.c_longlong) for name in ("rows", "m")),
        ("exact", ctypes.c_int),
    ]


class Draw(ctypes.Structure):
    """The arguments of the generator, as kernels/draws.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target")),
        *(("count", ctypes.c_longlong), ("key", ctypes.c_ulonglong), ("log2", ctypes.c_int)),
    ]


class Votes(ctypes.Structure):
    """The arguments of a vote, as kernels/votes.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("messages", "weights", "counters", "target", "ties")),
        *(("m", ctypes.c_longlong), ("total", ctypes.c_longlong), ("count", ctypes.c_int)),
    ]


def pack(x: Tensor, exact: bool = False) -> tuple[Tensor, Tensor]:
    """Bits of x >= 0, shape (..., ceil(m/8)), and whether all of x is finite, or `exact`: +1 or -1; nobody waits."""
    m = x.shape[-1]
    out = torch.empty(*x.shape[:-1], (m + 7) // 8, dtype=torch.uint8, device=x.device)
    bad = torch.zeros(1, dtype=torch.int32, device=x.device)
    if out.numel():
        bits = Bits(address(x), address(out), address(bad), x.numel() // m, m, exact)
        launch("bits.cu", "pack_signs", (), bits, x.device, blocks=-(-out.numel() // 256))
    return out, bad[0] == 0


def unpack(bits: Tensor, m: int) -> Tensor:
    """+-1 as float32, shape (..., m)."""
    out = torch.empty(*bits.shape[:-1], m, device=bits.device)
    if bits.numel():
        arguments = Bits(address(bits), address(out), None, out.numel() // m, m)
        launch("bits.cu", "unpack_signs", (), arguments, bits.device, blocks=-(-out.numel() // 256))
    return out


def count(messages: Sequence[Tensor], weights: Sequence[int], counters: Tensor) -> None:
    """Add the weight of every message to the counters of its + bits."""
    together, weighed = torch.stack([*messages]), torch.tensor(weights, device=counters.device)
    votes = Votes(address(together), address(weighed), address(counters), m=len(counters), count=len(messages))
    _vote("count_votes", votes, counters, len(counters))


def decide(counters: Tensor, total: int, previous: Tensor) -> tuple[Tensor, int]:
    """Bits of 2 * counters > total, those of previous where equal, and how many were equal."""
    out, ties = torch.empty_like(previous), torch.zeros(1, dtype=torch.int32, device=previous.device)
    places = (address(x) for x in (previous, None, counters, out, ties))
    _vote("decide_votes", Votes(*places, m=len(counters), total=total), counters, len(out))
    return out, int(ties)


def _vote(kernel: str, votes: Votes, counters: Tensor, threads: int) -> None:
    wide = int(counters.dtype == torch.int64)
    launch("votes.cu", kernel, (("WIDE", wide),), votes, counters.device, blocks=-(-threads // 256))


def signs(key: int, count: int, device: torch.device) -> Tensor:
    """As rng.bits: so many random bits, packed."""
    out = torch.empty(8 * -(-count // 64), dtype=torch.uint8, device=device)
    _draw("draw_signs", Draw(None, address(out), count, key), device, -(-count // 64))
    return out[: (count + 7) // 8]


def distinct(key: int, size: int, count: int, device: torch.device) -> Tensor:
    """As rng.distinct: so many distinct numbers below a power of two, ascending; nobody waits for the device."""
    drawn = min(count, size - count)
    candidates, log2 = 2 * (drawn + SURE), size.bit_length() - 1
    places = torch.full((size,), NEVER, dtype=torch.int32, device=device)
    _draw("first_places", Draw(None, address(places), candidates, key, log2), device, candidates)
    firsts = torch.empty(candidates, dtype=torch.int32, device=device)
    _draw("mark_firsts", Draw(address(places), address(firsts), candidates, key, log2), device, candidates)
    last = torch.searchsorted(firsts.cumsum(0, dtype=torch.int32), drawn) if drawn else -1  # the place of the last one
    counted = (places <= last if drawn == count else places > last).cumsum(0, dtype=torch.int32)
    out = torch.empty(count, dtype=torch.int32, device=device)
    _draw("gather_counted", Draw(address(counted), address(out), size), device, size)
    return out


def _draw(kernel: str, draw: Draw, device: torch.device, threads: int) -> None:
    launch("draws.cu", kernel, (), draw, device, blocks=-(-threads // 256))
