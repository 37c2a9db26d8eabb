"""Plain SGD on stacked weights: one step, and a walk of many."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs.core.sketch import Sketch
from pfed1bs.nn.parts import State
from pfed1bs.nn.task import Task


@dataclass(frozen=True)
class Walk:
    """Weights (S, n) on their way, with what they have gathered."""

    w: Tensor
    velocity: Tensor | None
    buffers: State
    loss: Tensor  # (S,) of the last step
    own: bool = False  # whether the memory of w belongs to the walk and may be written over
    share: Tensor | None = None  # (S,) |lam pull| / |grad| of the last step, where it was measured


@dataclass(frozen=True)
class Lifted:
    """Phi^T u for measurements u (S, m): a pull that is added a few rows at a time, while they are in the cache."""

    sketch: Sketch
    u: Tensor


@dataclass(frozen=True)
class Near:
    """lam (w - theta), which holds weights w (S, n) near theta."""

    theta: Tensor
    lam: float | Tensor

    @cached_property
    def _room(self) -> Tensor:
        return self.theta.new_empty(self.theta.shape)

    def pull(self, w: Tensor) -> Tensor:
        """The pull at w, in the same memory at every step, which is warm."""
        return torch.sub(w, self.theta, out=self._room).mul_(self.lam)

    def ridge(self, w: Tensor) -> float | None:
        """What the pull adds to mu where lam w goes with mu w, and lr lam theta is added: one pass instead of three.

        That rounds otherwise, so not on the CPU. None: it does not go.
        """
        return None if w.is_cpu or isinstance(self.lam, Tensor) else self.lam


@dataclass(frozen=True)
class Descent:
    """Plain SGD with ridge mu and heavy-ball momentum on stacked weights."""

    task: Task
    lr: float
    mu: float = 0.0
    momentum: float = 0.0

    def step(self, w: Tensor, grad: Tensor, velocity: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The weights w - lr (grad + mu w), or the same through the velocity; the gradient is written over."""
        if self.mu:
            grad.add_(w, alpha=self.mu)
        if not self.momentum:
            return torch.add(w, grad, alpha=-self.lr, out=grad), velocity
        velocity = grad if velocity is None else grad.add_(velocity, alpha=self.momentum)
        return torch.add(w, velocity, alpha=-self.lr), velocity

    def advance(
        self,
        walk: Walk,
        x: Tensor,
        y: Tensor,
        pull: Tensor | Lifted | None = None,
        lam: float = 0.0,
        measure: bool = False,
    ) -> Walk:
        """The walk after w <- w - lr (grad + lam pull + mu w); weights in memory of its own are written over.

        `measure` tells how strong a lifted pull is against the gradient.
        """
        if self.momentum or (measure and pull is not None):
            grad, loss, buffers = self.task.gradient(walk.w, x, y, walk.buffers)
            grad, share = _pulled(grad, pull, lam)
            return Walk(*self.step(walk.w, grad, walk.velocity), buffers, loss, own=True, share=share)
        room = walk.w if walk.own else None
        w, loss, buffers = self.task.descend(walk.w, x, y, walk.buffers, self.lr, self.mu, out=room)
        if isinstance(pull, Lifted):
            pull.sketch.push(w, pull.u, -self.lr * lam)
        elif pull is not None:
            w.add_(pull, alpha=-self.lr * lam)
        return Walk(w, None, buffers, loss, own=True)

    def approach(self, walk: Walk, x: Tensor, y: Tensor, near: Near) -> Walk:
        """The walk after w <- w - lr (grad + lam (w - theta) + mu w)."""
        lam = near.ridge(walk.w)
        if self.momentum or lam is None:
            return self.advance(walk, x, y, near.pull(walk.w), 1.0)
        walk = replace(self, mu=self.mu + lam).advance(walk, x, y)
        walk.w.add_(near.theta, alpha=self.lr * lam)
        return walk

    def run(self, w: Tensor, buffers: State, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, State, Tensor]:
        """Weights and buffers after the batches, and the last loss (S,); momentum starts from rest."""
        walk = Walk(w, None, buffers, torch.zeros(len(w)))
        for x, y in batches:
            walk = self.advance(walk, x, y)
        return walk.w, walk.buffers, walk.loss


def _pulled(grad: Tensor, pull: Tensor | Lifted | None, lam: float) -> tuple[Tensor, Tensor | None]:
    """The sum grad + lam pull, and of a lifted pull its share."""
    if not isinstance(pull, Lifted):
        return grad if pull is None else torch.add(grad, pull, alpha=lam), None
    share = grad.new_zeros(len(grad))
    for rows, lifted in pull.sketch.lifts(pull.u):
        share[rows] = lam * lifted.norm(dim=1) / grad[rows].norm(dim=1)
        grad[rows].add_(lifted, alpha=lam)
    return grad, share
