"""Clients of a GPU side by side: each one's network on one of several streams, which a graph joins to one work."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from pfed1bs.nn.stacked import Backward, Pass, Places, leaf

LANES = 8
Result = TypeVar("Result")
One = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor]]  # values and inputs of a client -> what it sees


def abreast(work: Callable[[int], Result], count: int, device: torch.device) -> list[Result]:
    """work(i) for every i below count; on a GPU in turns on several streams, which begin and end together.

    What a stream allocates is freed and used again on it alone, and others read it only while it stands still.
    """
    if device.type != "cuda":
        return [work(i) for i in range(count)]
    main, lanes = torch.cuda.current_stream(device), _lanes(device)
    for lane in lanes:
        lane.wait_stream(main)
    done = []
    for i in range(count):
        with torch.cuda.stream(lanes[i % len(lanes)]):
            done.append(work(i))
    for lane in lanes:
        main.wait_stream(lane)
    return done


@cache
def _lanes(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(LANES)]  # type: ignore[no-untyped-call]


def client_by_client(one: One, now: Pass, x: Tensor, layout: torch.memory_format) -> tuple[Tensor, Pass, Backward]:
    """Outputs (K, B, ...), the pass that made them, and the way back to its places, of one client's function."""
    places = now.places
    leaves = [{name: leaf(now.values[name][i]) for name in (places.out if places else ())} for i in range(now.clients)]

    def forward(i: int) -> tuple[Tensor, Tensor]:
        own = {name: value[i] for name, value in now.values.items()}
        with torch.set_grad_enabled(places is not None):
            return one({**own, **leaves[i]}, x[i].contiguous(memory_format=layout))

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
    gradients = torch.autograd.grad(outputs, list(leaves.values()), errors, allow_unused=True)
    rows = Places({name: now.places.out[name][client] for name in leaves}, now.places.keep, now.places.scale)
    for name, gradient in zip(leaves, gradients, strict=True):
        rows.add(name, gradient)
