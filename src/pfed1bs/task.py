"""A model and its loss on flat weights, stacked over clients."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from pfed1bs.rng import stream

State = dict[str, Tensor]
Penalty = Callable[[Tensor, Tensor], Tensor]  # features (K, B, d) and labels (K, B) -> extra loss (K,)

BUFFER = "buffer/"  # what the keys of a client's buffers begin with
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
WAY_OUT = (
    "write it without branches on values (torch.where), random draws and in-place updates of plain tensors, "
    "or run its clients one after the other with Task(module, stacked=False)"
)


@dataclass(frozen=True)
class Part:
    """One parameter tensor inside the flat weights."""

    name: str
    slice: slice
    shape: tuple[int, ...]
    kind: Literal["weight", "bias", "norm"]  # norm: scale and shift of a normalisation layer
    head: bool  # belongs to the last linear layer


class Task:
    """Mean cross-entropy of a module as a function of flat weights, batched over clients.

    Weights w are rows (K, n) in `named_parameters()` order, frozen parameters left out; inputs x (K, B, ...), labels
    y (K, B). Buffers (BatchNorm statistics) and frozen parameters travel beside w as a State with keys "buffer/name",
    one row per client. With `stacked=False` the clients are computed one after the other, for modules `vmap` refuses.
    """

    def __init__(self, module: nn.Module, stacked: bool = True) -> None:
        drops = [name for name, part in module.named_modules() if isinstance(part, nn.modules.dropout._DropoutNd)]
        if drops:
            raise ValueError(
                f"dropout draws from the global random state, which training must not touch, got layers {drops}; "
                "replace them by torch.nn.Identity()"
            )
        self._module = copy.deepcopy(module)
        self._stacked = stacked
        linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        self._head = linear[-1] if linear else None
        self.parts = _parts(self._module, self._head)
        self.n = self.parts[-1].slice.stop if self.parts else 0
        if not self.n:
            raise ValueError(
                f"a model needs trainable parameters, {type(module).__name__} has none; check requires_grad"
            )
        trained = {part.name for part in self.parts}
        frozen = {name: value.detach() for name, value in module.named_parameters() if name not in trained}
        self._buffers: State = {**frozen, **dict(self._module.named_buffers())}

    def init(self, seed: int) -> Tensor:
        """First weights (n,) drawn from stream(seed, "init") by every layer's own `reset_parameters`.

        Children come first, so a module that defines `reset_parameters` has the last word on its layers. Parameters
        that no layer resets keep the values they were built with. The global random state stays as it was.
        """
        module = copy.deepcopy(self._module)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream(seed, "init").initial_seed())
            module.apply(_reset)
        values = dict(module.named_parameters())
        return torch.cat([values[part.name].detach().flatten() for part in self.parts])

    def buffers(self, clients: int) -> State:
        """The buffers every client begins with, (clients, ...) each; empty for a model that has none."""
        return {BUFFER + name: value.expand(clients, *value.shape).clone() for name, value in self._buffers.items()}

    def gradient(
        self, w: Tensor, x: Tensor, y: Tensor, buffers: State, penalty: Penalty | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Gradients (K, n), losses (K,) and the buffers after one batch per client, in training mode.

        `penalty` maps the features (K, B, ...) and labels (K, B) to one extra loss per client (K,).
        """
        own = {name: value.clone() for name, value in buffers.items()}  # BatchNorm writes its statistics in place
        with torch.enable_grad():
            leaves = [leaf.requires_grad_() for leaf in self._views(w.detach())]
            logits, features = self._forward(leaves, x, own, training=True, keep=penalty is not None)
            entropy = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
            loss = entropy.mean(1)
            if penalty is not None:
                loss = loss + penalty(features, y)
            grads = torch.autograd.grad(loss.sum(), leaves)
        grad = torch.cat([part.flatten(1) for part in grads], 1)
        return grad, loss.detach(), {name: value.detach() for name, value in own.items()}

    @torch.no_grad()
    def logits(self, w: Tensor, x: Tensor, buffers: State) -> Tensor:
        """Logits (K, B, classes) in evaluation mode: BatchNorm uses each client's own running statistics."""
        return self._forward(self._views(w), x, buffers, training=False, keep=False)[0]

    @torch.no_grad()
    def features(self, w: Tensor, x: Tensor, buffers: State) -> Tensor:
        """What the last linear layer sees, (K, B, d), in evaluation mode."""
        return self._forward(self._views(w), x, buffers, training=False, keep=True)[1]

    def _views(self, w: Tensor) -> list[Tensor]:
        return [w[:, part.slice].reshape(len(w), *part.shape) for part in self.parts]

    def _forward(
        self, leaves: list[Tensor], x: Tensor, buffers: State, training: bool, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """Logits and, if they are to be kept, features; otherwise the logits twice."""
        if {BUFFER + name for name in self._buffers} != set(buffers):
            raise ValueError(
                f"this model's buffers are {sorted(self._buffers)}, got the keys {sorted(buffers)}; "
                f'begin with task.buffers(clients) and pass on the keys that begin with "{BUFFER}"'
            )
        values = {part.name: leaf for part, leaf in zip(self.parts, leaves, strict=True)}
        values |= {name.removeprefix(BUFFER): value for name, value in buffers.items()}
        self._module.train(training)
        call = self._with_features if keep else self._plain
        if not self._stacked:
            rows = [call({name: value[k] for name, value in values.items()}, x[k]) for k in range(len(x))]
            return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        try:
            logits, features = vmap(call)(values, x)
        except RuntimeError as error:
            if "vmap" not in str(error) and "Batching rule" not in str(error):
                raise
            name = type(self._module).__name__
            raise ValueError(f"{name} cannot be computed for all clients at once ({error}); {WAY_OUT}") from error
        return logits, features

    def _plain(self, values: State, x: Tensor) -> tuple[Tensor, Tensor]:
        logits: Tensor = functional_call(self._module, values, (x,))
        return logits, logits

    def _with_features(self, values: State, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._head is None:
            raise ValueError(
                f"features are the input of the last torch.nn.Linear, and {type(self._module).__name__} has none; "
                "end the model in one, or choose a method that needs no features"
            )
        seen: list[Tensor] = []
        head = self._module.get_submodule(self._head)
        handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits: Tensor = functional_call(self._module, values, (x,))
        finally:
            handle.remove()
        return logits, seen[-1]


def _parts(module: nn.Module, head: str | None) -> tuple[Part, ...]:
    parts: list[Part] = []
    start = 0
    for name, value in module.named_parameters():
        if not value.requires_grad:
            continue
        owner = name.rpartition(".")[0]
        norm = isinstance(module.get_submodule(owner), NORMS)
        kind: Literal["weight", "bias", "norm"] = "norm" if norm else "weight" if value.dim() > 1 else "bias"
        stop = start + math.prod(value.shape)
        parts.append(Part(name, slice(start, stop), tuple(value.shape), kind, owner == head))
        start = stop
    return tuple(parts)


def _reset(module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
