"""Portions of a round computed side by side, each on a thread of its own."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Number = TypeVar("Number", bound=np.generic)


CPU = torch.device("cpu")
MANY = 1 << 21  # numbers
PIECE = 1 << 22  # bytes
AHEAD = 6  # results that are made before they are needed
_threads = ContextVar("threads", default=0)  # before somebody computed alone; 0: nobody does
_there = ContextVar("there", default=CPU)  # where the clients of a round are computed, while its server counts


def spread(work: Callable[[Item], Result], items: Sequence[Item], device: torch.device = CPU) -> list[Result]:
    """work(item) for every item, on as many threads as torch uses, each of which computes alone.

    Threads that share every product wait for each other after each; threads with clients of their own do not, and a
    client's numbers do not depend on how many there are. That is why a single item has one thread, too. On another
    device than the CPU, items wait for each other.
    """
    threads = torch.get_num_threads()
    if threads == 1 or device.type != "cpu":
        return [work(item) for item in items]
    with alone():  # some libraries have one number for the whole process
        if len(items) == 1:
            return [work(items[0])]
        futures = [_pool(threads).submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)


def ahead(work: Callable[[Item], Result], items: Iterable[Item], most: int = AHEAD) -> Iterator[Result]:
    """work(item) for one item after the other, while up to `most` later ones are under way on other threads.

    For work that leaves Python's lock to others, as long messages and tensors do. Whoever computes `alone` has the
    threads there were before: each of them computes alone, too.
    """
    threads = _threads.get() or torch.get_num_threads()
    if threads == 1:
        yield from map(work, items)
        return
    pool, under_way = _pool(threads), deque[Future[Result]]()
    try:
        for item in items:
            under_way.append(pool.submit(work, item))
            if len(under_way) > most:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        for future in under_way:
            future.cancel()
        wait(under_way)


def pieces(values: NDArray[Number]) -> list[NDArray[Number]]:
    """Values (n,) cut so that it pays to look at each piece on a thread of its own."""
    return [values[i : i + PIECE // values.itemsize] for i in range(0, len(values), PIECE // values.itemsize)]


def portions(clients: int, chunk: int | None, device: torch.device = CPU) -> list[Tensor]:
    """The numbers below `clients`, a chunk at once (None: all), on the CPU divided among the threads."""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    size = max(1, -(-min(clients, chunk or clients) // threads))
    return [torch.arange(start, min(start + size, clients)) for start in range(0, clients, size)]


@contextmanager
def alone(device: torch.device = CPU, numbers: int = 0) -> Iterator[None]:
    """Have torch compute on one thread meanwhile: what several threads add up depends on their number.

    For states on another device than the CPU nothing is promised; there many `numbers` may have all threads, while few
    are dealt with before others are awake.
    """
    threads = torch.get_num_threads()
    before, place = _threads.set(_threads.get() or threads), _there.set(device)
    torch.set_num_threads(1 if device.type == "cpu" or numbers < MANY else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads.reset(before)
        _there.reset(place)


def there() -> torch.device:
    """The device of the states that somebody computes `alone` for: a server may have long work done there."""
    return _there.get()


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay for the next round, with the memory and the modules they hold; each computes alone."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child
