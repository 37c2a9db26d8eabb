"""Ferret: updates as coordinates on random directions that everybody draws (Shu et al., ICML 2025), both ways."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import erf, exp, pi
from typing import ClassVar

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import server_step
from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.core.options import FRACTION, at_least, option
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Ferret(Replica):
    """g_j = <x, v_j> / (rho K_l) for the K_l directions v_j of each block of weights; sum_j g_j v_j has the mean x.

    Directions are normal, truncated to +-1 / sqrt(d) for blocks of d weights, with E v^2 = rho, new in every round and
    the same for all clients, so that the mean of coordinates is all that anybody has to hear.
    """

    share: float = option(1 / 320, "K / n: numbers that are sent, per weight; 1 / 320 is 0.1 bit", FRACTION)
    block: int = option(4096, "most weights that have their directions together", at_least(1))
    server_lr: float = server_step()

    paper: ClassVar[str] = "Shu et al., ICML 2025"

    @property
    def count(self) -> int:
        """K, at least 1."""
        return max(1, int(self.share * self.task.n + 0.5))

    @property
    def down(self) -> Layout:
        """Mean coordinates."""
        return {"coordinates": Floats((self.count,))}

    @property
    def up(self) -> Layout:
        """Coordinates of an update."""
        return self.down

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, and no move."""
        server, states = super().init(clients)
        return {**server, "coordinates": torch.zeros(self.count)}, states

    def bases(self, round: int) -> Iterator[tuple[slice, slice, Tensor, float]]:
        """Block by block, of nearly equal length: its weights, its coordinates, its directions (K_l, d), and rho."""
        n, blocks = self.task.n, min(self.count, -(-self.task.n // self.block))
        for i in range(blocks):
            at, own = (slice(size * i // blocks, size * (i + 1) // blocks) for size in (n, self.count))
            d = at.stop - at.start
            a = d**-0.5
            inside = erf(a / 2**0.5)  # share of a normal variable that the bounds leave
            drawn = torch.rand(own.stop - own.start, d, generator=stream(self.seed, "ferret", round, i))
            v = 2**0.5 * torch.erfinv((2 * drawn.double() - 1) * inside)
            yield at, own, v.float(), 1 - 2 * a * exp(-(a**2) / 2) / (2 * pi) ** 0.5 / inside

    def coordinates(self, x: Tensor, round: int) -> Tensor:
        """(S, K) of updates (S, n); one client after the other, so that no client's bits depend on the others."""
        found = []
        for at, own, v, rho in self.bases(round):
            v = v.to(x.device)
            found.append(torch.stack([v @ row for row in x[:, at]]) / (rho * (own.stop - own.start)))
        return torch.cat(found, 1)

    def move(self, said: Message, round: int) -> Tensor:
        """eta_s times the sum of the directions, taken on the CPU, where the server is."""
        at_hand = said["coordinates"].cpu()
        pieces = [at_hand[own] @ v for _, own, v, _ in self.bases(round)]
        return self.server_lr * torch.cat(pieces).to(said["coordinates"].device)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD, and the way they went in coordinates."""
        state, update = self.trained(clients, batches)
        return state, {"coordinates": self.coordinates(update, cohort.round)}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean, summed in float64 by ascending id."""
        heard = (message["coordinates"] for message in received)
        said = {"coordinates": summed(torch.zeros(self.count), cohort.weights, heard)}
        return {"w": server["w"] + self.move(said, cohort.round), **said}
