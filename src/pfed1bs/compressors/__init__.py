"""Lossy compressors for methods that average updates."""

from pfed1bs.compressors.alternating import Alternating
from pfed1bs.compressors.base import Compressor, decompressed
from pfed1bs.compressors.binary import Binary
from pfed1bs.compressors.dense import Dense
from pfed1bs.compressors.eden import Eden
from pfed1bs.compressors.lowrank import LowRank
from pfed1bs.compressors.onebitcs import OneBitCS
from pfed1bs.compressors.qsgd import QSGD
from pfed1bs.compressors.zsign import ZSign

__all__ = [
    "QSGD",
    "Alternating",
    "Binary",
    "Compressor",
    "Dense",
    "Eden",
    "LowRank",
    "OneBitCS",
    "ZSign",
    "decompressed",
]
