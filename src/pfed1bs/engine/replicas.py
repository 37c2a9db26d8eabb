"""Whether copies of the shared weights are still copies: 32 bits of checksum, in every broadcast."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from pfed1bs.core.checks import crc32, joined
from pfed1bs.engine.contract import Algorithm, State
from pfed1bs.engine.workers import ahead, pieces

WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a number: what shows all its bits


def checksum(algorithm: Algorithm, server: State) -> int:
    """The checksum of the server's replica, which its next message leads to; 0 for a method without one."""
    held = algorithm.replica(server) if algorithm.replicates else None
    return 0 if held is None else _crc(algorithm.seed, held)


def checksums(algorithm: Algorithm, clients: State) -> list[int]:
    """The checksums of clients' replicas; none for a method without them."""
    held = algorithm.replica(clients) if algorithm.replicates else None
    if held is None or not len(held):
        return []
    first = _crc(algorithm.seed, held[0])
    return [first if equal else _crc(algorithm.seed, row) for equal, row in zip(_same(held), held, strict=True)]


def alike(algorithm: Algorithm, clients: State) -> Tensor | bool:
    """Whether the clients' replicas are copies of each other, a word of their device; yes for a method without them."""
    held = algorithm.replica(clients) if algorithm.replicates else None
    if held is None or held.is_cpu or held.stride(0) == 0:
        return held is None or all(_same(held))
    return _bits(held).eq(_bits(held[:1])).all()  # nobody waits for a device


def _same(held: Tensor) -> list[bool]:
    """Which of some replicas (S, n) are the first one, bit by bit: where they are, which is faster than a checksum."""
    if held.stride(0) == 0:
        return [True] * len(held)
    if not held.is_cpu:
        return cast(list[bool], _bits(held).eq(_bits(held[:1])).all(1).tolist())
    rows = _bits(held).numpy()  # NumPy compares three times as fast as torch.equal
    return [np.array_equal(row, rows[0]) for row in rows]


def _bits(held: Tensor) -> Tensor:
    return held.detach().view(WHOLE[held.element_size()])


def _crc(seed: int, replica: Tensor) -> int:
    """CRC-32 of the seed in 8 bytes and the weights, little-endian: another seed has other projections, too."""
    values = replica.detach().cpu().contiguous().numpy()
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    parts, crc = pieces(little.reshape(-1).view("u1")), crc32(seed.to_bytes(8, "little"))
    for part, own in zip(parts, ahead(lambda part: crc32(part.data), parts), strict=True):
        crc = joined(crc, own, len(part))
    return crc
