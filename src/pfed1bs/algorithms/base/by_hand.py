"""A round of pfed1bs-delta for a loop, an optimiser and a network of your own (docs/flower-dropin.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pfed1bs.algorithms.base.onebit import SAFE, Code, bounded, code, fields
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import FRACTION, SEED, at_least, check, option
from pfed1bs.wire.messages import Layout, decode, encode, fixed_size, read_header


@dataclass(frozen=True)
class OneBitCode:
    """What all parties agree on before the first round."""

    n: int = option(0, "weights", at_least(1))
    ratio: float = option(0.1, "m / n: bits per weight", FRACTION)
    seed: int = option(0, "of projections and rotations", SEED)
    rotate: bool = option(True, "second rotation before the server's signs")

    def __post_init__(self) -> None:
        check(OneBitCode, vars(self))

    @property
    def layout(self) -> Layout:
        """Signs and scale, the same both ways."""
        return fields((self.n,), self.ratio)

    @property
    def size(self) -> int:
        """Bytes of a message, its header included."""
        return fixed_size(self.layout) or 0

    def of(self, round: int) -> Code:
        """Projection and rotation of a round."""
        return code((self.n,), self.ratio, self.seed, round, self.rotate)


def encode_update(agreed: OneBitCode, update: Tensor, *, round: int, samples: int = 1) -> bytes:
    """What a client sends of its update (n,), the way from the shared weights to those it has trained."""
    if update.shape != (agreed.n,):
        raise UserError(
            f"an update is a flat tensor of {agreed.n} numbers, got shape {tuple(update.shape)}",
            "flatten it with torch.nn.utils.parameters_to_vector",
        )
    if not torch.isfinite(update).all():
        raise UserError("the update holds NaN or infinity", "lower the learning rate, or check the data")
    said = agreed.of(round).signed(update.detach().float())
    return encode(agreed.layout, said, kind="up", round=round, samples=samples)


def encode_step(agreed: OneBitCode, updates: Sequence[bytes], *, round: int) -> bytes:
    """What the server sends everybody: the mean of the clients' messages, by their samples, in signs and a scale.

    The order in which messages came changes no bit.
    """
    if not updates:
        raise UserError("a step needs the update of one client or more", "leave the round out")
    ordered = sorted(updates)
    messages = [decode(agreed.layout, data, kind="up", round=round, packed=True) for data in ordered]
    sizes = torch.tensor([read_header(data).samples for data in ordered], dtype=torch.float64)
    if not all(messages) or not sizes.sum():
        raise UserError("every client of a step needs an update, and one of them samples", "leave the others out")
    weights, now = sizes / sizes.sum(), agreed.of(round)
    v, s = now.answered(now.mean(messages, weights)[0])
    said = {"signs": v, "scale": s * bounded(weights, agreed.ratio, most=SAFE)}
    return encode(agreed.layout, said, kind="down", round=round)


def decode_step(agreed: OneBitCode, step: bytes, *, round: int) -> Tensor:
    """What everybody adds to the shared weights (n,): the same numbers wherever they are computed."""
    said = decode(agreed.layout, step, kind="down", round=round)
    if not said:
        raise UserError("this step is empty", "send what encode_step returned")
    return agreed.of(round).step(said["signs"], said["scale"])
