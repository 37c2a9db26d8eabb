"""Updates that are binary already: +-alpha in every weight tensor, anything in the other scalars."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs.core.votes import pack, unpack
from pfed1bs.engine.contract import Cohort
from pfed1bs.nn.parts import Part
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Binary:
    """One bit per weight, one float32 alpha per weight tensor, biases and normalisation in float32; nothing is lost."""

    parts: Sequence[Part]

    @cached_property
    def weights(self) -> list[slice]:
        """The tensors with two values each."""
        return [part.slice for part in self.parts if part.kind == "weight"]

    @cached_property
    def plain(self) -> list[slice]:
        """The other scalars."""
        return [part.slice for part in self.parts if part.kind != "weight"]

    @property
    def layout(self) -> Layout:
        """Signs, one magnitude per tensor, and the plain values of a model that has such."""
        fields: Layout = {"signs": Signs(_total(self.weights)), "scales": Floats((len(self.weights),), least=0)}
        return {**fields, "plain": Floats((_total(self.plain),))} if self.plain else fields

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Signs and magnitudes of (S, n) binary updates."""
        signs = pack(torch.cat([update[:, part] for part in self.weights], 1))
        scales = torch.stack([update[:, part.start].abs() for part in self.weights], 1)
        plain = {"plain": torch.cat([update[:, part] for part in self.plain], 1)} if self.plain else {}
        return {"signs": signs, "scales": scales, **plain}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """The same update again."""
        update = torch.empty(self.parts[-1].slice.stop, device=message["scales"].device)
        signs = unpack(message["signs"], _total(self.weights))
        for part, scale, bits in zip(self.weights, message["scales"], _pieces(signs, self.weights), strict=True):
            torch.mul(scale, bits, out=update[part])
        if self.plain:
            for part, values in zip(self.plain, _pieces(message["plain"], self.plain), strict=True):
                update[part] = values
        return update


def _total(parts: list[slice]) -> int:
    return sum(part.stop - part.start for part in parts)


def _pieces(x: Tensor, parts: list[slice]) -> tuple[Tensor, ...]:
    """Neighbouring pieces of x with the lengths of the parts."""
    return tuple(torch.split(x, [part.stop - part.start for part in parts]))
