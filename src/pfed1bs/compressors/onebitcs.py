"""One-bit compressed sensing: signs of a sketch of the largest coordinates, and their reconstruction by BIHT."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.core import native
from pfed1bs.core.errors import UserError
from pfed1bs.core.sketch import Sketch, srht
from pfed1bs.core.votes import sign, unpack
from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class OneBitCS:
    """sign(Phi Top_kappa(x)), and the norm that the signs lose if `norm` is set; Phi is the same for all."""

    n: int
    m: int
    kappa: int  # coordinates that a client keeps
    seed: int
    norm: bool = True
    iterations: int = 100  # of BIHT, at most
    solves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.kappa <= self.n:
            raise UserError(f"the number of coordinates that are kept must be in 1 .. n = {self.n}, got {self.kappa}")

    @cached_property
    def sketch(self) -> Sketch:
        """Phi."""
        return srht(self.n, self.m, self.seed)

    @property
    def layout(self) -> Layout:
        """One bit per measurement, and the norm."""
        return {"signs": Signs(self.m), **({"norm": Floats(least=0)} if self.norm else {})}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Signs of the sketch of what each client keeps."""
        kept = top(update, self.kappa)
        return {"signs": sign(self.sketch.forward(kept)), **({"norm": kept.norm(dim=1)} if self.norm else {})}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """What one client kept; of length 1 if its norm is not sent."""
        direction = biht(self.sketch, unpack(message["signs"], self.m), self.kappa, self.iterations)
        return direction * message["norm"] if self.norm else direction


FEW = 64  # times as many as are kept: then torch looks for them in a way that our kernel does with less memory


def top(x: Tensor, count: int) -> Tensor:
    """The `count` largest magnitudes of (..., n) values, the others 0."""
    if x.dtype == torch.float32 and native.usable(x) and FEW * count <= x.shape[-1]:
        return native.largest(x.contiguous(), count)
    at = x.abs().topk(count, -1, sorted=False).indices
    return torch.zeros_like(x).scatter(-1, at, x.gather(-1, at))


def biht(sketch: Sketch, y: Tensor, support: int, iterations: int) -> Tensor:
    """Binary iterative hard thresholding (Jacques et al., 2013): a unit vector x (n,) with sign(Phi x) near y (m,).

    x <- Top(x + Phi^T (y - sign(Phi x)) / m), until all signs are right; a 0 in y says nothing, and values between -1
    and 1 are means of votes.
    """
    said, wanted = (y != 0).to(y), sign(y)
    x = top(sketch.adjoint(y).div_(sketch.m), support)
    for _ in range(iterations):
        now = sign(sketch.forward(x))
        if torch.equal(now * said, wanted * said):
            break
        x = top(sketch.adjoint((y - now) * said).div_(sketch.m).add_(x), support)
    return torch.nn.functional.normalize(x, dim=0)
