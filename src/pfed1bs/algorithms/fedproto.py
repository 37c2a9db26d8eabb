"""FedProto: models kept apart, drawn together by the mean features of each class (Tan et al., AAAI 2022)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.algorithms.base.method import Method, one_label
from pfed1bs.algorithms.base.split import head
from pfed1bs.core.options import BELOW_ONE, NOT_NEGATIVE, option
from pfed1bs.engine.contract import Batches, Cohort, Judged, State, blank, buffers_of, model_of, present, stack
from pfed1bs.nn.parts import Part
from pfed1bs.nn.task import Penalty
from pfed1bs.wire.messages import Layout, Message
from pfed1bs.wire.rows import CountedRows, Rows


@dataclass(frozen=True)
class FedProto(Method):
    """Judged is the nearest prototype, and beside it the client's own "network", both over all classes.

    The paper weights clients by samples, the authors' code equally: `weighting`. Prototypes are taken after training,
    over an epoch of batches but no more than a round has; a class that nobody of a round holds keeps its last.
    """

    lam: float = option(1.0, "lambda: pull of the features towards the prototypes of their classes", NOT_NEGATIVE)
    momentum: float = option(0.0, "velocity persists over rounds", BELOW_ONE, role="optimiser")
    weighting: Literal["samples", "clients"] = option("samples", "what counts in the mean of a class")

    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    personalises: ClassVar[bool] = True
    judged_with: ClassVar[Judged] = "server"  # the prototypes

    @cached_property
    def head(self) -> Part:
        """The weight of the last linear layer, (classes, d)."""
        return head(self.task, "fedproto")

    @property
    def down(self) -> Layout:
        """The prototypes of all classes that have one."""
        return {"prototypes": Rows(*self.head.shape)}

    @property
    def up(self) -> Layout:
        """The mean features of the client's classes, and their counts."""
        return {"prototypes": CountedRows(*self.head.shape)}

    def init(self, clients: int) -> tuple[State, State]:
        """No prototypes, and the same weights everywhere, from the seed."""
        w = stack(self.task.init(self.seed), clients)
        server = {"prototypes": torch.zeros(self.down["prototypes"].shape)}
        return server, {"w": w, **self.task.buffers(clients), **present(velocity=blank(w) if self.momentum else None)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The prototypes; nothing before there is one."""
        return {"prototypes": server["prototypes"]} if server["prototypes"][:, 0].any() else {}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps on the loss and the distance of features from prototypes, then the means of the features."""
        w, buffers, velocity = clients["w"], buffers_of(clients), clients.get("velocity")
        penalty = self.penalty(received["prototypes"]) if received and self.lam else None  # in round 0: none yet
        for x, y in batches():
            one_label("fedproto", y)
            grad, loss, buffers = self.task.gradient(w, x, y, buffers, penalty)
            w, velocity = self.descent.step(w, grad, velocity)
        epoch = (-(-cohort.sizes // y.shape[1])).clamp(max=batches.steps).to(w.device)
        means = self.means({"w": w, **buffers}, epoch, batches)
        return {"w": w, **buffers, **present(velocity=velocity), "log/loss": loss}, {"prototypes": means}

    def penalty(self, prototypes: Tensor) -> Penalty:
        """Lambda times the mean squared distance of features (S, B, d) from the prototypes of their labels."""
        known, means = prototypes[:, 0], prototypes[:, 1:]
        return lambda features, y: self.lam * (known[y] * (features - means[y]).square().mean(-1)).mean(1)

    def means(self, model: State, epoch: Tensor, batches: Batches) -> Tensor:
        """Counts and mean features (S, classes, 1 + d) over the first `epoch` (S,) batches of each client."""
        table = torch.zeros(len(epoch), *self.up["prototypes"].shape, device=epoch.device)
        for step, (x, y) in enumerate(batches("prototypes", int(epoch.max()))):
            seen = F.pad(self.task.features(model["w"], x, buffers_of(model)), (1, 0), value=1.0)
            table += (F.one_hot(y, table.shape[1]) * (step < epoch)[:, None, None]).mT.float() @ seen
        return torch.cat([table[..., :1], table[..., 1:] / table[..., :1].clamp(min=1)], -1)

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """The mean of every class over the clients that hold it, summed in float64 by ascending id."""
        total = torch.zeros_like(server["prototypes"], dtype=torch.float64)
        for message in received:
            counts, means = message["prototypes"].double().tensor_split([1], 1)
            total += (counts if self.weighting == "samples" else counts.clamp(max=1)) * F.pad(means, (1, 0), value=1.0)
        new = (total / total[:, :1].clamp(min=1)).float()
        return {**server, "prototypes": torch.where(total[:, :1] > 0, new, server["prototypes"])}

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """Features and prototypes, and the client's network; the network alone before there is a prototype."""
        network, table = model_of(clients), server["prototypes"]
        judged = {**network, "prototypes": table.expand(len(clients["w"]), -1, -1)}
        return {"personal": judged, "network": network} if table[:, 0].any() else {"personal": network}

    def predict(self, model: State, x: Tensor) -> Tensor:
        """Logits <c, f> - |c|^2 / 2, greatest for the prototype c that is nearest to the features f."""
        if "prototypes" not in model:
            return super().predict(model, x)
        known, means = model["prototypes"][:, None, :, 0], model["prototypes"][..., 1:]
        near = self.task.features(model["w"], x, buffers_of(model)) @ means.mT - means.square().sum(-1)[:, None] / 2
        return near.where(known > 0, -1e9)  # never one that does not exist
