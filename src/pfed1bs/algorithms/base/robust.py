"""Who is left out of a mean of one-bit messages because its signs are against everybody else's, round after round."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pfed1bs.core.votes import unpack
from pfed1bs.engine.contract import Cohort, State

MEMORY = 0.99  # weight of the rounds before in the sum of agreements
SHY = 0.9  # what a round leaves of the part of its own voice that a client does not hear
OWN = "agreed"  # its key in the server's state


def unknown(clients: int) -> State:
    """Before the first round everybody is believed."""
    return {OWN: torch.zeros(clients, dtype=torch.float64)}


def trimmed(server: State, signs: Sequence[Tensor], cohort: Cohort, m: int) -> tuple[Cohort, State]:
    """The cohort without the samples of those who are left out, and what is remembered and logged.

    A client is left out while the sum of its agreements with the believed clients, which fades, is negative. Each of
    them has one voice, its own too, first not at all and later whole: near the end honest updates cancel, and without
    its own voice everybody would be against the others. Where nobody would be left in this round, or no more than a
    quarter of all who have ever spoken are believed, all count: a client that comes new would have the mean to itself.
    """
    before = server[OWN][cohort.ids]
    believed = (before >= 0) | (not _enough(server[OWN], cohort.ids))
    now = MEMORY * before + agreement(signs, believed, m) - SHY**cohort.round * believed
    after = server[OWN].index_copy(0, cohort.ids, now)
    kept = (now >= 0) | (not _enough(after, cohort.ids)) | bool((now < 0).all())
    return replace(cohort, sizes=cohort.sizes * kept), {OWN: after, "log/left": (~kept).sum()}


def _enough(agreed: Tensor, ids: Tensor) -> bool:
    """Whether more than a quarter of those who have spoken, these among them, are believed."""
    spoken = agreed[agreed.ne(0).index_fill(0, ids, True)]
    return 4 * int((spoken >= 0).sum()) > len(spoken)


def agreement(signs: Sequence[Tensor], believed: Tensor, m: int) -> Tensor:
    """(S,) <z_k, sum of the believed z_j> / m of packed signs; among the believed it is not negative in the mean."""
    total = torch.zeros(m, dtype=torch.float64)
    for bits, counts in zip(signs, believed.tolist(), strict=True):
        if counts:
            total += unpack(bits, m)
    return torch.stack([unpack(bits, m).double() @ total / m for bits in signs])
