"""The native kernels, if they were built, for contiguous tensors on the CPU and on as many threads as torch uses."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, get_num_threads
from torch.nn import Parameter

from pfed1bs.core.errors import UserError

LONG = 1 << 17  # floats: a quarter of a huge page, below which fresh memory is not felt
KERNELS = ("avx512", "avx2", "generic", "torch")  # best first; generic: plain C, which is what ARM gets
UNSET = "leave it unset for the best"

built = find_spec("pfed1bs.core._fht") is not None
if built:
    from pfed1bs.core import _fht


def choose(wanted: str | None) -> bool:
    """Take the kernels named by PFED1BS_KERNEL, the best of this processor if none; whether they are native ones."""
    if not wanted:
        return built
    if wanted not in KERNELS:
        raise UserError(f"PFED1BS_KERNEL must be one of {', '.join(KERNELS)}, got {wanted}", UNSET)
    if wanted == "torch":
        return False
    if not built:
        raise UserError(
            f"PFED1BS_KERNEL is {wanted}, but pfed1bs.core._fht was not built", "install a C compiler and reinstall"
        )
    if not _fht.use(wanted):
        raise UserError(f"PFED1BS_KERNEL is {wanted}, which this processor does not have", UNSET)
    return True


enabled = choose(os.environ.get("PFED1BS_KERNEL"))  # tests switch it off to compare with the torch path


def kernel() -> str:
    """What transforms float32 on the CPU: one of KERNELS."""
    return _fht.isa() if enabled else "torch"


def plain(x: Tensor) -> bool:
    """Whether the numbers of x are what lies in its memory: not those of a fake tensor or of a view with a minus."""
    return type(x) in (Tensor, Parameter) and not x.is_neg()


def usable(x: Tensor) -> bool:
    """Whether the native kernels take x; everything else goes through torch."""
    return enabled and x.is_cpu and x.dtype in (torch.float32, torch.uint8) and plain(x)


def empty(*shape: int) -> Tensor:
    """A float32 tensor to be written; a long one in memory that another has given up, whose pages are warm."""
    size = prod(shape)
    if size < LONG:
        return torch.empty(*shape)
    return torch.frombuffer(_fht.memory(4 * size), dtype=torch.float32, count=size).resize_(*shape)


def transform(x: Tensor, out: Tensor, scale: float) -> None:
    """H x times scale into out, which may be x itself."""
    n = x.shape[-1]
    _fht.transform(x.data_ptr(), out.data_ptr(), x.numel() // n, n.bit_length() - 1, scale, get_num_threads())


def blocks(x: Tensor, out: Tensor, sizes: Sequence[int]) -> None:
    """Orthonormal transforms of neighbouring blocks of these sizes into out, which may be x itself."""
    log2, scales = tuple(size.bit_length() - 1 for size in sizes), tuple(size**-0.5 for size in sizes)
    _fht.blocks(x.data_ptr(), out.data_ptr(), log2, scales, get_num_threads())


def project(w: Tensor, m: int, signs: Tensor | None, rows: Tensor) -> Tensor:
    """The m rows `rows` of H D P w times 1 / sqrt(m), shape (..., m)."""
    *axes, n = w.shape
    out = empty(*axes, m)
    at = (w.data_ptr(), out.data_ptr(), 0 if signs is None else signs.data_ptr(), rows.data_ptr())
    _fht.project(*at, w.numel() // n, n, (n - 1).bit_length(), m, m**-0.5, get_num_threads())
    return out


def lift(u: Tensor, n: int, signs: Tensor | None, rows: Tensor) -> Tensor:
    """The transpose of project, shape (..., n), made in place, for which its memory has room for the last padding."""
    *axes, m = u.shape
    count, log2 = u.numel() // m, (n - 1).bit_length()
    out = empty(count * n - n + (1 << log2)).resize_(*axes, n)
    at = (u.data_ptr(), out.data_ptr(), 0 if signs is None else signs.data_ptr(), rows.data_ptr())
    _fht.lift(*at, count, n, log2, m, m**-0.5, get_num_threads())
    return out


def pack(x: Tensor) -> tuple[Tensor, bool]:
    """Bits of x >= 0, shape (..., ceil(m/8)), and whether all of x is finite."""
    m = x.shape[-1]
    out = torch.empty(*x.shape[:-1], (m + 7) // 8, dtype=torch.uint8)
    rows = out.numel() // max(out.shape[-1], 1)
    return out, _fht.pack(x.data_ptr(), out.data_ptr(), rows, m, get_num_threads())


def unpack(bits: Tensor, m: int) -> Tensor:
    """+-1 as float32, shape (..., m)."""
    out = torch.empty(*bits.shape[:-1], m)
    _fht.unpack(bits.data_ptr(), out.data_ptr(), out.numel() // m, m, get_num_threads())
    return out


def count(messages: Sequence[Tensor], weights: Sequence[int], counters: Tensor) -> None:
    """Add the weight of every message to the counters of its + bits."""
    addresses = tuple(message.data_ptr() for message in messages)
    wide = counters.dtype == torch.int64
    _fht.count(addresses, tuple(weights), counters.data_ptr(), wide, len(counters), get_num_threads())


def weigh(messages: Sequence[Tensor], shares: Sequence[float], sums: Tensor) -> None:
    """Add share times sign of every message to sums in float64, one message after the other."""
    addresses = tuple(message.data_ptr() for message in messages)
    _fht.weigh(addresses, tuple(shares), sums.data_ptr(), len(sums), get_num_threads())


def decide(counters: Tensor, total: int, previous: Tensor) -> tuple[Tensor, int]:
    """Bits of 2 * counters > total, those of previous where equal, and how many were equal."""
    out = torch.empty_like(previous)
    wide = counters.dtype == torch.int64
    at = (counters.data_ptr(), previous.data_ptr(), out.data_ptr())
    return out, _fht.decide(*at, wide, total, len(counters), get_num_threads())


def words(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """Words of the portable generator (rng.words)."""
    out = np.empty(count, np.uint64)
    _fht.words(key, start, count, out.ctypes.data)
    return out


def distinct(key: int, size: int, count: int) -> NDArray[np.int32]:
    """Distinct numbers of the portable generator (rng.distinct)."""
    out = np.empty(count, np.int32)
    _fht.distinct(key, size.bit_length() - 1, count, out.ctypes.data)
    return out


def largest(x: Tensor, count: int) -> Tensor:
    """The `count` largest magnitudes of (..., n) values, the others 0; of equal ones those that torch.topk takes.

    Torch chooses among equal ones in the same way while 64 count <= n.
    """
    out, n = empty(*x.shape), x.shape[-1]
    _fht.largest(x.data_ptr(), out.data_ptr(), x.numel() // n, n, count)
    return out


def crc32(data: bytes | memoryview, crc: int) -> int:
    """The CRC-32 of bytes that come after others (checks.crc32)."""
    return _fht.crc32(data, crc)


def sealed(head: bytes, pieces: Sequence[bytes | memoryview], floats: int) -> bytes | None:
    """Head, checksum and pieces (checks.sealed)."""
    return _fht.sealed(head, tuple(pieces), floats)


def finite(values: NDArray[np.float32]) -> bool:
    """Whether contiguous values are finite (checks.finite)."""
    return _fht.finite(values.ctypes.data, values.size)


def opened(data: bytes | memoryview, crc: int) -> tuple[int, Tensor | None]:
    """Checksum and numbers (checks.opened)."""
    out = empty(len(data) // 4)
    crc, good = _fht.opened(data, crc, out.data_ptr())
    return crc, out if good else None


def accumulate(total: Tensor, x: Tensor, share: float) -> bool:
    """Add share * x (float32) to a total in float64 (checks.accumulate); False if this processor cannot."""
    return _fht.accumulate(total.data_ptr(), x.data_ptr(), share, x.numel(), get_num_threads())
