"""Local differential privacy of one-bit messages: randomised response on every bit."""

from math import log, sqrt, tanh

from torch import Tensor

from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Cohort

DELTA = 1e-5  # with which epsilon is told
REHEARSAL = "epsilon: the noise comes from the run's seed, which the server knows; this shows what privacy would cost"


def concentrated(epsilon: float, delta: float = DELTA) -> float:
    """The rho whose zero-concentrated privacy implies (epsilon, delta): epsilon = rho + 2 sqrt(rho ln(1 / delta))."""
    return (sqrt(log(1 / delta) + epsilon) - sqrt(log(1 / delta))) ** 2


def composed(epsilon: float, rounds: int, delta: float = DELTA) -> float:
    """Epsilon at the same delta after so many rounds of messages: rho adds up."""
    rho = rounds * concentrated(epsilon, delta)
    return rho + 2 * sqrt(rho * log(1 / delta))


def kept(epsilon: float, m: int) -> float:
    """1 - 2 p, what is left of a bit that is flipped with probability p, for m bits that have epsilon together.

    A bit is flipped with p = 1 / (1 + e^b), which is b-private and so b^2 / 2-concentrated; m of them add up to rho.
    """
    return tanh(sqrt(2 * concentrated(epsilon) / m) / 2)


def randomised(z: Tensor, cohort: Cohort, epsilon: float) -> Tensor:
    """Signs (S, m), each turned over with its probability."""
    flipped = (1 - kept(epsilon, z.shape[1])) / 2
    return z * sign(cohort.uniform("privacy", z.shape[1], device=z.device).to(z) - flipped)
