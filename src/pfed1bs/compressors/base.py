"""The contract of a lossy compressor."""

from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Protocol

from torch import Tensor

from pfed1bs.engine.contract import Cohort
from pfed1bs.engine.workers import CPU, ahead, there
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message, coordinates

LONG = 1 << 14  # values of a message from which it pays to wake other threads


class Compressor(Protocol):
    """Updates of a cohort to messages, and one client's message back to its update.

    One that has to search for the update, rather than to decode it, has an attribute `solves`, which is true.
    """

    @property
    def layout(self) -> Layout:
        """Fields of a compressed update."""
        ...

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """Messages of all clients, every field (S, ...), from their updates (S, n)."""
        ...

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """The update (n,) of the one client of this cohort."""
        ...


def decompressed(compressor: Compressor, received: Iterable[Message], cohort: Cohort) -> Iterator[Tensor]:
    """The updates of a cohort one by one; while one is used, the next few are computed on other threads.

    Where a message is floats alone there is hardly anything to compute. What has to be searched for is searched for
    on the device of the clients, one after the other; a server that is by itself has the CPU.
    """
    alone = (cohort.rows(slice(i, i + 1)) for i in range(len(cohort.ids)))
    pairs, layout, place = zip(received, alone, strict=True), compressor.layout, there()
    if getattr(compressor, "solves", False) and place != CPU:
        moved = (({name: field.to(place) for name, field in message.items()}, one) for message, one in pairs)
        return (compressor.decompress(*pair).cpu() for pair in moved)
    if coordinates(layout) < LONG or all(isinstance(codec, Floats) for codec in layout.values()):
        return starmap(compressor.decompress, pairs)
    return ahead(lambda pair: compressor.decompress(*pair), pairs)
