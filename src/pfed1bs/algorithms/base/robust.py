"""Who is left out of a mean of one-bit messages because its signs are against everybody else's, round after round."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pfed1bs.core.votes import unpack
from pfed1bs.engine.contract import Cohort, State

MEMORY = 0.9  # weight of the rounds before in the sum of agreements
SHY = 0.9  # what a round leaves of the part of its own voice that a client does not hear
OWN = "agreed"  # its key in the server's state


def unknown(clients: int) -> State:
    """Before the first round everybody is believed."""
    return {OWN: torch.zeros(clients, dtype=torch.float64)}


def trimmed(server: State, signs: Sequence[Tensor], cohort: Cohort, m: int) -> tuple[Cohort, State]:
    """The cohort without the samples of those who are left out, and what is remembered and logged.

    A client is left out while the sum of its agreements with the believed clients, which fades, is negative. Each of
    them has one voice, its own too, first not at all and later whole: near the end honest updates cancel, and without
    its own voice everybody would be against the others. Where nobody would be left, all count.
    """
    before = server[OWN][cohort.ids]
    own = SHY**cohort.round * (before >= 0)
    now = MEMORY * before + agreement(signs, before >= 0, m) - own
    log = {OWN: server[OWN].index_copy(0, cohort.ids, now), "log/left": (now < 0).sum()}
    return (replace(cohort, sizes=cohort.sizes * (now >= 0)) if bool((now >= 0).any()) else cohort), log


def agreement(signs: Sequence[Tensor], believed: Tensor, m: int) -> Tensor:
    """(S,) <z_k, sum of the believed z_j> / m of packed signs; among the believed it is not negative in the mean."""
    total = torch.zeros(m, dtype=torch.float64)
    for bits, counts in zip(signs, believed.tolist(), strict=True):
        if counts:
            total += unpack(bits, m)
    return torch.stack([unpack(bits, m).double() @ total / m for bits in signs])
