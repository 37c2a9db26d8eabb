"""DeComFL: finite differences along shared random directions, scalars both ways (Li et al., ICLR 2025)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.replica import Replica, summed
from pfed1bs.core.options import BELOW_ONE, POSITIVE, at_least, option
from pfed1bs.core.rng import stream
from pfed1bs.core.votes import sign
from pfed1bs.engine.contract import Batches, Cohort, State, blank, buffers_of, present
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message

LOSSES = 3  # that take as long as a gradient
ROOM = 1 << 27  # numbers: the directions of a round are kept if they are no more


@dataclass(frozen=True)
class DeComFL(Replica):
    """R times u <- u - (step / P) sum_p g_p z_p with g_p = (f(u + r z_p) - f(u - r z_p)) / 2r; all repeat mean g_p.

    The directions z_p come from seed, round and step and are the same for all clients, so that scalars can be averaged.
    A round takes (2 P + 1) R forward passes. Averaging clients does not reduce the error, |grad|^2 (n + 1) / P.
    """

    lr: float = option(0.05, "eta: step size of fine-tuning, the only place where it counts", POSITIVE, "optimiser")
    step: float = option(0.01, "of the shared model; large models need less", POSITIVE)
    moves: int = option(10, "R: steps of a round, in place of `steps`; both sides have to know it", at_least(1))
    directions: int = option(10, "P: directions of a step", at_least(1))
    radius: float = option(1e-3, "r: how far away the loss is taken, in directions", POSITIVE)
    difference: Literal["central", "forward"] = option("central", "forward: P + 1 losses in a step, and a bias")
    draw: Literal["normal", "signs"] = option("normal", "what the entries of a direction are")
    beta: float = option(0.0, "how much of the velocity stays; everybody has a copy of it", BELOW_ONE)
    weights: Literal["equal", "samples"] = option("equal", "of the clients in the mean")

    paper: ClassVar[str] = "Li et al., ICLR 2025"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """No client takes a gradient, so the fine-tuned model counts as personal."""
        return "tuned"

    @property
    def down(self) -> Layout:
        """Mean scalars."""
        return {"scalars": Floats((self.moves, self.directions))}

    @property
    def up(self) -> Layout:
        """The scalars of a client."""
        return self.down

    @property
    def snapshot_layout(self) -> Layout:
        """The model, and its velocity if it has one."""
        model = super().snapshot_layout
        return {**model, "velocity": model["theta"]} if self.beta else model

    @property
    def losses(self) -> int:
        """Of a move: both sides of every direction, or one of them, and where it stands."""
        return 1 + self.directions * (1 + (self.difference == "central"))

    def gradients(self, steps: int) -> int:
        """What its losses take as long as; the way back through a model, which it spares, takes two more."""
        return -(-self.moves * self.losses // LOSSES)

    def afforded(self, gradients: int) -> dict[str, int]:
        """The moves that take as long as so many gradients, or less."""
        return {"moves": LOSSES * gradients // self.losses}

    def init(self, clients: int) -> tuple[State, State]:
        """As every copy, at rest."""
        server, states = super().init(clients)
        if self.beta:
            server["velocity"], states["velocity"] = torch.zeros_like(server["w"]), blank(states["w"])
        return {**server, "scalars": torch.zeros(self.moves, self.directions)}, states

    def along(self, round: int, step: int, like: Tensor) -> Iterator[Tensor]:
        """The P directions (n,) of a step one by one, drawn on the CPU, the same at every party."""
        of, shape = (self.draw, self.seed, round), (self.directions, self.task.n)
        kept = self.moves * self.directions * self.task.n <= ROOM
        yield from _round(*of, self.moves, *shape, like.device)[step] if kept else _step(*of, step, *shape, like.device)

    def advance(self, copies: State, slopes: Tensor) -> State:
        """Copies after a step against the mean of P slopes; every product and sum is rounded: the same bits for all."""
        w, velocity = copies["theta"], copies.get("velocity")
        slope = slopes * (1 / self.directions) + self.mu * w
        if velocity is not None:
            slope = velocity = slope + self.beta * velocity
        return {"theta": w - self.step * slope, **present(velocity=velocity)}

    def after(self, copies: State, said: Message, round: int) -> State:
        """The steps of a round by the mean scalars."""
        for step, scalars in enumerate(said["scalars"]):
            slopes = scalars.new_zeros(self.task.n)
            for g, z in zip(scalars, self.along(round, step, scalars), strict=True):
                slopes += g * z
            copies = self.advance(copies, slopes)
        return {name: copies[name] for name in self.snapshot_layout}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The same steps by the client's own scalars; statistics of the model change once in a step."""
        copies, buffers, found, wide = clients, buffers_of(clients), [], self.difference == "central"
        near = torch.empty_like(clients["theta"])
        for step, (x, y) in enumerate(batches("train", self.moves)):
            u, slopes = copies["theta"], torch.zeros_like(near)
            loss, after = self.task.losses(u, x, y, buffers)
            for z in self.along(cohort.round, step, u):
                back = self.task.losses(torch.sub(u, self.radius * z, out=near), x, y, buffers)[0] if wide else loss
                rise = self.task.losses(torch.add(u, self.radius * z, out=near), x, y, buffers)[0] - back
                found.append(rise / (self.radius * (1 + wide)))
                slopes += torch.mul(found[-1][:, None], z, out=near)
            copies, buffers = self.advance(copies, slopes), after
        scalars = torch.stack(found, 1).view(-1, self.moves, self.directions)
        return {**clients, "w": copies["theta"], **buffers, "log/loss": loss}, {"scalars": scalars}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """Mean scalars, summed in float64 by ascending id, and the steps they make."""
        heard = (message["scalars"] for message in received)
        said = {"scalars": summed(torch.zeros(self.moves, self.directions), cohort.shares(self.weights), heard)}
        copies = self.after({**server, "theta": server["w"]}, said, cohort.round)
        return {"w": copies.pop("theta"), **copies, **said}


def _step(
    draw: str, seed: int, round: int, step: int, directions: int, n: int, device: torch.device
) -> Iterator[Tensor]:
    for number in range(directions):
        z = torch.randn(n, generator=stream(seed, "decomfl", round, step, number))
        yield (sign(z) if draw == "signs" else z).to(device)


@lru_cache(maxsize=1)
def _round(
    draw: str, seed: int, round: int, moves: int, directions: int, n: int, device: torch.device
) -> list[list[Tensor]]:
    """All directions of a round: clients need them, the server, and everybody who hears what it came to."""
    return [[*_step(draw, seed, round, step, directions, n, device)] for step in range(moves)]
