"""Updates that are binary already: +-alpha in every weight tensor, anything in the other scalars."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs.algorithm import Cohort
from pfed1bs.codecs import Floats, Signs
from pfed1bs.task import Part
from pfed1bs.votes import sign, unpack
from pfed1bs.wire import Layout, Message


@dataclass(frozen=True)
class Binary:
    """One bit per weight, one float32 alpha per weight tensor, biases and normalisation in float32; nothing is lost."""

    parts: Sequence[Part]

    @cached_property
    def weights(self) -> list[slice]:
        """The tensors with two values each."""
        return [part.slice for part in self.parts if part.kind == "weight"]

    @cached_property
    def binary(self) -> Tensor:
        """Which of the n values belong to them, (n,)."""
        mask = torch.zeros(self.parts[-1].slice.stop, dtype=torch.bool)
        for part in self.weights:
            mask[part] = True
        return mask

    @property
    def layout(self) -> Layout:
        """Signs, one magnitude per tensor, and the plain values of a model that has such."""
        count, plain = int(self.binary.sum()), int((~self.binary).sum())
        binary: Layout = {"signs": Signs(count), "scales": Floats((len(self.weights),))}
        return {**binary, "plain": Floats((plain,))} if plain else binary

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Signs and magnitudes of (S, n) binary updates."""
        binary = self.binary.to(update.device)
        message = {
            "signs": sign(torch.cat([update[:, part] for part in self.weights], 1)),
            "scales": torch.stack([update[:, part.start].abs() for part in self.weights], 1),
            "plain": update[:, ~binary],
        }
        return {name: message[name] for name in self.layout}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """The same update again."""
        scales, binary = message["scales"], self.binary.to(message["scales"].device)
        sizes = torch.tensor([part.stop - part.start for part in self.weights], device=scales.device)
        update = torch.empty(len(binary), device=scales.device)
        update[binary] = scales.repeat_interleave(sizes) * unpack(message["signs"], int(binary.sum()))
        if "plain" in message:
            update[~binary] = message["plain"]
        return update
