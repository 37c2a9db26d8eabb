"""A model in Flower's array record, and as flat weights: which of its arrays are shared, and which stay local."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.core.checks import crc32
from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import stream
from pfed1bs.engine.contract import State
from pfed1bs.nn.network import GLOBAL_RANDOM
from pfed1bs.nn.task import Task

STATISTICS = ("*running_mean", "*running_var", "*num_batches_tracked")  # of BatchNorm and its like
First = Callable[[], "nn.Module | ArrayRecord"]
CHANGED = (  # what two sets of arrays differ in, and the way out
    "the array {} was {} when the federation began, and is now {}",
    "return the arrays that the app was given, with the same names, shapes and types in every round",
)
OTHERS = (
    "the array {} is {} in the model that `first` makes, and {} in the arrays that the strategy is started with",
    "let `first` return a module with the state_dict() that the app sends, or the ArrayRecord itself",
)


@dataclass(frozen=True)
class Frame:
    """Names, shapes and types of a model's arrays, in their order; those that are not local make up the n weights."""

    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    local: frozenset[str]
    twins: dict[str, str] = field(default_factory=dict)  # a second name of an array, and the first

    @classmethod
    def of(cls, model: State, local: frozenset[str], twins: dict[str, str]) -> "Frame":
        """The frame of a model; a twin is local where the array is."""
        local = local - twins.keys() | {twin for twin, name in twins.items() if name in local}
        arrays = tuple((name, tuple(value.shape), _kind(value)) for name, value in model.items())
        frame = cls(arrays, local, {twin: name for twin, name in twins.items() if twin not in local})
        for name, _, kind in frame.arrays:
            if name not in local and kind != "float32":
                raise UserError(
                    f"steps are sent in float32, but the array {name} is {kind}",
                    f"give the model .float(), or keep the array at the nodes with OneBitFedAvg(..., local=['{name}'])",
                )
        if not frame.n:
            raise UserError("the arrays hold no weights that can be shared", "put the model's weights into them")
        return frame

    @classmethod
    def read(cls, data: Tensor) -> "Frame":
        """The frame that `written` made these bytes of."""
        arrays, local, twins = json.loads(data.numpy().tobytes())
        return cls(tuple((name, tuple(shape), kind) for name, shape, kind in arrays), frozenset(local), twins)

    def written(self) -> Tensor:
        """The frame as bytes."""
        text = json.dumps([self.arrays, sorted(self.local), self.twins])
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    @property
    def shared(self) -> dict[str, tuple[int, ...]]:
        """The arrays that make up the weights, with their shapes."""
        return {name: shape for name, shape, _ in self.arrays if name not in self.local and name not in self.twins}

    @property
    def n(self) -> int:
        """Weights."""
        return sum(map(prod, self.shared.values()))

    def flat(self, model: State) -> Tensor:
        """The weights (n,) of a model."""
        return torch.cat([model[name].reshape(-1) for name in self.shared])

    def model(self, weights: Tensor, local: Mapping[str, Tensor]) -> State:
        """The model with these weights (n,) and local arrays, in its order."""
        found, at = State(), 0
        for name, shape, _ in self.arrays:
            if name in self.local:
                found[name] = local[name]
            elif name in self.twins:
                found[name] = found[self.twins[name]]
            else:
                found[name], at = weights[at : at + prod(shape)].view(shape), at + prod(shape)
        return found

    def check(self, model: State, words: tuple[str, str] = CHANGED) -> None:
        """Refuse arrays that are not those of this frame, in these words."""
        ours = {name: (shape, kind) for name, shape, kind in self.arrays}
        theirs = {name: (tuple(value.shape), _kind(value)) for name, value in model.items()}
        wrong = next((name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)), None)
        if wrong is not None:
            raise UserError(words[0].format(wrong, _shown(ours.get(wrong)), _shown(theirs.get(wrong))), words[1])

    def untied(self, given: Tensor, model: State) -> None:
        """Refuse two arrays that the app was given as different weights (n,) and returned as the same ones."""
        before, seen = self.model(given, model), dict[tuple[tuple[int, ...], int], str]()
        for name, shape in self.shared.items():
            value = model[name]
            other = seen.setdefault((shape, crc32(value.numpy().tobytes())), name)
            if other == name or torch.equal(before[other], before[name]) or value.min() == value.max():
                continue
            raise UserError(
                f"the arrays {other} and {name} are one in the app's model, and would be moved apart",
                "give OneBit and OneBitFedAvg `first`, which shows that they are one, or send only one of them",
            )


class Elsewhere(Task):
    """Weights that somebody else trains: first values, and nothing else of a task."""

    def __init__(self, first: Tensor) -> None:
        self.n, self.parts, self._first = len(first), (), first

    def init(self, seed: int) -> Tensor:
        """The first weights; they are made already."""
        return self._first

    def buffers(self, clients: int) -> State:
        """None."""
        return {}


def agreed(first: Tensor, ratio: float, seed: int, rotate: bool, coded: bool) -> PFed1BSDelta:
    """The method that carries a model, on both sides; `coded`: both have the first weights from the seed."""
    plain = PFed1BSDelta(Elsewhere(first), seed, ratio=ratio, rotate=rotate, keep="ft", follow=False)
    return replace(plain, snapshots="coded" if coded else "float32")


def made(first: First, seed: int, local: tuple[str, ...]) -> tuple[Frame, State]:
    """The first model, drawn from the seed; a module's arrays that are not trained stay local."""
    with GLOBAL_RANDOM, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(seed, "init").initial_seed())
        model = first()
    if not isinstance(model, nn.Module | ArrayRecord):
        raise UserError(f"first must return a torch module or an ArrayRecord, got {type(model).__name__}", "first=Net")
    if isinstance(model, ArrayRecord):
        return framed(values(model), local)
    trained = {name: value for name, value in model.named_parameters(remove_duplicate=False) if value.requires_grad}
    found = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    names, twins = dict[int, str](), dict[str, str]()
    for name in [name for name in found if name in trained]:
        if (once := names.setdefault(id(trained[name]), name)) != name:
            twins[name] = once
    return framed(found, local, frozenset(found) - trained.keys(), twins)


def framed(
    model: State, local: tuple[str, ...], also: frozenset[str] = frozenset(), twins: dict[str, str] | None = None
) -> tuple[Frame, State]:
    """A model and its frame: whole numbers, statistics, and what the patterns `local` name stay where they are."""
    patterns = (*STATISTICS, *local)
    kept = {
        name
        for name, value in model.items()
        if not value.is_floating_point() or any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return Frame.of(model, frozenset(kept) | also, twins or {}), model


def values(record: ArrayRecord) -> State:
    """The arrays of a record as tensors."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def recorded(model: State) -> ArrayRecord:
    """Tensors as Flower's record."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in model.items()})


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _shown(one: tuple[tuple[int, ...], str] | None) -> str:
    return "not there" if one is None else f"{one[1]} of shape {one[0]}"
