"""One of the two thin factors in every round, in turns (Vogels et al., in their package)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.compressors.lowrank import LowRank
from pfed1bs.wire.either import Either
from pfed1bs.wire.messages import Layout, Message

NOTHING = 1e-12  # part of its square that float32 leaves of a column which lies in the span of those before it


@dataclass(frozen=True)
class Alternating:
    """F = M B in even rounds and F = M^T B in odd ones is sent, where B = orth(the last mean F); M is then F B^T.

    It is linear in M for all who hold the same B, so the mean of messages is the message of the mean. Factors of all
    matrices, and bases B, lie one after the other in (..., long) numbers, with zeros behind the shorter kind.
    """

    code: LowRank

    @cached_property
    def lengths(self) -> tuple[list[int], list[int]]:
        """Numbers of each matrix in the factor of an even round, and of an odd one."""
        sizes = [(rows * rank, columns * rank) for _, rows, columns, rank in self.code.matrices]
        return [rows for rows, _ in sizes], [columns for _, columns in sizes]

    @property
    def long(self) -> int:
        """Numbers of the longer kind of factor."""
        return max(map(sum, self.lengths))

    @property
    def layout(self) -> Layout:
        """The other scalars of a model that has such, and one factor: last, since there its length costs nothing."""
        plain = {name: codec for name, codec in self.code.layout.items() if name == "vectors"}
        return {**plain, "factor": Either(min(map(sum, self.lengths)), self.long)}

    def compress(self, m: Tensor, basis: Tensor, round: int) -> Message:
        """Messages of (S, n) updates for B (S, long); one by one, so that no client's bits depend on the others."""
        factors = torch.stack([self._factor(own, held, round) for own, held in zip(m, basis, strict=True)])
        return {name: factors if name == "factor" else m[:, self.code.plain.to(m.device)] for name in self.layout}

    def _factor(self, m: Tensor, basis: Tensor, round: int) -> Tensor:
        found = []
        for (at, rows, columns, _), held in zip(self.code.matrices, self._split(basis, round - 1), strict=True):
            matrix = m[at].view(rows, columns)
            found.append(((matrix.T if round % 2 else matrix) @ held).flatten())
        return self._long(torch.cat(found))

    def pair(self, said: Message, basis: Tensor, round: int) -> Message:
        """The same as a message of two factors, the other one B (..., long)."""
        factor = said["factor"].expand_as(basis)
        ends = dict(zip("pq", (basis, factor) if round % 2 else (factor, basis), strict=True))
        return {**said, **{name: ends[name][..., : sum(own)] for name, own in zip("pq", self.lengths, strict=True)}}

    def meant(self, said: Message, round: int) -> Message:
        """A message with the numbers that the factor of a round has: who sends more is not heard with the rest."""
        return {**said, "factor": self._long(said["factor"][: sum(self.lengths[round % 2])])}

    def basis(self, factor: Tensor, round: int, draws: torch.Generator) -> Tensor:
        """B (long,) after the mean factor of a round, taken on the CPU, where the server is."""
        others = torch.rand(self.long, generator=draws) - 0.5
        pairs = zip(self._split(factor.cpu(), round), self._split(others, round), strict=True)
        return self._long(torch.cat([orthonormal(*pair).flatten() for pair in pairs])).to(factor.device)

    def _split(self, values: Tensor, round: int) -> Iterator[Tensor]:
        """The factor of a round (length, rank) of one matrix after the other."""
        sizes = self.lengths[round % 2]
        for (*_, rank), own in zip(self.code.matrices, torch.split(values[: sum(sizes)], sizes), strict=True):
            yield own.view(-1, rank)

    def _long(self, values: Tensor) -> Tensor:
        return F.pad(values, (0, self.long - len(values)))


def orthonormal(x: Tensor, others: Tensor) -> Tensor:
    """The columns of x (length, rank) made orthonormal by Gram and Schmidt, twice, in float64.

    A column with nothing of its own, as all are of x = 0, is replaced by that of `others`, so that no direction is
    lost. Products, roots and sums in one order: the same bits on every processor, which those of a library are not.
    """
    found = x.double()[:, :0]
    for own, other in zip(x.double().T, others.double().T, strict=True):
        rest = own - _within(found, own)
        gone = _total(rest * rest) <= NOTHING * _total(own * own)
        rest = torch.where(gone, other, rest)
        rest = rest - _within(found, rest)
        found = torch.cat([found, (rest / _total(rest * rest).sqrt())[:, None]], 1)
    return found.float()


def _within(columns: Tensor, x: Tensor) -> Tensor:
    """The part of x (length,) in the span of orthonormal columns (length, any)."""
    return _total((columns * _total(columns * x[:, None])).T)


def _total(x: Tensor) -> Tensor:
    """The sum over the first axis, half on half, in an order that no processor chooses."""
    while len(x) > 1:
        half = (len(x) + 1) // 2
        x = torch.cat([x[: len(x) - half] + x[half:], x[len(x) - half : half]])
    return x.sum(0)  # of one row, or none
