"""Pieces of a round computed side by side, each on a thread of its own."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """work(item) for every item, on as many threads as torch uses, each of which computes alone.

    Threads that share every product wait for each other after each; threads with clients of their own do not, and a
    client's numbers do not depend on how many there are.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        return [work(item) for item in items]

    def alone(item: Item) -> Result:
        torch.set_num_threads(1)
        return work(item)

    torch.set_num_threads(1)  # some libraries have one number for the whole process
    futures = [_pool(threads).submit(alone, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay for the next round, with the memory and the modules they hold."""
    return ThreadPoolExecutor(threads)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child
