"""z-sign: signs after noise, unbiased where the noise is wide enough (Tang et al., 2024)."""

from dataclasses import dataclass
from math import inf, pi, sqrt

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.votes import sign, unpack
from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.codecs import Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class ZSign:
    """sign(G + sigma xi) of the accumulated gradient G = -update / lr; the mean of eta_z sigma sign(.) is near G.

    z = 1: xi is normal and eta_z = sqrt(pi / 2); z = inf: xi is uniform on (-1, 1), eta_z = 1 and the mean is exactly G
    wherever |G| <= sigma. The noise is fresh for every client and round.
    """

    n: int
    lr: float
    sigma: float
    z: float = inf

    def __post_init__(self) -> None:
        if self.z not in (1, inf):
            raise UserError(f"algorithm.z must be 1 (normal noise) or inf (uniform noise), got {self.z}")
        if not self.sigma > 0:
            raise UserError(f"algorithm.sigma must be positive, got {self.sigma}", "without noise signs are biased")

    @property
    def layout(self) -> Layout:
        """One bit per coordinate; sigma is known to both sides."""
        return {"signs": Signs(self.n)}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Signs of the noisy accumulated gradients."""
        uniform = 2 * cohort.uniform("zsign", self.n, device=update.device) - 1
        noise = uniform if self.z == inf else sqrt(2) * torch.erfinv(uniform)
        return {"signs": sign(self.sigma * noise - update / self.lr)}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """-lr eta_z sigma sign(.)."""
        debias = self.sigma if self.z == inf else sqrt(pi / 2) * self.sigma
        return -self.lr * debias * unpack(message["signs"], self.n)
