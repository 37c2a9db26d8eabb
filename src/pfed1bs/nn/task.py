"""A model and its loss on flat weights, stacked over clients."""

import copy
import math
from collections.abc import Callable, Collection, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from pfed1bs.core.errors import UserError
from pfed1bs.core.graphs import Graphs
from pfed1bs.core.rng import stream
from pfed1bs.nn import dropout
from pfed1bs.nn.losses import Function, loss_of
from pfed1bs.nn.network import GLOBAL_RANDOM, Network
from pfed1bs.nn.parts import Constants, State, parts_of
from pfed1bs.nn.stacked import Pass, Places

Penalty = Callable[[Tensor, Tensor], Tensor]  # features (K, B, d) and labels (K, B) -> extra loss (K,)

BUFFER = "buffer/"  # what the keys of a client's buffers begin with


class Task:
    """The mean loss of a module as a function of flat weights, batched over clients.

    Weights w are rows (K, n) in `named_parameters()` order; inputs x (K, B, ...), targets y (K, B, ...). Parameters
    that do not require gradients are constants of the task: n is what is trained. Buffers (BatchNorm statistics, the
    keys of dropout) travel beside w as a State with keys "buffer/name", one row per client. Several threads may use one
    Task.

    `loss` is "cross-entropy" (of classes, or of the next characters of sequences), "mse", "bce" or a function of
    outputs and targets of K clients that returns K mean losses; `metric` the number that models are judged by, None:
    the first that fits. `stacked` says whether clients are computed all at once or one after the other; None takes the
    faster way that gives a client the bits it has alone, which on the CPU is one after the other for convolutions and
    unknown parts. `bn` says whether methods that average weights average statistics too. `seed` is that of dropout.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | Function = "cross-entropy",
        *,
        metric: str | None = None,
        stacked: bool | None = None,
        bn: Literal["local", "avg"] = "local",
        seed: int = 0,
    ) -> None:
        self.loss, self.bn, self._seed = loss_of(loss, metric), bn, seed
        self._module = dropout.replaced(copy.deepcopy(module))
        layers = dict(self._module.named_modules())
        self._head = next((name for name in reversed(layers) if isinstance(layers[name], nn.Linear)), None)
        self.parts = parts_of(self._module, self._head)
        if not self.parts:
            raise UserError(
                f"a model needs trainable parameters, {type(module).__name__} has none", "set requires_grad"
            )
        self.n = self.parts[-1].slice.stop
        self._lengths = [math.prod(part.shape) for part in self.parts]
        trained = {part.name for part in self.parts}
        self._frozen = Constants({k: v.detach() for k, v in self._module.named_parameters() if k not in trained})
        self._buffers: State = dict(self._module.named_buffers())
        names = [*trained, *self._frozen.values, *self._buffers]
        self._network = Network(self._module, names, self._head, stacked)
        self._graphs = Graphs()  # steps on a GPU

    def init(self, seed: int) -> Tensor:
        """First weights (n,) drawn from stream(seed, "init") by every layer's own `reset_parameters`.

        Children come first, so a module that defines `reset_parameters` has the last word on its layers. Parameters
        that no layer resets keep the values they were built with. The global random state stays as it was.
        """
        module = copy.deepcopy(self._module)
        with GLOBAL_RANDOM, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream(seed, "init").initial_seed())
            module.apply(_reset)
        values = dict(module.named_parameters())
        return torch.cat([values[part.name].detach().flatten() for part in self.parts])

    def buffers(self, clients: int) -> State:
        """The buffers that clients 0, 1, ... begin with, (clients, ...) each; empty for a model that has none."""
        first = {name: value.expand(clients, *value.shape) for name, value in self._buffers.items()}
        first |= {name: dropout.first(self._seed, name, clients) for name in dropout.keys(self._module)}
        return {BUFFER + name: value for name, value in first.items()}

    def gradient(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        buffers: State,
        penalty: Penalty | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Gradients (K, n), losses (K,) and the buffers after one batch per client, in training mode.

        `penalty` maps the features (K, B, d) and labels (K, B) to one extra loss per client (K,). The gradients are
        written to `out`; None makes new ones.
        """
        given, room = {"w": w.data, "x": x, "y": y, **buffers}, {} if out is None else {"grad": out}
        found = self._graphs("gradient", self._gradient, given, room) if penalty is None else None
        found = self._gradient(given, penalty, **room) if found is None else found
        return found["grad"], found["loss"], {name: found[name] for name in buffers}

    def losses(self, w: Tensor, x: Tensor, y: Tensor, buffers: State) -> tuple[Tensor, State]:
        """Losses (K,) and the buffers after one batch per client, in training mode, without a gradient."""
        given = {"w": w.data, "x": x, "y": y, **buffers}
        found = self._graphs("losses", self._losses, given) or self._losses(given)
        return found["loss"], {name: found[name] for name in buffers}

    def descend(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        buffers: State,
        lr: float,
        mu: float = 0.0,
        out: Tensor | None = None,
        moving: Collection[str] | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Weights w - lr * (gradient(w) + mu * w), losses (K,) and buffers, without a detour of the gradient.

        The weights are written to `out`, which may be w itself; None makes new ones. Only the parameters `moving` move,
        and only their gradients are computed; None: all.
        """
        names = None if moving is None else tuple(moving)
        given, room = {"w": w.data, "x": x, "y": y, **buffers}, {} if out is None else {"w": out}
        found = self._graphs((lr, mu, names), lambda own: self._descend(own, lr, mu, names), given, room)
        if found is None:
            out = w.clone() if out is None else out if out is w else out.copy_(w)
            found = self._descend({**given, "w": out.data}, lr, mu, names) | {"w": out}
        return found["w"], found["loss"], {name: found[name] for name in buffers}

    @torch.no_grad()
    def _losses(self, given: State) -> State:
        """The work of `losses` on named tensors."""
        w, x, y, buffers = _parted(given)
        own = {name: value.clone() for name, value in buffers.items()}  # BatchNorm writes its statistics in place
        outputs, _, _ = self._network(self._values(self._views(w), own), x, training=True)
        return {"loss": self.loss(outputs, y)[0], **own}

    def _gradient(self, given: State, penalty: Penalty | None = None, grad: Tensor | None = None) -> State:
        """The work of `gradient` on named tensors."""
        w, x, y, buffers = _parted(given)
        grad = torch.empty(w.shape, dtype=w.dtype, device=w.device) if grad is None else grad
        loss, after = self._differentiate(self._views(w), x, y, buffers, Places(self._views(grad), keep=0), penalty)
        return {"grad": grad, "loss": loss, **after}

    def _descend(self, given: State, lr: float, mu: float, moving: Collection[str] | None) -> State:
        """The work of `descend` on named tensors; the weights are written over."""
        w, x, y, buffers = _parted(given)
        weights = self._views(w)
        free = weights if moving is None else {name: weights[name] for name in moving}
        loss, after = self._differentiate(weights, x, y, buffers, Places(free, 1 - lr * mu, -lr), None)
        return {"w": w, "loss": loss, **after}

    def _differentiate(
        self, weights: State, x: Tensor, y: Tensor, buffers: State, places: Places, penalty: Penalty | None
    ) -> tuple[Tensor, State]:
        """Put the gradients in their places, which may be the weights' own; losses (K,) and new buffers."""
        own = {name: value.clone() for name, value in buffers.items()}  # BatchNorm writes its statistics in place
        values = self._values(weights, own)
        if penalty is not None or not self._network.one_by_one(x.device, training=True):
            return self._pass(values, x, y, places, penalty), own
        # A client that goes back before the next one sets out leaves its memory to it, still warm.
        rows = [slice(i, i + 1) for i in range(len(x))]
        spots = [Places(_rows(places.out, row), places.keep, places.scale) for row in rows]
        losses = [self._pass(_rows(values, at), x[at], y[at], spot, None) for at, spot in zip(rows, spots, strict=True)]
        return torch.cat(losses), own

    def _pass(self, values: State, x: Tensor, y: Tensor, places: Places, penalty: Penalty | None) -> Tensor:
        """Forward and back; losses (K,)."""
        outputs, now, back = self._network(values, x, training=True, places=places)
        loss, error = self.loss(outputs, y)
        if penalty is not None:
            features = self._seen(now).detach().requires_grad_()
            with torch.enable_grad():
                extra = penalty(features, y)
            loss = loss + extra.detach()
            if extra.requires_grad:
                [now.to_features] = torch.autograd.grad(extra.sum(), features)
        with torch.no_grad():
            back(error)
        for name in places.out.keys() - places.done:
            places.add(name, None)
        return loss

    @torch.no_grad()
    def logits(self, w: Tensor, x: Tensor, buffers: State) -> Tensor:
        """Outputs (K, B, ...) in evaluation mode: BatchNorm uses each client's own running statistics."""
        given = {"w": w.detach(), "x": x, **buffers}
        found = self._graphs("logits", lambda own: {"logits": self._logits(own)}, given)
        return self._logits(given) if found is None else found["logits"]

    def _logits(self, given: State) -> Tensor:
        """The work of `logits` on named tensors."""
        buffers = {name: value for name, value in given.items() if name not in ("w", "x")}
        return self._network(self._values(self._views(given["w"]), buffers), given["x"], training=False)[0]

    @torch.no_grad()
    def features(self, w: Tensor, x: Tensor, buffers: State) -> Tensor:
        """What the last linear layer sees, (K, B, d), in evaluation mode."""
        return self._seen(self._network(self._values(self._views(w), buffers), x, training=False)[1])

    def held(self, shape: tuple[int, ...], batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
        """Bytes that a step holds for each client on the way back; 0 where one follows the other."""
        return 0 if self._network.one_by_one(device, training=True) else self._network.held(shape, batch, dtype)

    def _views(self, w: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(w, self._lengths, 1)
        return {part.name: piece.view(-1, *part.shape) for part, piece in zip(self.parts, pieces, strict=True)}

    def _values(self, weights: State, buffers: State) -> State:
        if {BUFFER + name for name in self._buffers} != set(buffers):
            raise UserError(
                f"this model's buffers are {sorted(self._buffers)}, got the keys {sorted(buffers)}",
                f'begin with task.buffers(clients) and pass on the keys that begin with "{BUFFER}"',
            )
        rows = next(iter(weights.values()))
        own = {name.removeprefix(BUFFER): value for name, value in buffers.items()}
        return weights | own | self._frozen.stacked(len(rows), rows.device)

    def _seen(self, done: Pass) -> Tensor:
        if self._head is None or done.features is None:
            raise UserError(
                f"features are the input of the last torch.nn.Linear, and {type(self._module).__name__} has none",
                "end the model in one, or choose a method that needs no features",
            )
        return done.features


def _parted(given: State) -> tuple[Tensor, Tensor, Tensor, State]:
    """Weights, inputs, labels, and the buffers that are left."""
    buffers = {name: value for name, value in given.items() if name not in ("w", "x", "y")}
    return given["w"], given["x"], given["y"], buffers


def _rows(values: Mapping[str, Tensor], at: slice) -> State:
    return {name: value[at] for name, value in values.items()}


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
