"""Products of two thin matrices by one step of the power method (Vogels et al., NeurIPS 2019)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pfed1bs.nn.parts import Part
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class LowRank:
    """P = orth(M Q'), Q = M^T P for every weight tensor M as (outputs, the rest); the other scalars as they are.

    Not quite a Compressor: it begins with a Q' that everybody has.
    """

    parts: Sequence[Part]
    rank: int

    @cached_property
    def matrices(self) -> list[tuple[slice, int, int, int]]:
        """Where each weight tensor is, its rows and columns, and the rank that it gets."""
        parts = [part for part in self.parts if part.kind == "weight"]
        sizes = [(part.slice, part.shape[0], prod(part.shape[1:])) for part in parts]
        return [(at, rows, columns, min(self.rank, rows, columns)) for at, rows, columns in sizes]

    @cached_property
    def plain(self) -> Tensor:
        """Places of the other scalars."""
        places = [torch.arange(part.slice.start, part.slice.stop) for part in self.parts if part.kind != "weight"]
        return torch.cat(places) if places else torch.arange(0)

    @property
    def layout(self) -> Layout:
        """P and Q of all matrices, and the other scalars of a model that has such."""
        p = sum(rows * rank for _, rows, _, rank in self.matrices)
        q = sum(columns * rank for _, _, columns, rank in self.matrices)
        return {name: Floats((size,)) for name, size in (("p", p), ("q", q), ("vectors", len(self.plain))) if size}

    def compress(self, m: Tensor, start: Tensor) -> Message:
        """Messages of (S, n) updates, from Q' (S, ...); one by one, so that no client's bits depend on the others."""
        messages = [self._compressed(own, first) for own, first in zip(m, start, strict=True)]
        return {name: torch.stack([message[name] for message in messages]) for name in self.layout}

    def _compressed(self, m: Tensor, start: Tensor) -> Message:
        """P is orthonormal even where M is 0, so that Q' is never stuck."""
        p, q = [], []
        rights = torch.split(start, [columns * rank for _, _, columns, rank in self.matrices])
        for (at, rows, columns, rank), first in zip(self.matrices, rights, strict=True):
            matrix = m[at].view(rows, columns)
            left = torch.linalg.qr(matrix @ first.view(columns, rank)).Q
            p.append(left.flatten())
            q.append((matrix.T @ left).flatten())
        said = {"p": torch.cat(p), "q": torch.cat(q)}
        return {**said, "vectors": m[self.plain.to(m.device)]} if len(self.plain) else said

    def decompress(self, said: Message) -> Tensor:
        """P Q^T (..., n): a product, then a sum, column by column, which gives the same bits everywhere."""
        x = said["p"].new_zeros(*said["p"].shape[:-1], self.parts[-1].slice.stop)
        for at, p, q in self._factors(said):
            x[..., at] = sum((p[..., :, None, j] * q[..., None, :, j]).flatten(-2) for j in range(p.shape[-1]))
        if len(self.plain):
            x[..., self.plain.to(x.device)] = said["vectors"]
        return x

    def _factors(self, said: Message) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """P (..., rows, rank) and Q (..., columns, rank) of one matrix after the other."""
        lefts = torch.split(said["p"], [rows * rank for _, rows, _, rank in self.matrices], -1)
        rights = torch.split(said["q"], [columns * rank for _, _, columns, rank in self.matrices], -1)
        for (at, _, _, rank), p, q in zip(self.matrices, lefts, rights, strict=True):
            yield at, p.reshape(*p.shape[:-1], -1, rank), q.reshape(*q.shape[:-1], -1, rank)
