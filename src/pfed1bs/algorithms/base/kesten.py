"""How long a shared step may be, learned from the steps: shorter while each undoes the one before (Kesten, 1958)."""

from math import exp

import torch
from torch import Tensor

from pfed1bs.engine.contract import State

PACE = 0.3  # how fast: a trend of one standard error changes the next step by so much, in logarithms
MOST = 3.0  # standard errors that one pair of steps may count


def unmoved(theta: Tensor) -> State:
    """Before the first step."""
    return {"last": torch.zeros_like(theta), "trend": torch.tensor(0.0), "gain": torch.tensor(1.0)}


def steadied(server: State, step: Tensor) -> State:
    """What is remembered after a step (n,), and the part of a full step that the next one may be.

    Steps that are noise point nowhere: the cosine of two has a standard error of 1 / sqrt(n) around 0. Clients that go
    on as before make it positive, clients that take back what the last step did to them negative.
    """
    lengths = float(step.norm()) * float(server["last"].norm())
    cosine = float(step.double() @ server["last"].double()) / lengths if lengths else 0.0
    trend = (float(server["trend"]) + max(-MOST, min(MOST, cosine * len(step) ** 0.5))) / 2
    gain = min(1.0, float(server["gain"]) * exp(PACE * trend))
    return {"last": step, "trend": torch.tensor(trend), "gain": torch.tensor(gain)}
