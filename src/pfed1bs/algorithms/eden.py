"""EDEN: averaged updates, each rotated and quantised without bias (Vargaftik et al., ICML 2022)."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.compressors import Compressor, Eden
from pfed1bs.core.options import Range, option


@dataclass(frozen=True)
class EDEN(Averaging):
    """One bit is DRIVE. The server averages with step 1, where the paper's runs use Adam; the padding is paid for.

    The rotation comes from the run's seed, the client and the round, so no seed is sent; a message has exactly
    round(b n') bits, where the original draws the number of coordinates with one bit more.
    """

    bits: float = option(
        1.0,
        "b: bits per coordinate of the padded update, in (0, 4]; fractions mix two widths",
        Range("in (0, 4]", lambda x: 0 < x <= 4),
    )

    paper: ClassVar[str] = "Vargaftik et al., ICML 2022"

    @cached_property
    def compressor(self) -> Compressor:
        """Rotation, nearest centroids, unbiased scale."""
        return Eden(self.task.n, self.bits)
