"""SCAFFOLD: local steps corrected by how a client's gradient differs from the mean (Karimireddy et al., ICML 2020)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.core.options import option
from pfed1bs.engine.contract import Batches, Cohort, State, blank
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Scaffold(Averaging):
    """y <- y - lr (grad f(y) - c_k + c); then c_k becomes the client's mean gradient, and c the mean of all c_k.

    The gradients are those on the way (control = path: the paper's option II, c_k - c + (w - y) / (R lr)) or R more of
    them at w (start: option I), ridge included. With weights = samples, c moves by the weighted mean of the round times
    S / K, exact where all take part. A client's c_k rests while it is away.
    """

    control: Literal["path", "start"] = option("path", "where the gradients of c_k are taken: on the way, or at w")
    weights: Literal["equal", "samples"] = option("equal", "of the clients in the means")

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"

    @property
    def down(self) -> Layout:
        """The averaged model and the averaged gradient."""
        return {**super().down, "c": Floats((self.task.n,))}

    @property
    def up(self) -> Layout:
        """The update, and how much the client's gradient has changed."""
        return {**super().up, "dc": Floats((self.task.n,))}

    def gradients(self, steps: int) -> int:
        """One a step, and as many at the start if c_k is taken there."""
        return (1 if self.control == "path" else 2) * steps

    def init(self, clients: int) -> tuple[State, State]:
        """As in FedAvg, and no gradients yet; the server knows how many clients there are."""
        server, states = super().init(clients)
        zeros = {"c": torch.zeros_like(server["w"]), "clients": torch.tensor(clients)}
        return {**server, **zeros}, {**states, "c": blank(states["w"])}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R corrected steps, and the new c_k."""
        start, buffers = self.begin(clients, received)
        w, velocity, total = start, None, torch.zeros_like(clients["c"])
        for x, y in batches():
            grad, loss, buffers = self.task.gradient(w, x, y, buffers)
            total.add_(grad).add_(w, alpha=self.mu)
            w, velocity = self.descent.step(w, grad + (received["c"] - clients["c"]), velocity)
        if self.control == "start":
            total = batches.steps * self.mu * start
            for x, y in batches("control"):
                total += self.task.gradient(start, x, y, buffers)[0]
        dc = total / batches.steps - clients["c"]
        state = {"w": w, **buffers, "c": clients["c"] + dc, "log/loss": loss}
        return state, {**self.said(w - start, buffers, cohort), "dc": dc}

    def shares(self, cohort: Cohort) -> Tensor:
        """Equal, or by samples."""
        return cohort.shares(self.weights)

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean update, and c moved by S / K of the mean change."""
        change = torch.zeros(self.task.n, dtype=torch.float64)

        def heard() -> Iterator[Message]:
            for share, message in zip(self.shares(cohort).tolist(), received, strict=True):
                change.add_(message["dc"], alpha=share)
                yield message

        new = super().aggregate(server, heard(), cohort)
        taking_part = len(cohort.ids) / int(server["clients"])
        return {**new, "c": (server["c"] + taking_part * change).float()}
