"""What OneBitFedAvg and OneBit say to each other, in one ConfigRecord beside the records of the app."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from pfed1bs.core.errors import UserError
from pfed1bs.flower.link import Value, messages, text, whole

NAME = "onebit"  # of the record
PROTOCOL = 1  # what both sides must speak


@dataclass(frozen=True)
class Letter:
    """What the server tells a node with every message that held a model."""

    round: int  # that the news lead to
    base: int  # the last training of this node that was counted; -1: none
    seed: int
    ratio: float
    rotate: bool
    coded: bool  # whether the first model is made from the seed
    key: str  # of the array record
    local: tuple[str, ...]  # patterns of arrays that stay at the node
    news: list[bytes]  # empty where the message holds the model itself

    def record(self) -> ConfigRecord:
        """As Flower carries it."""
        own: dict[str, Value] = {"protocol": PROTOCOL, **vars(self), "local": [*self.local]}
        return ConfigRecord({name: value for name, value in own.items() if name != "local" or value})

    @classmethod
    def read(cls, content: RecordDict) -> "Letter":
        """The letter in a message."""
        record = opened(content, "the server")
        local, ratio = record.get("local", []), record.get("ratio")
        if not isinstance(local, list) or not isinstance(ratio, float):
            raise ValueError(f"a letter has a ratio and a list of local arrays, got {ratio!r:.20} and {local!r:.40}")
        return cls(
            *(whole(record, "round"), whole(record, "base"), whole(record, "seed"), ratio),
            *(record.get("rotate") is True, record.get("coded") is True, text(record, "key")),
            *(tuple(map(str, local)), messages(record, "news")),
        )


def answer(held: int, up: bytes = b"") -> ConfigRecord:
    """What a node says beside the app's records: the version it holds, -1: none, and its update."""
    return ConfigRecord({"protocol": PROTOCOL, "held": held, **({"up": up} if up else {})})


def opened(content: RecordDict, sender: str) -> ConfigRecord:
    """The record of the other side."""
    record = content.get(NAME)
    if not isinstance(record, ConfigRecord):
        raise UserError(
            f"{sender} sent no record {NAME!r}: only one side is wrapped",
            "write app = OneBit(app) in the client app and strategy = OneBitFedAvg(strategy) in the server app",
        )
    if record.get("protocol") != PROTOCOL:
        raise UserError(
            f"{sender} speaks version {record.get('protocol')!r:.20} of the drop-in's messages, this side {PROTOCOL}",
            "install the same release of pfed1bs on the server and on all nodes",
        )
    return record


def only(content: RecordDict, sender: str) -> tuple[str, ArrayRecord]:
    """The one array record of a message, with its key."""
    found = content.array_records
    if len(found) != 1:
        raise UserError(
            f"{sender} must hold the model in one ArrayRecord, and holds {len(found)} of them among {[*content]}",
            "put what else travels into a MetricRecord or ConfigRecord, or keep it in context.state",
        )
    return next(iter(found.items()))


class Nested(Protocol):
    """An object of Flower's that is pushed piece by piece."""

    @property
    def children(self) -> "Mapping[str, Nested] | None":
        """Its pieces."""
        ...

    def deflate(self) -> bytes:
        """Itself, with references to its pieces."""
        ...


def deflated(whole: Nested) -> int:
    """Bytes of an object with all its pieces, arrays among them, as they are pushed."""
    return len(whole.deflate()) + sum(map(deflated, (whole.children or {}).values()))
