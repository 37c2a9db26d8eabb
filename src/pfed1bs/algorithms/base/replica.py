"""What all methods with short broadcasts share: every client keeps a copy of the model, and hears its moves."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.finetuning import Tuning
from pfed1bs.algorithms.base.method import Method
from pfed1bs.core.options import at_least, option
from pfed1bs.engine.contract import Batches, Cohort, Judged, State, buffers_of, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Replica(Method):
    """The server's "w" and every client's "theta" are the same weights, bit for bit, after the same broadcasts.

    The broadcast of round t holds the move of round t - 1, so that of round 0 is empty. A client that was away is sent
    all the moves it missed, or the whole model if that is shorter.
    """

    tune_steps: int = option(0, "fine-tuning steps before judging; 0: the steps of a round", at_least(0))
    tune: Literal["full", "head"] = option("full", "what is fine-tuned")

    personalises: ClassVar[bool] = False
    replicates: ClassVar[bool] = True  # moves build on each other
    judged_with: ClassVar[Judged] = "replica"

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """Which model counts as the personal one: the client's own after its last local training."""
        return "local"

    @property
    def rests(self) -> bool:
        """The client's own model is begun anew from the copy in every round."""
        return True

    @property
    def kept(self) -> bool:
        """Where the client's own model is judged."""
        return self.judged == "local"

    @property
    def snapshot_layout(self) -> Layout:
        """The whole model; a method may add other fields of the server's state that clients have copies of."""
        return {"theta": Floats((self.task.n,))}

    def move(self, said: Message, round: int) -> Tensor:
        """What the server's decision of a round adds to the model (n,): the same float32 numbers wherever computed."""
        raise NotImplementedError(f"{type(self).__name__} says neither `move` nor `after`")

    def after(self, copies: State, said: Message, round: int) -> State:
        """All that everybody has a copy of after the server's decision of a round; by default the model alone."""
        return {"theta": copies["theta"] + self.move(said, round)}

    def init(self, clients: int) -> tuple[State, State]:
        """The first weights, at both sides from the seed."""
        w = self.task.init(self.seed)
        copies = {name: stack(w, clients) for name in ("w", "theta")}
        return {"w": w}, {**copies, **self.task.buffers(clients)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The last decision; nothing in round 0."""
        return {name: server[name] for name in self.down} if cohort.round else {}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Move the copies, or replace them by a snapshot."""
        if "theta" in received:
            return clients | {name: value.expand_as(clients[name]).clone() for name, value in received.items()}
        return clients | self.after(clients, received, round - 1)

    def snapshot(self, server: State) -> Message:
        """The whole model, and what else the layout names."""
        return {name: server["w" if name == "theta" else name] for name in self.snapshot_layout}

    def trained(self, clients: State, batches: Batches) -> tuple[State, Tensor]:
        """The clients after R steps of SGD from the copy, and the way they went (S, n)."""
        w, buffers, loss = self.descent.run(clients["theta"], buffers_of(clients), batches())
        return {**clients, "w": w, **buffers, "log/loss": loss}, w - clients["theta"]

    def gradient(self, clients: State, batches: Batches) -> tuple[State, Tensor]:
        """The clients after one step along their gradient at the copy, the mean over R batches, and that gradient."""
        theta, buffers = clients["theta"], buffers_of(clients)
        total = batches.steps * self.mu * theta
        for x, y in batches():
            grad, loss, buffers = self.task.gradient(theta, x, y, buffers)
            total += grad
        mean = total / batches.steps
        return {**clients, "w": theta - self.lr * mean, **buffers, "log/loss": loss}, mean

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """Locally trained, shared and fine-tuned models."""
        shared = {"w": stack(server["w"], len(clients["w"])), **buffers_of(clients)}
        return Tuning(self.descent, self.tune_steps, self.tune).models(shared, clients, batches, self.judged)


def summed(start: Tensor, shares: Tensor, values: Iterable[Tensor]) -> Tensor:
    """The sum start + sum_k share_k value_k, in float64 by ascending id; values are taken one by one."""
    total = start.double()
    for share, value in zip(shares.tolist(), values, strict=True):
        total += value.double().mul_(share)
    return total.float()


def averaged(layout: Layout, shares: Tensor, messages: Iterable[Message]) -> Message:
    """The mean of messages of real numbers (count,), field by field; summed in the same way."""
    sizes = [codec.shape[0] for codec in layout.values()]
    joined = (torch.cat([message[name] for name in layout]) for message in messages)
    return dict(zip(layout, torch.split(summed(torch.zeros(sum(sizes)), shares, joined), sizes), strict=True))
