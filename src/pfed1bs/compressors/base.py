"""The contract of a lossy compressor."""

from typing import Protocol

from torch import Tensor

from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.messages import Layout, Message


class Compressor(Protocol):
    """Updates of a cohort to messages, and one client's message back to its update."""

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
