"""What the server believes of the numbers clients send: none without a bound relative to those of the others."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

import torch
from torch import Tensor

from pfed1bs.core import checks
from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Cohort, State
from pfed1bs.engine.workers import ahead, pieces
from pfed1bs.wire.codecs import Differences, Levels, Signs
from pfed1bs.wire.messages import Layout, Message
from pfed1bs.wire.rows import CountedRows

ENOUGH = 5  # answers from which on scales are clamped
TWICE = 2.0  # the largest scale, in medians


@dataclass(frozen=True)
class Trust:
    """Bounds in multiples of the round's median, the lower of two middle values; None: anything is believed."""

    max_weight: float | None = None  # of the samples that a client claims
    max_norm: float | None = None  # of the norm of each real field of its message

    def __post_init__(self) -> None:
        for bound in (self.max_weight, self.max_norm):
            if bound is not None and not 1 <= bound < inf:
                raise UserError(f"a bound must be at least 1, the median itself, got {bound}", "try 10")

    def weighed(self, cohort: Cohort) -> tuple[Cohort, State]:
        """The cohort with the samples that count, and how many clients they are fewer for."""
        if self.max_weight is None:
            return cohort, {}
        sizes = cohort.sizes.clamp(max=int(self.max_weight * float(cohort.sizes.median())))
        return replace(cohort, sizes=sizes), {"capped": (sizes < cohort.sizes).sum()}

    def heard(self, layout: Layout, listen: Callable[[], Iterable[Message]]) -> tuple[Iterable[Message], State]:
        """The messages, decoded one by one, fields that are too long shortened; and how many messages that is.

        They are decoded twice, so that never more than one of them is held.
        """
        if self.max_norm is None or all(isinstance(codec, Signs | Differences | Levels) for codec in layout.values()):
            return listen(), {}
        lengths = [torch.stack([part.double().norm() for part in _real(layout, said)]) for said in listen()]
        norms = torch.stack(lengths)
        bounds = self.max_norm * norms.median(0).values
        factors = torch.where(norms > bounds, bounds / norms, 1.0)
        return _shortened(layout, listen(), factors), {"clipped": (factors < 1).any(1).sum()}


ALL = Trust()


def clamped(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Scales (S, ...) of S >= 5 messages, at most twice their median, and how many messages that makes smaller."""
    bound = TWICE * scales.median(0).values if len(scales) >= ENOUGH else scales.amax(0)
    return scales.minimum(bound), (scales > bound).view(len(scales), -1).any(1).sum()


def finite(state: State) -> bool:
    """Whether all real numbers of a state are finite."""
    return all(_finite(value) for value in state.values() if value.is_floating_point())


def _finite(value: Tensor) -> bool:
    if value.is_cpu and value.dtype == torch.float32:
        return all(ahead(checks.finite, pieces(value.detach().contiguous().view(-1).numpy())))
    return bool(torch.isfinite(value).all())


def _shortened(layout: Layout, messages: Iterable[Message], factors: Tensor) -> Iterator[Message]:
    for said, own in zip(messages, factors.tolist(), strict=True):
        message = {name: field.clone() if field.is_floating_point() else field for name, field in said.items()}
        for part, factor in zip(_real(layout, message), own, strict=True):
            if factor < 1:
                part.mul_(factor)
        yield message


def _real(layout: Layout, message: Message) -> list[Tensor]:
    """The real fields of a message, as views; counts apart from what they count."""
    fields = [(layout[name], field) for name, field in message.items() if field.is_floating_point()]
    return [part for codec, field in fields for part in _columns(field, isinstance(codec, CountedRows))]


def _columns(field: Tensor, counted: bool) -> list[Tensor]:
    return [*field.tensor_split([1], 1)] if counted else [field]
