"""What all methods with one averaged model share: float32 weights down, compressed updates up."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from pfed1bs.algorithms.base.shared import Shared
from pfed1bs.compressors import Compressor
from pfed1bs.core.options import POSITIVE, option
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Averaging(Shared):
    """w <- w + server_lr * sum_k p_k decode_k, where decode_k is client k's compressed update after R local steps."""

    server_lr: float = option(1.0, "eta_s: step size at the server", POSITIVE)

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
        least = {name: 0 if name.endswith("running_var") else -inf for name in self.statistics}
        return {name: Floats(tuple(shapes[name].shape[1:]), least[name]) for name in self.statistics}

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
        w, buffers, loss = self.descent.run(start, buffers, batches())
        message = self.compressor.compress(w - start, cohort)
        return {"w": w, **buffers, "log/loss": loss}, {**message, **{name: buffers[name] for name in self.statistics}}

    def _begin(self, clients: State, received: State) -> tuple[Tensor, State]:
        count = len(clients["w"])
        shared = {name: received[name].expand(count, *received[name].shape) for name in self.statistics}
        return stack(received["w"], count), {**buffers_of(clients), **shared}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean update, and the mean statistics where they are shared."""
        means = {name: torch.zeros_like(server[name], dtype=torch.float64) for name in self.statistics}

        def heard() -> Iterator[Message]:
            for share, message in zip(self.shares(cohort).tolist(), received, strict=True):
                for name in means:
                    means[name] += share * message[name].to(means[name])
                yield message

        update = self.mean(heard(), cohort)
        averaged = {name: mean.float() for name, mean in means.items()}
        return {**server, "w": (server["w"] + self.server_lr * update).float(), **averaged}

    def mean(self, received: Iterable[Message], cohort: Cohort) -> Tensor:
        """sum_k p_k decode_k, summed in float64 by ascending id."""
        total = torch.zeros(self.task.n, dtype=torch.float64)
        for i, (share, message) in enumerate(zip(self.shares(cohort).tolist(), received, strict=True)):
            total.add_(self.compressor.decompress(message, cohort.rows(slice(i, i + 1))), alpha=share)
        return total

    def shares(self, cohort: Cohort) -> Tensor:
        """p_k of the clients of a round (S,), which sum to 1."""
        return cohort.weights

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """Locally trained, averaged and fine-tuned models."""
        start, buffers = self._begin(clients, server)
        return self.judge({"w": start, **buffers}, clients, batches)
