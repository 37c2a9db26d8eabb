"""Lossy compressors for methods that average updates."""

from pfed1bs.compressors.base import Compressor
from pfed1bs.compressors.dense import Dense

__all__ = ["Compressor", "Dense"]
