"""pFedMe: personal models from Moreau envelopes of the clients' losses (Dinh et al., NeurIPS 2020)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import NOT_NEGATIVE, POSITIVE, at_least, option
from pfed1bs.engine.contract import Batches, Cohort, State
from pfed1bs.wire.messages import Message


@dataclass(frozen=True)
class PFedMe(Averaging):
    """Judged is theta, after local training and before averaging; `server_lr` is the paper's beta.

    As in the authors' code theta begins at the received model and goes on from batch to batch. There all clients train
    and only the sampled ones are averaged (train = all); here by default only the sampled ones train, so that methods
    compare at equal work and bytes. Their code has a ridge of 0.001 on theta, the paper none; ours is `mu`, as in all
    methods. A round takes inner R gradients: `outer` = R / inner makes that R.
    """

    lam: float = option(15.0, "lambda: pull of theta towards the local copy of the shared model", NOT_NEGATIVE)
    inner: int = option(5, "K: steps of theta on one batch", at_least(1))
    outer: int = option(0, "batches of a round; 0: the steps of a round", at_least(0))
    meta_lr: float = option(
        0.05, "eta: the local copy moves towards theta by the share eta lambda; lr is that of theta", POSITIVE
    )
    train: Literal["sampled", "all"] = option("sampled", "who does local work in a round")

    paper: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    personalises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse steps that overshoot."""
        if not 0 <= self.meta_lr * self.lam < 1:
            raise UserError(
                f"algorithm.meta_lr * algorithm.lam must be in [0, 1), got {self.meta_lr} * {self.lam} = "
                f"{self.meta_lr * self.lam:g}: the local copy would jump over theta",
                "lower one of them",
            )

    @property
    def trains(self) -> Literal["sampled", "all"]:
        """As configured."""
        return self.train

    def gradients(self, steps: int) -> int:
        """Those of the inner steps on every batch."""
        return self.inner * (self.outer or steps)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """Theta descends the loss and (lambda / 2) |theta - w|^2; after every batch w follows it."""
        start, buffers = self.begin(clients, received)
        w, theta, velocity = start, start, None
        for x, y in batches("train", self.outer or None):
            for _ in range(self.inner):
                grad, loss, buffers = self.task.gradient(theta, x, y, buffers)
                theta, velocity = self.descent.step(theta, grad + self.lam * (theta - w), velocity)
            w = w - self.meta_lr * self.lam * (w - theta)
        return {"w": theta, **buffers, "log/loss": loss}, self.said(w - start, buffers, cohort)
