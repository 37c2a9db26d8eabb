"""Clients of a GPU side by side: each one's work on one of several streams, which a graph joins to one work."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import inf
from typing import TypeVar, cast

import torch
from torch import Tensor

from pfed1bs.core.cuda import recording
from pfed1bs.core.graphs import milliseconds
from pfed1bs.nn import cuda_steps
from pfed1bs.nn.stacked import Backward, Pass, Places, leaf

LANES = 8  # streams
FILLING = 1 << 22  # weights of all clients from which on a step leaves the device no time between its products
Result = TypeVar("Result")
Other = TypeVar("Other")
Way = Callable[[Pass], tuple[Tensor, Pass, Backward]]
One = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor]]  # values and inputs of a client -> what it sees


def abreast(work: Callable[[int], Result], count: int, device: torch.device) -> list[Result]:
    """work(i) for every i below count; on a GPU in turns on several streams, which begin and end together.

    What a stream allocates is freed and used again on it alone, and others read it only while it stands still.
    """
    if device.type != "cuda":
        return [work(i) for i in range(count)]
    main, lanes = torch.cuda.current_stream(device), _lanes(device)[:count]
    for lane in lanes:
        lane.wait_stream(main)
    done = []
    try:
        for i in range(count):
            with torch.cuda.stream(lanes[i % len(lanes)]):
                done.append(work(i))
    finally:  # also where memory is full: what is freed now is still written there
        for lane in lanes:
            main.wait_stream(lane)
    return done


def beside(first: Callable[[], Result], second: Callable[[], Other], like: Tensor) -> tuple[Result, Other]:
    """The results of two works on weights (S, n) such as these, neither of which needs the other.

    While work for a GPU is recorded they share it, if they are too small to fill it one by one.
    """
    if like.numel() >= FILLING or not recording(like.device):
        return first(), second()
    one, other = abreast(lambda i: (second if i else first)(), 2, like.device)
    return cast(Result, one), cast(Other, other)


@cache
def _lanes(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(LANES)]  # type: ignore[no-untyped-call]


def client_by_client(one: One, now: Pass, x: Tensor) -> tuple[Tensor, Pass, Backward]:
    """Outputs (K, B, ...), the pass that made them, and the way back to its places, of one client's function.

    Channels stay where they are: with them last, convolutions were no faster (docs/log.md), and weights in the middle
    of flat ones lie at addresses that those kernels do not take.
    """
    places = now.places
    leaves = [{name: leaf(now.values[name][i]) for name in (places.out if places else ())} for i in range(now.clients)]

    def forward(i: int) -> tuple[Tensor, Tensor]:
        own = {name: value[i] for name, value in now.values.items()}
        with torch.set_grad_enabled(places is not None):
            return one({**own, **leaves[i]}, x[i])

    results = abreast(forward, now.clients, x.device)
    now.features = torch.stack([features.detach() for _, features in results])

    def back(error: Tensor) -> None:
        abreast(lambda i: _back(now, leaves[i], results[i], error[i], i), now.clients, x.device)
        assert places is not None
        places.done.update(places.out)

    return torch.stack([outputs.detach() for outputs, _ in results]), now, back


def _back(now: Pass, leaves: Mapping[str, Tensor], values: tuple[Tensor, Tensor], error: Tensor, client: int) -> None:
    """Bring the gradients of a client's outputs and features to their places."""
    assert now.places is not None
    outputs, errors = [values[0]], [error]
    if now.to_features is not None and values[1].requires_grad:
        outputs, errors = [*values], [error, now.to_features[client]]
    with torch.autograd.set_multithreading_enabled(False):  # on this thread, which has the device's libraries at hand
        gradients = torch.autograd.grad(outputs, list(leaves.values()), errors, allow_unused=True)
    rows = Places({name: now.places.out[name][client] for name in leaves}, now.places.keep, now.places.scale)
    placed(rows, dict(zip(leaves, gradients, strict=True)))


def placed(places: Places, gradients: Mapping[str, Tensor | None]) -> None:
    """Bring gradients to their places; on a GPU all of them in one pass and one launch."""
    joint = {
        name: gradient
        for name, gradient in gradients.items()
        if places.keep and gradient is not None and cuda_steps.usable(places.out[name], gradient)
    }
    cuda_steps.take([places.out[name] for name in joint], [*joint.values()], places.keep, places.scale)
    places.done.update(joint)
    for name, gradient in gradients.items():
        if name not in joint:
            places.add(name, gradient)


class Ways:
    """Ways to compute the same for all clients of a GPU: each is measured once for every size, the fastest is taken.

    Measured is a forward and a backward pass, inside a graph where steps are recorded, on a copy of the values. A pass
    that is not differentiated goes the way of those that are. The libraries' own ways of convolving are measured too,
    by them. A way that fails is said once and left. Which ways there are, `Network` says.
    """

    def __init__(self) -> None:
        self._fastest: dict[torch.Size, str] = {}
        self._gone: dict[Hashable, str] = {}  # the last way of every kind of pass
        self._said: set[str] = set()

    def __call__(self, ways: Mapping[str, Way], now: Pass, x: Tensor) -> tuple[Tensor, Pass, Backward]:
        """The outputs, the pass that made them, and the way back."""
        kind, taped = (x.shape, x.device, now.module.training, now.places is None), recording(x.device)
        if now.places is not None and x.shape not in self._fastest and not taped:
            taken = {name: self._taken(name, way, now) for name, way in ways.items()}
            self._fastest[x.shape] = min(taken, key=taken.__getitem__)
        chosen = self._fastest.get(x.shape) or next(iter(self._fastest.values()), next(iter(ways)))
        if taped:  # the way gone before, whose kernels are loaded: nothing can be compiled now
            chosen = self._gone.get(kind, next(iter(ways)))
        self._gone[kind] = chosen
        with _tuned():
            outputs, done, back = ways[chosen](now)
        return outputs, done, _tuned()(back)

    def _taken(self, name: str, way: Way, now: Pass) -> float:
        """Milliseconds of a way, infinite if it fails."""
        try:
            return _measured(way, now)
        except RuntimeError as error:
            if name not in self._said:
                warnings.warn(f"convolutions cannot go the way {name!r}, others are taken ({error})", stacklevel=2)
            self._said.add(name)
            return inf


def _measured(way: Way, now: Pass) -> float:
    """Milliseconds of the device, infinite if its memory is too small for it."""
    assert now.places is not None
    own = {name: value.clone() for name, value in now.values.items()}
    places = Places({name: own[name] for name in now.places.out}, now.places.keep, now.places.scale)

    @_tuned()
    def work() -> None:
        outputs, _, back = way(replace(now, values=own, places=places, late=[]))
        back(outputs)

    try:
        with torch.cuda.device_of(next(iter(own.values()))):  # type: ignore[no-untyped-call]
            return milliseconds(work)
    except torch.cuda.OutOfMemoryError:
        return inf


@contextmanager
def _tuned() -> Iterator[None]:
    """Let cuDNN measure its convolutions, too."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
