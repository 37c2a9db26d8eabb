"""What all methods with one averaged model share: float32 weights down, compressed updates up."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithm import Algorithm, Batches, Cohort, Descent, State, buffers_of, model_of, stack
from pfed1bs.codecs import Floats
from pfed1bs.compressors import Compressor
from pfed1bs.task import Task
from pfed1bs.wire import Layout, Message


@dataclass(frozen=True)
class Averaging(Algorithm):
    """w <- w + server_lr * sum_k p_k decode_k, where decode_k is client k's compressed update after R local steps.

    Judged: "personal", the client's model after its last local training; "global", the averaged model; and "tuned",
    the averaged model after `tune_steps` more local steps (0: as many as a round has), which costs no bytes.
    """

    task: Task
    seed: int = 0
    lr: float = 0.05  # eta: step size at the clients
    server_lr: float = 1.0  # eta_s: step size at the server
    mu: float = 1e-5  # ridge
    momentum: float = 0.0  # starts from rest in every round
    tune_steps: int = 0  # fine-tuning steps before judging; 0: the steps of a round
    tune: Literal["full", "head"] = "full"  # what is fine-tuned

    personalises: ClassVar[bool] = False
    judged: ClassVar[str] = "local"  # which model counts as the personal one: "local" or "tuned"

    @property
    @abstractmethod
    def compressor(self) -> Compressor:
        """How updates travel."""

    @property
    def statistics(self) -> list[str]:
        """Names of the buffers that are averaged with the weights: none, or all real ones under model.bn = avg."""
        if self.task.bn == "local":
            return []
        return [name for name, value in self.task.buffers(1).items() if value.is_floating_point()]

    @property
    def down(self) -> Layout:
        """The averaged model."""
        return {"w": Floats((self.task.n,)), **self._extra()}

    @property
    def up(self) -> Layout:
        """The compressed update."""
        return {**self.compressor.layout, **self._extra()}

    def _extra(self) -> Layout:
        shapes = self.task.buffers(1)
        return {name: Floats(tuple(shapes[name].shape[1:])) for name in self.statistics}

    def init(self, clients: int) -> tuple[State, State]:
        """The first weights, at both sides from the seed."""
        w, buffers = self.task.init(self.seed), self.task.buffers(clients)
        server = {"w": w, **{name: buffers[name][0] for name in self.statistics}}
        return server, {"w": stack(w, clients).clone(), **buffers}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The averaged model, in round 0 too: a new client needs it whenever it joins."""
        return {name: server[name] for name in self.down}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD from the averaged model, and the compressed way they went."""
        start, buffers = self._begin(clients, received)
        w, buffers, loss = Descent(self.task, self.lr, self.mu, self.momentum).run(start, buffers, batches())
        message = self.compressor.compress(w - start, cohort)
        return {"w": w, **buffers, "log/loss": loss}, {**message, **{name: buffers[name] for name in self.statistics}}

    def _begin(self, clients: State, received: State) -> tuple[Tensor, State]:
        count = len(clients["w"])
        shared = {name: received[name].expand(count, *received[name].shape) for name in self.statistics}
        return stack(received["w"], count), {**buffers_of(clients), **shared}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The weighted mean, summed in float64 by ascending id."""
        total = torch.zeros(self.task.n, dtype=torch.float64, device=server["w"].device)
        means = {name: torch.zeros_like(server[name], dtype=torch.float64) for name in self.statistics}
        for i, message in enumerate(received):
            share = float(cohort.weights[i])
            total += share * self.compressor.decompress(message, cohort.rows(slice(i, i + 1))).to(total)
            for name in means:
                means[name] += share * message[name].to(total)
        averaged = {name: mean.float() for name, mean in means.items()}
        return {**server, "w": (server["w"] + self.server_lr * total).float(), **averaged}

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """Locally trained, averaged and fine-tuned models."""
        start, buffers = self._begin(clients, server)
        shared = {"w": start, **buffers}
        tuned = self._tuned(shared, batches)
        return {"personal": tuned if self.judged == "tuned" else model_of(clients), "global": shared, "tuned": tuned}

    def _tuned(self, shared: State, batches: Batches) -> State:
        frozen = [part.slice for part in self.task.parts if self.tune == "head" and not part.head]
        w, buffers = shared["w"], buffers_of(shared)
        descent, velocity = Descent(self.task, self.lr, self.mu, self.momentum), None
        for x, y in batches("tune", self.tune_steps or None):
            grad, _, buffers = self.task.gradient(w, x, y, buffers)
            for part in frozen:
                grad[:, part] = 0
            w, velocity = descent.step(w, grad, velocity)
        return {"w": w, **buffers}
