"""What all methods with one averaged model share: float32 weights down, compressed updates up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.finetuning import Tuning
from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.split import Body
from pfed1bs.compressors import Compressor, Dense, decompressed
from pfed1bs.core.checks import accumulate
from pfed1bs.core.options import POSITIVE, at_least, option
from pfed1bs.engine.contract import Batches, Cohort, Judged, State, buffers_of, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


def server_step() -> float:
    """The option of every method that moves its model by a mean of updates."""
    return option(1.0, "eta_s: step size at the server", POSITIVE)


@dataclass(frozen=True)
class Averaging(Method):
    """w <- w + server_lr * sum_k p_k decode_k, where decode_k is client k's compressed update after R local steps.

    A method gives its compressor, or what its clients do otherwise in `local`, between `begin` and `said`.
    """

    tune_steps: int = option(0, "fine-tuning steps before judging; 0: the steps of a round", at_least(0))
    tune: Literal["full", "head"] = option("full", "what is fine-tuned")
    server_lr: float = server_step()

    personalises: ClassVar[bool] = False
    judged_with: ClassVar[Judged] = "server"

    @property
    def body(self) -> Tensor | None:
        """(n,) true for the weights that are averaged, while the others stay at the client; None: all are."""
        return None

    @property
    def compressor(self) -> Compressor:
        """How updates travel: as they are."""
        return Dense(self.task.n) if self.body is None else Body(self.body)

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """Which model counts as the personal one: the client's own after its last local training."""
        return "local"

    @property
    def rests(self) -> bool:
        """Where all weights are averaged, the client's own model is begun anew from them, or trained beside them."""
        return self.body is None

    @property
    def kept(self) -> bool:
        """Where the client's own model is judged, and not one that is made from the average."""
        return self.judged == "local" and self.body is None

    @property
    def statistics(self) -> list[str]:
        """Names of the buffers that are averaged with the weights: none, or all real ones under model.bn = avg."""
        if self.task.bn == "local":
            return []
        return [name for name, value in self.task.buffers(1).items() if value.is_floating_point()]

    @property
    def down(self) -> Layout:
        """The averaged model."""
        return {"w": Floats((self.task.n if self.body is None else int(self.body.sum()),)), **self._extra()}

    @property
    def up(self) -> Layout:
        """The compressed update."""
        return {**self.compressor.layout, **self._extra()}

    def _extra(self) -> Layout:
        shapes = self.task.buffers(1) if self.statistics else {}
        least = {name: 0 if name.endswith("running_var") else -inf for name in self.statistics}
        return {name: Floats(tuple(shapes[name].shape[1:]), least[name]) for name in self.statistics}

    def init(self, clients: int) -> tuple[State, State]:
        """The first weights, at both sides from the seed."""
        w, buffers = self.task.init(self.seed), self.task.buffers(clients)
        server = {"w": w, **{name: buffers[name][0] for name in self.statistics}}
        return server, {"w": stack(w, clients), **buffers}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The averaged model, in round 0 too: a new client needs it whenever it joins."""
        said = {name: server[name] for name in self.down}
        return said if self.body is None else {**said, "w": said["w"][self.body.to(said["w"].device)]}

    def begin(self, clients: State, received: State) -> tuple[Tensor, State]:
        """Weights (S, n) and buffers with which the clients begin a round."""
        count = len(clients["w"])
        shared = {name: received[name].expand(count, *received[name].shape) for name in self.statistics}
        w = stack(received["w"], count) if self.body is None else clients["w"].clone()
        if self.body is not None:
            w[:, self.body.to(w.device)] = received["w"]
        return w, {**buffers_of(clients), **shared}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps of SGD from the averaged model, and the compressed way they went."""
        start, buffers = self.begin(clients, received)
        w, buffers, loss = self.descent.run(start, buffers, batches())
        return {"w": w, **buffers, "log/loss": loss}, self.said(w - start, buffers, cohort)

    def said(self, update: Tensor, buffers: State, cohort: Cohort) -> Message:
        """What the clients answer after they moved by `update` (S, n)."""
        return {**self.compressor.compress(update, cohort), **{name: buffers[name] for name in self.statistics}}

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
        return {**server, "w": accumulate(self.server_lr * update, server["w"], 1.0).float(), **averaged}

    def mean(self, received: Iterable[Message], cohort: Cohort) -> Tensor:
        """sum_k p_k decode_k, summed in float64 by ascending id."""
        total = torch.zeros(self.task.n, dtype=torch.float64)
        updates = decompressed(self.compressor, received, cohort)
        for share, update in zip(self.shares(cohort).tolist(), updates, strict=True):
            accumulate(total, update, share)
        return total

    def shares(self, cohort: Cohort) -> Tensor:
        """p_k of the clients of a round (S,), which sum to 1."""
        return cohort.weights

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """Locally trained, averaged and fine-tuned models; where heads are kept, what a round would begin with."""
        start, buffers = self.begin(clients, self.broadcast(server, cohort))
        tuning = Tuning(self.descent, self.tune_steps, self.tune)
        judged = tuning.models({"w": start, **buffers}, clients, batches, self.judged)
        return judged if self.body is None else {"personal": judged["global"], "tuned": judged["tuned"]}
