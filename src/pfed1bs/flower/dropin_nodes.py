"""The server's side of a drop-in federation without Flower: the shared weights, and which node holds which version."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.engine.contract import Cohort, State
from pfed1bs.engine.exchange import News, remember, tell
from pfed1bs.engine.trust import finite
from pfed1bs.engine.turns import split_log


class Nodes:
    """Versions count the steps of the shared weights; without `first` weights from a seed, no node has version 0."""

    def __init__(self, method: PFed1BSDelta) -> None:
        self.method = method
        self.server: State = method.init(0)[0]
        self.version = 0 if method.anchors else 1
        self.seen: dict[int, int] = {}  # node: version it holds, as far as it has said
        self.counted: dict[int, int] = {}  # node: version from which it was last trained and counted
        self.history: dict[int, bytes] = {}  # news that somebody may still have to catch up on

    @property
    def theta(self) -> Tensor:
        """The shared weights (n,)."""
        return self.server["theta"]

    def news(self, nodes: Sequence[int]) -> list[list[News]]:
        """What each of these nodes lacks."""
        return self._told([self.seen.get(node, -1) for node in nodes])

    def move(self, mean: Tensor, eta: float) -> bool:
        """Take the step of a round from the mean (m,) of the nodes' messages; False, if that is not finite."""
        after = split_log(self.method.decided(self.server, mean, eta, self.version))[0]
        if not finite(after):
            return False
        seen = torch.tensor([*self.seen.values()] or [-1])
        self.history = remember(self.method, self.history, self._told([self.version - 1]), seen)
        self.server, self.version = after, self.version + 1
        return True

    def _told(self, seen: list[int]) -> list[list[News]]:
        ids = torch.arange(len(seen))
        return tell(
            self.method,
            self.server,
            self.history,
            Cohort(self.method.seed, self.version, ids, torch.ones(len(seen)), torch.tensor(seen, dtype=torch.int64)),
        )
