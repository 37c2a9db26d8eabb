"""EDEN: a rotated update in few bits per coordinate, without bias (Vargaftik et al., ICML 2022)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import ROTATION, bits, distinct, key, word
from pfed1bs.core.transform import hadamard, padded
from pfed1bs.core.votes import unpack
from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.codecs import Floats, Levels
from pfed1bs.wire.messages import Codec, Layout, Message

CODEBOOKS = {  # bits: positive half of the Lloyd-Max centroids of a standard normal variable
    1: (0.79788,),
    2: (0.45278, 1.51042),
    3: (0.24509, 0.75601, 1.34391, 2.15195),
    4: (0.12840, 0.38805, 0.65676, 0.94234, 1.25623, 1.61805, 2.06902, 2.73259),
}


def centroids(width: int, like: Tensor) -> Tensor:
    """All 2^width centroids, ascending."""
    half = torch.tensor(CODEBOOKS[width], dtype=like.dtype, device=like.device)
    return torch.cat([-half.flip(0), half])


@cache
def bounds(width: int) -> list[float]:
    """The middles between neighbouring centroids."""
    book = centroids(width, torch.empty(0))
    return ((book[1:] + book[:-1]) / 2).tolist()


def nearest(width: int, x: Tensor) -> Tensor:
    """The numbers of the centroids next to values, as floats: that of the bounds they reach, counted one by one.

    A few comparisons are done sooner than a bisection, and those that become floats sooner than others.
    """
    return reduce(torch.add, (torch.ge(x, bound, out=torch.empty_like(x)) for bound in bounds(width)))


@dataclass(frozen=True)
class Eden:
    """y = H D_k x, each coordinate to its nearest centroid c, and the scale |y|^2 / <c, y> that undoes the bias.

    D_k differs from client to client and from round to round, so that errors average out. Every coordinate of the n'
    padded ones takes floor(b) bits or one more; which, the shared seed says: exactly round(b n') bits in all, where the
    paper tosses a coin for each. With less than one bit the others are not sent, and c is 0 there.
    """

    n: int
    width: float = 1.0  # b: bits per coordinate

    def __post_init__(self) -> None:
        if not 0 < self.width <= 4:
            raise UserError(f"algorithm.bits must be in (0, 4], got {self.width}", "fedpaq or fedavg send more")
        if not self.layout.keys() - {"scale"}:
            raise UserError(f"algorithm.bits = {self.width} leaves nothing to send of {self.n} weights", "raise it")

    @property
    def length(self) -> int:
        """n', the length of the rotation."""
        return padded(self.n)

    @property
    def finer(self) -> int:
        """Number of coordinates with one bit more."""
        return round((self.width - int(self.width)) * self.length)

    @property
    def layout(self) -> Layout:
        """Centroid numbers, coarse and fine where there are such coordinates, and the scale."""
        counts = {int(self.width): ("coarse", self.length - self.finer), int(self.width) + 1: ("fine", self.finer)}
        codes: dict[str, Codec] = {
            name: Levels((count,), 1 << width) for width, (name, count) in counts.items() if width and count
        }
        return {**codes, "scale": Floats(least=0)}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Each client with its own rotation."""
        messages = [self._compressed(x, cohort.rows(slice(i, i + 1))) for i, x in enumerate(update)]
        return {name: torch.stack([message[name] for message in messages]) for name in self.layout}

    def _compressed(self, x: Tensor, cohort: Cohort) -> Message:
        y = torch.nn.functional.pad(x * self._signs(cohort, x.device), (0, self.length - self.n))
        y = hadamard(y, out=y)
        norm, c, message = y.norm(), torch.zeros_like(y), {}
        shape = y * torch.where(norm > 0, self.length**0.5 / norm, 1.0)
        for name, width, at in self._places(cohort, y.device):
            code = nearest(width, shape[at])
            message[name], c[at] = code.to(torch.uint8), centroids(width, y).index_select(0, code.int())
        return {**message, "scale": torch.where(norm > 0, norm**2 / (c @ y), norm)}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """D_k H (s c), cut to n."""
        scale = message["scale"]
        c = torch.zeros(self.length, device=scale.device)
        for name, width, at in self._places(cohort, scale.device):
            c[at] = (scale * centroids(width, c)).index_select(0, message[name].int())
        return hadamard(c, out=c)[: self.n] * self._signs(cohort, c.device)

    def _signs(self, cohort: Cohort, device: torch.device | None = None) -> Tensor:
        """The diagonal of D_k (n,), from the seed, the client and the round."""
        own = word(key(cohort.seed, ROTATION, cohort.round), 2 * int(cohort.ids[0]))
        return unpack(torch.from_numpy(bits(own, self.n)).to(device), self.n)

    def _places(self, cohort: Cohort, device: torch.device) -> Iterator[tuple[str, int, Tensor | slice]]:
        """The fields, their bits per coordinate, and the coordinates they hold, ascending."""
        if not self.finer:
            yield "coarse", int(self.width), slice(None)
            return
        own = word(key(cohort.seed, ROTATION, cohort.round), 2 * int(cohort.ids[0]) + 1)
        fine = torch.from_numpy(distinct(own, self.length, self.finer)).long()
        if self.width > 1:
            rest = torch.ones(self.length, dtype=torch.bool).index_fill_(0, fine, False)
            yield "coarse", int(self.width), rest.nonzero().flatten().to(device)
        yield "fine", int(self.width) + 1, fine.to(device)
