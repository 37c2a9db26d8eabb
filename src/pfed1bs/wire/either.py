"""A codec of real numbers that come in one of two lengths, as where two fields travel in turns."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from pfed1bs.wire.codecs import Floats


@dataclass(frozen=True)
class Either:
    """`long` finite float32 values, or the first `short` of them where all others are 0: the length tells which."""

    short: int
    long: int

    def __post_init__(self) -> None:
        if not 1 <= self.short <= self.long:
            raise ValueError(f"the shorter length must be in 1 .. the longer one = {self.long}, got {self.short}")

    @property
    def wire(self) -> str:
        """The name in the fingerprint of a layout."""
        return f"either {self.short} {self.long}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(long,)."""
        return (self.long,)

    @property
    def size(self) -> int | None:
        """It varies."""
        return None

    def encode(self, x: Tensor, known: Tensor | None = None) -> bytes:
        """Bytes of x, which must be finite; zeros behind the first are not told from negative ones."""
        length = self.long if x[self.short :].any() else self.short
        return Floats((length,)).encode(x[:length])

    def decode(self, data: bytes, known: Tensor | None = None) -> Tensor:
        """The values in float32."""
        if len(data) not in (4 * self.short, 4 * self.long):
            raise ValueError(f"{self.short} or {self.long} float32 values take four bytes each, got {len(data)} bytes")
        values = Floats((len(data) // 4,)).decode(data)
        if self.short < len(values) and not values[self.short :].any():
            raise ValueError(f"there are {self.long} values only if those after the first {self.short} are not all 0")
        return F.pad(values, (0, self.long - len(values)))
