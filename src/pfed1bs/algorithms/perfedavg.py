"""Per-FedAvg: a shared model that is good after one step at each client (Fallah et al., NeurIPS 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.core.options import POSITIVE, option
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class PerFedAvg(Averaging):
    """Judged is the shared model after one step of size alpha on a batch of training samples.

    The authors of pFedMe adapt on test batches in their version; ours never sees them. `lr` is the paper's beta.
    BatchNorm statistics are those of the adapted model. A round takes 2 R gradients, with the Hessian term 4 R.
    """

    alpha: float = option(0.03, "step of the adaptation", POSITIVE)
    order: Literal["first", "hessian-free"] = option("first", "what stands for the Hessian: nothing, or a difference")
    delta: float = option(1e-3, "half the distance of that difference, in gradients", POSITIVE)

    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    personalises: ClassVar[bool] = True

    @property
    def rests(self) -> bool:
        """No: judged is the shared model after one step."""
        return False

    kept = rests  # nor does a client keep it

    def gradients(self, steps: int) -> int:
        """One to adapt and one after it; the difference that stands for the Hessian takes two more."""
        return (2 if self.order == "first" else 4) * steps

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps down the loss after the adaptation; each draws its batches independently of each other."""
        start, buffers = self.begin(clients, received)
        w, velocity, third = start, None, batches("hessian")
        for first, second in zip(batches(), batches("meta"), strict=True):
            grad, loss, kept = self.task.gradient(self.adapted(w, *first, buffers), *second, buffers)
            if self.order == "hessian-free":
                grad = grad - self.alpha * self.hessian(w, grad, *next(third), buffers)
            w, velocity = self.descent.step(w, grad, velocity)
            buffers = kept
        return {"w": w, **buffers, "log/loss": loss}, self.said(w - start, buffers, cohort)

    def adapted(self, w: Tensor, x: Tensor, y: Tensor, buffers: State) -> Tensor:
        """The weights after one step of size alpha."""
        return w - self.alpha * self.task.gradient(w, x, y, buffers)[0]

    def hessian(self, w: Tensor, g: Tensor, x: Tensor, y: Tensor, buffers: State) -> Tensor:
        """The Hessian at w times g, as a central difference of gradients."""
        ahead, behind = (self.task.gradient(w + side * self.delta * g, x, y, buffers)[0] for side in (1, -1))
        return (ahead - behind) / (2 * self.delta)

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The shared model, after one step, and after fine-tuning as in FedAvg."""
        judged = super().personal(server, clients, cohort, batches)
        shared, (x, y) = judged["global"], next(iter(batches("tune", 1)))
        w = self.adapted(shared["w"], x, y, buffers_of(shared))
        return {**judged, "personal": {**shared, "w": w}}
