"""What all methods with short broadcasts share: every client keeps a copy of the model, and hears its moves."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from pfed1bs.algorithms.base.shared import Shared
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of, stack
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class Replica(Shared):
    """The server's "w" and every client's "theta" are the same weights, bit for bit, after the same broadcasts.

    The broadcast of round t holds the move of round t - 1, so that of round 0 is empty. A client that was away is sent
    all the moves it missed, or the whole model if that is shorter.
    """

    @abstractmethod
    def move(self, said: Message, round: int) -> Tensor:
        """What the server's decision of a round adds to the model (n,): the same float32 numbers wherever computed."""

    def init(self, clients: int) -> tuple[State, State]:
        """The first weights, at both sides from the seed."""
        w = self.task.init(self.seed)
        copies = {name: stack(w, clients).clone() for name in ("w", "theta")}
        return {"w": w}, {**copies, **self.task.buffers(clients)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The last decision; nothing in round 0."""
        return {name: server[name] for name in self.down} if cohort.round else {}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Move the copy, or replace it by a snapshot."""
        theta = clients["theta"]
        if "theta" in received:
            return {**clients, "theta": received["theta"].expand_as(theta).clone()}
        return {**clients, "theta": theta + self.move(received, round - 1)}

    def snapshot(self, server: State) -> Message:
        """The whole model."""
        return {"theta": server["w"]}

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
        return self.judge({"w": stack(server["w"], len(clients["w"])), **buffers_of(clients)}, clients, batches)
