"""A pull towards the shared model that fades as soon as the shared model knows a client's samples by heart.

The gradient of an own model dies when the model knows its samples. A pull that goes on then takes it all the way to the
shared model, and what made it personal is lost. So the pull dies too, with the loss of the shared model.
"""

import torch
from torch import Tensor

from pfed1bs.core.options import NOT_NEGATIVE, option
from pfed1bs.engine.contract import State
from pfed1bs.engine.resting import smoothed

FIT = "fit"  # (S,) the loss at the end of the shared model's local work, smoothed over rounds; -1: no round yet


def fading() -> float:
    """The option."""
    return option(
        0.0,
        "loss of the shared model at a client, in nats, below which the pull fades in proportion; 0: it does not",
        NOT_NEGATIVE,
    )


def unfit(clients: int, level: float) -> State:
    """What clients remember for it before their first round."""
    return {FIT: torch.full((clients,), -1.0)} if level else {}


def fitted(clients: State, loss: Tensor) -> State:
    """The same after a round with this loss (S,)."""
    return {FIT: smoothed(clients[FIT], loss)} if FIT in clients else {}


def faded(lam: float, clients: State, level: float) -> float | Tensor:
    """The strength of the pull: lam, or (S, 1) what is left of it."""
    if FIT not in clients:
        return lam
    fit = clients[FIT]
    return lam * torch.where(fit < 0, 1.0, (fit / level).clamp(max=1.0))[:, None]
