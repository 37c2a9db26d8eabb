"""A module as a function of its parameters and buffers, stacked over clients."""

import copy
import pickle
import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock, get_ident

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pfed1bs.core.errors import UserError
from pfed1bs.nn import cuda_convolutions
from pfed1bs.nn.lanes import Ways, client_by_client
from pfed1bs.nn.stacked import Backward, Pass, Places, Program, leaf
from pfed1bs.nn.tracing import CONVOLUTIONS, pool_first, program

WAY_OUT = (
    "write it without branches on values (torch.where) and in-place updates of plain tensors, "
    "or run its clients one after the other with Task(module, stacked=False)"
)
GLOBAL_RANDOM = Lock()  # who borrows the global random state for a moment holds it


class Network:
    """Outputs and features of every client's module; safe to use from several threads.

    All clients at once through the program of known layers or else vmap, or with `stacked=False` one after the other.
    None chooses: on the CPU one after the other for convolutions, where batched ones are twice as slow, and for modules
    of unknown parts, where a client's bits would depend on the others; elsewhere where vmap fails. A warning says once
    why a module that is not convolutional is not computed all at once. On a GPU convolutions are tried in four ways and
    go on in the fastest: all clients at once in the library's kernels ("stacked") or ours ("kernels"), each client's on
    one of several streams ("fanned"), and its whole network there ("lanes").
    """

    def __init__(self, module: nn.Module, names: Iterable[str], head: str | None, stacked: bool | None) -> None:
        self._module = module
        self._head = head
        self._stacked = stacked
        self._convolves = any(isinstance(part, CONVOLUTIONS) for part in module.modules())
        self._ours = any(cuda_convolutions.known(part) for part in module.modules())
        names, before = set(names), _Random()
        modules = {mode: pool_first(_twin(module).train(mode)) for mode in (True, False)}
        self._programs = {mode: program(modules[mode], names, head) for mode in modules}
        self._modules = {
            mode: modules[mode] if isinstance(self._programs[mode], Program) else _twin(module).train(mode)
            for mode in modules
        }
        self._check(before)  # what is drawn while the layers are found out would be a constant of this process
        self._ways = Ways()
        self._copies: dict[tuple[int, bool], _Copy] = {}
        self._held: dict[tuple[tuple[int, ...], int], int] = {}
        self._reason = ""  # why clients are computed one after the other, once that was said

    def __call__(
        self, values: Mapping[str, Tensor], x: Tensor, training: bool, places: Places | None = None
    ) -> tuple[Tensor, Pass, Backward]:
        """Outputs (K, B, ...) for stacked values by name, the pass that made them, and the way back to its places."""
        mine, steps = self._copy(training), self._programs[training]
        now = Pass(mine.module, len(x), values, places)
        one_by_one = self.one_by_one(x.device, training)
        if isinstance(steps, Program) and not one_by_one:
            ways = {
                "stacked": lambda own: self._computed(steps, own, x),
                "lanes": lambda own: client_by_client(mine, own, x),
                "fanned": lambda own: self._computed(steps, replace(own, way="fanned"), x),
            }
            if self._ours:
                ways["kernels"] = lambda own: self._computed(steps, replace(own, way="kernels"), x)
            tried = self._convolves and self._stacked is None and x.is_cuda
            return self._ways(ways, now, x) if tried else ways["stacked"](now)
        if isinstance(steps, str) and one_by_one and self._stacked is None and not self._convolves:
            self._say(steps)
        before = None if isinstance(steps, Program) else _Random(x.device)  # known layers draw nothing
        leaves = {name: leaf(values[name]) for name in places.out} if places else {}
        compute = self._one_by_one if one_by_one else self._all_at_once
        with torch.set_grad_enabled(places is not None):
            outputs, features = compute(mine, {**values, **leaves}, x)
        self._check(before)
        now.features = features.detach()
        return outputs.detach(), now, lambda error: _back(now, leaves, (outputs, features), error)

    def one_by_one(self, device: torch.device, training: bool) -> bool:
        """Whether clients are computed one after the other on this device."""
        if self._stacked is not None:
            return not self._stacked
        unknown = isinstance(self._programs[training], str)
        return bool(self._reason) or (device.type == "cpu" and (self._convolves or unknown))

    def held(self, shape: tuple[int, ...], batch: int, dtype: torch.dtype) -> int:
        """Bytes that a step of one client keeps for its way back, found without computing; 0 where it cannot be."""
        if (shape, batch) not in self._held:
            before, kept = _Random(), dict[int, Tensor]()
            module = copy.deepcopy(self._modules[True]).to("meta")
            own = {value.untyped_storage()._cdata for value in (*module.parameters(), *module.buffers())}
            x = torch.empty(batch, *shape, device="meta", dtype=dtype)
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_keeping(kept), lambda value: value):
                try:
                    module(x)
                except (RuntimeError, TypeError, ValueError):  # not all can be done without numbers
                    kept.clear()
            self._check(before)
            self._held[shape, batch] = sum(value.nbytes for key, value in kept.items() if key not in own)
        return self._held[shape, batch]

    def _say(self, reason: str) -> None:
        if not self._reason and any(self._module.children()):  # a single layer is as fast this way
            warnings.warn(f"{type(self._module).__name__} is computed client by client: {reason}", stacklevel=2)
        self._reason = reason

    @staticmethod
    @torch.no_grad()
    def _computed(steps: Program, now: Pass, x: Tensor) -> tuple[Tensor, Pass, Backward]:
        outputs, back = steps(now, x)
        return outputs, now, back

    def _all_at_once(self, mine: "_Copy", values: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        try:
            outputs, features = vmap(mine, randomness="different")(dict(values), x)  # draws are found afterwards
        except RuntimeError as error:
            if "vmap" not in str(error) and "Batching rule" not in str(error):
                raise
            if self._stacked is None:
                self._say(f"torch cannot do it all at once ({str(error).splitlines()[0]})")
                return self._one_by_one(mine, values, x)
            name = type(self._module).__name__
            raise UserError(f"{name} cannot be computed for all clients at once ({error})", WAY_OUT) from error
        return outputs, features

    def _one_by_one(self, mine: "_Copy", values: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        # On the CPU convolutions take half as long again when the channels do not come last.
        layout = torch.channels_last if self._convolves and x.dim() == 5 else torch.contiguous_format
        clients = [dict(zip(values, row, strict=True)) for row in zip(*map(torch.unbind, values.values()), strict=True)]
        rows = [mine(own, row.contiguous(memory_format=layout)) for own, row in zip(clients, x, strict=True)]
        return torch.stack([outputs for outputs, _ in rows]), torch.stack([features for _, features in rows])

    def _check(self, before: "_Random | None") -> None:
        """Refuse a module that has drawn from a global random state, which is put back."""
        if before is None or before.untouched():
            return
        before.restore()
        raise UserError(
            f"{type(self._module).__name__} draws from the global random state, so that two equal runs would differ",
            "take random draws out of its forward; the layer torch.nn.Dropout draws from each client's own stream",
        )

    def _copy(self, training: bool) -> "_Copy":
        """The module of this thread in this mode: values are swapped in and out of it."""
        key = (get_ident(), training)
        if key not in self._copies:
            self._copies[key] = _Copy(_twin(self._modules[training]), self._head)
        return self._copies[key]


def _twin(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters and buffers."""
    return copy.deepcopy(module, {id(value): value for value in (*module.parameters(), *module.buffers())})


def _keeping(kept: dict[int, Tensor]) -> Callable[[Tensor], Tensor]:
    """Take down every piece of memory that is kept, once."""
    return lambda value: kept.setdefault(value.untyped_storage()._cdata, value)


class _Random:
    """The states that random functions draw from: torch's on the CPU and on this device, NumPy's and Python's."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        with GLOBAL_RANDOM:
            self._torch = [torch.get_rng_state()]
            if self._device is not None:
                self._torch.append(torch.cuda.get_rng_state(self._device))
        self._numpy, self._python = np.random.get_state(legacy=False), random.getstate()

    def untouched(self) -> bool:
        """Whether nobody has drawn since."""
        now = _Random(self._device)
        same = self._python == now._python and pickle.dumps(self._numpy) == pickle.dumps(now._numpy)
        return same and all(map(torch.equal, self._torch, now._torch))

    def restore(self) -> None:
        """Put the states back."""
        torch.set_rng_state(self._torch[0])
        if self._device is not None:
            torch.cuda.set_rng_state(self._torch[1], self._device)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


class _Copy:
    """A module whose own values stay aside, called with those of one client."""

    def __init__(self, module: nn.Module, head: str | None) -> None:
        self.module = module
        self._seen: list[Tensor] = []
        if head is not None:
            module.get_submodule(head).register_forward_pre_hook(self._see)

    def __call__(self, values: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and what the head saw; without a head the outputs twice."""
        self._seen.clear()
        outputs: Tensor = functional_call(self.module, dict(values), (x,))
        return outputs, self._seen.pop() if self._seen else outputs

    def _see(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen.append(inputs[0])


def _back(now: Pass, leaves: Mapping[str, Tensor], values: tuple[Tensor, Tensor], error: Tensor) -> None:
    """Bring the gradients of outputs and features to their places by autograd."""
    assert now.places is not None
    outputs, errors = [values[0]], [error]
    if now.to_features is not None and values[1].requires_grad:
        outputs, errors = [*values], [error, now.to_features]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), errors, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        now.places.add(name, gradient)
