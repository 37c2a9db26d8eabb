"""A round whose number changes: work that is recorded once finds the sketches of later rounds in the same place."""

from typing import NoReturn

import torch
from torch import Tensor

from pfed1bs.core import cuda
from pfed1bs.core.sketch import SRHT, srht
from pfed1bs.core.transform import padded

KERNELS = "only the kernels read a sketch that is filled in"
Drawing = tuple[int, int, int, bool]  # n, m, seed, use_D


class Unknown(RuntimeError):
    """Something was asked that is another one in every round."""


class Pending:
    """Stands for the number of a round; `srht` takes it, and whoever computes with it is told Unknown."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._round = 0
        self._open: dict[Drawing, _Open] = {}
        self._drawn: dict[Drawing, SRHT] = {}  # those of the round, which others may need,
        self._before: dict[Drawing, SRHT] = {}  # and of the one before

    def sketch(self, *drawing: int) -> SRHT:
        """The sketch of the round: n, m, seed, use_D."""
        n, m, seed, use = drawing
        key = (n, m, seed, bool(use))
        if key not in self._open:
            if self._device.type == "cuda" and not cuda.usable(torch.empty(0, device=self._device), padded(n)):
                raise Unknown(KERNELS)
            self._drawn[key] = srht(n, m, seed, self._round, bool(use))
            self._open[key] = _Open(n, m, self._drawn[key].rows.clone(), self._drawn[key].signs)
            self._open[key].tables(self._device).parts()  # made now, as nothing can be made while work is recorded
        return self._open[key]

    def become(self, round: int) -> "Pending":
        """Go on to another round: its sketches are filled in."""
        if round != self._round:
            self._round, self._before = round, self._drawn
            self._drawn = {drawing: srht(*drawing[:3], round, drawing[3]) for drawing in self._open}
            for drawing, sketch in self._open.items():
                sketch.tables(self._device).fill(self._drawn[drawing].tables(self._device))
        return self

    def __hash__(self) -> int:
        return id(self)


def _unknown(*_: object) -> NoReturn:
    raise Unknown("the number of the round is another one in every round")


for _name in "bool int index float str repr format eq ne lt le gt ge neg abs round".split():
    setattr(Pending, f"__{_name}__", _unknown)
for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
    setattr(Pending, f"__{_name}__", _unknown)
    setattr(Pending, f"__r{_name}__", _unknown)


class _Open(SRHT):
    """A sketch whose tables on a device are filled in anew."""

    def _place(self, x: Tensor) -> NoReturn:
        raise Unknown(KERNELS)
