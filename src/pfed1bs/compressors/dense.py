"""No compression: the update in float32."""

from dataclasses import dataclass

from torch import Tensor

from pfed1bs.engine.contract import Cohort
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Dense:
    """32 bits per coordinate."""

    n: int

    @property
    def layout(self) -> Layout:
        """The update."""
        return {"update": Floats((self.n,))}

    def compress(self, update: Tensor, cohort: Cohort) -> Message:
        """As it is."""
        return {"update": update}

    def decompress(self, message: Message, cohort: Cohort) -> Tensor:
        """As it is."""
        return message["update"]
