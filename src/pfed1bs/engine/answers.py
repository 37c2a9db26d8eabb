"""What clients answer: packed where they computed it, encoded, and decoded where it is counted."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pfed1bs.core.votes import pack_signs
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.workers import ahead
from pfed1bs.wire.codecs import Differences, Signs
from pfed1bs.wire.messages import Codec, Layout, Message, decoder, encoder

PINNED = 1 << 16  # bytes of a field of all clients from which memory that a device writes by itself pays
LONG = 1 << 19  # bytes of a message from which it pays to wake other threads


def say(algorithm: Algorithm, message: Message, cohort: Cohort, known: Message | None = None) -> list[bytes]:
    """The encoded messages of a cohort, in its order; none for a method that sends nothing."""
    if not algorithm.up:
        return []
    layout, sizes = algorithm.up, cohort.sizes.tolist()
    fields = {name: _ready(layout[name], field) for name, field in message.items()}
    long = any(field.is_pinned() and field[0].nbytes >= LONG for field in fields.values())

    one = encoder(layout, fields, kind="up", round=cohort.round, samples=sizes, known=known)
    return [*ahead(one, range(len(sizes)), len(sizes))] if long else [one(i) for i in range(len(sizes))]


def ready(layout: Layout, message: Message) -> tuple[Message, Tensor | bool]:
    """The fields of all clients on their way to the CPU, signs packed, and whether they are signs: nobody waits for it.

    Who has waited for the device, whatever for, has them.
    """
    plain = {name: field for name, field in message.items() if field.dtype != torch.uint8}
    packed = {name: pack_signs(x) for name, x in plain.items() if isinstance(layout.get(name), Signs | Differences)}
    there = {**message, **{name: bits for name, (bits, _) in packed.items()}}
    good = torch.stack([good for _, good in packed.values()]).all() if packed else True
    return {name: _home(field, wait=False) for name, field in there.items()}, good


def _home(field: Tensor, wait: bool = True) -> Tensor:
    """A field on the CPU, in memory that a device writes by itself where that pays or where nobody is to wait."""
    if field.is_cuda and (field.nbytes >= PINNED or not wait):
        return torch.empty(field.shape, dtype=field.dtype, pin_memory=True).copy_(field, non_blocking=not wait)
    return field.cpu()


def _ready(codec: Codec, field: Tensor) -> Tensor:
    """A field of all clients on the CPU, signs packed at once before they move."""
    if isinstance(codec, Signs | Differences) and field.dtype != torch.uint8:
        field = codec.pack(field)
    return _home(field)


def differing(algorithm: Algorithm, cohort: Cohort) -> list[bytes]:
    """What clients say whose replica is not the server's, instead of an answer: an empty message."""
    return say(algorithm, {}, cohort)


def listen(
    algorithm: Algorithm,
    messages: Sequence[bytes | Message],
    cohort: Cohort,
    known: Message | None = None,
    early: bool = False,
) -> Iterable[Message]:
    """The messages of a cohort, one by one, decoded unless they are already, signs still packed.

    `early`: while one is used, the next few long ones are decoded on other threads.
    """
    read = decoder(algorithm.up, kind="up", round=cohort.round, known=known, packed=True)

    def one(data: bytes | Message, size: int) -> Message:
        if isinstance(data, bytes):
            return read(data, size)
        return {name: field.clone() for name, field in data.items()}  # what is heard may be written over, heard again

    pairs = zip(messages, cohort.sizes.tolist(), strict=True)
    if early and messages and isinstance(messages[0], bytes) and len(messages[0]) >= LONG:
        return ahead(lambda pair: one(*pair), pairs)
    return (one(*pair) for pair in pairs)


def watched(
    algorithm: Algorithm, server: State, messages: Iterable[Message], found: list[State], signs: bool = True
) -> Iterable[Message]:
    """The messages as they come; what `diagnose` takes from each is added to `found`, `signs` only if wanted."""
    for message in messages:
        seen = algorithm.diagnose(server, message)
        found.append({name: value for name, value in seen.items() if signs or value.dtype != torch.uint8})
        yield message
