"""What the server's loop needs of a network: names of nodes, questions, answers. No type of Flower's stands here."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, Protocol

POLL = 0.2  # seconds between looks for replies
LATE = "no answer in time"
LONGEST = 300  # letters of a reason
LARGEST = (2 - 2**-23) * 2.0**127  # number that is logged, as single precision has it
Value = bool | int | float | str | bytes | list[int] | list[float] | list[str] | list[bytes] | list[bool]
Content = Mapping[str, Value]  # what one record holds
Question = Literal["query", "train", "evaluate"]  # who are you; do a round; how good is your model


@dataclass(frozen=True)
class Reply:
    """What came back from a node: a content, or the reason why there is none."""

    node: int
    content: Content | None
    error: str = ""


@dataclass(frozen=True)
class Size:
    """Bytes that have gone over a link so far, as serialised records."""

    up: int = 0
    down: int = 0
    messages: int = 0

    def since(self, before: "Size") -> "Size":
        """What came on top of an earlier count."""
        return Size(self.up - before.up, self.down - before.down, self.messages - before.messages)


@dataclass
class Ticket:
    """Questions on their way."""

    waiting: dict[str, int]  # number of a question: the node that has not answered it yet
    end: float  # when to stop waiting, on the link's clock
    patience: float = inf  # seconds to wait for the rest of an answer that has begun
    spare: float = 0.0  # seconds before the end in which that is not waited for: others may have come meanwhile


class Link(Protocol):
    """A network with the server at one end."""

    @property
    def size(self) -> Size:
        """What has been sent."""
        ...

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        ...

    def post(self, question: Question, letters: Mapping[int, Content], timeout: float) -> Ticket:
        """Send every node its letter."""
        ...

    def collect(self, ticket: Ticket) -> list[Reply]:
        """What has come back since the last look; when the time is over, an error for every node that is still out."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait for the network to change."""
        ...


def ask(link: Link, question: Question, letters: Mapping[int, Content], timeout: float) -> list[Reply]:
    """Send every node its letter and wait for all replies; an error where none came within `timeout` seconds."""
    ticket, replies = link.post(question, letters, timeout), list[Reply]()
    while True:
        replies += link.collect(ticket)
        if not ticket.waiting:
            return replies
        link.pause(POLL)


def told(error: object) -> str:
    """What a client or its message gave as a reason, fit for a log: one line, printable, not long."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(error)[: 2 * LONGEST])
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def whole(content: Content, key: str) -> int:
    """The whole number under a key, or a ValueError."""
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} must be a whole number, got {value!r:.40}")
    return value


def text(content: Content, key: str) -> str:
    """The string under a key, or a ValueError."""
    value = content.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a string, got {value!r:.40}")
    return value


def numbers(content: Content, key: str) -> list[int]:
    """The list of whole numbers under a key, or a ValueError."""
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        raise ValueError(f"{key} must be a list of whole numbers, got {value!r:.40}")
    return [int(item) for item in value]


def messages(content: Content, key: str) -> list[bytes]:
    """The list of messages under a key, or a ValueError."""
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(item, bytes) for item in value):
        raise ValueError(f"{key} must be a list of messages, got {value!r:.40}")
    return [item for item in value if isinstance(item, bytes)]


def reals(content: Content, prefix: str) -> dict[str, list[float]]:
    """The lists of numbers under all keys that begin with `prefix`, by the rest of the key, or a ValueError."""
    found = {}
    for key, value in content.items():
        if key.startswith(prefix):
            if not isinstance(value, list) or not all(type(item) is float for item in value):
                raise ValueError(f"{key} must be a list of numbers, got {value!r:.40}")
            found[key.removeprefix(prefix)] = [float(item) for item in value]
    return found


def logged(content: Content) -> dict[str, float]:
    """What a client says about its training, under names that cannot be taken for the server's own."""
    found = reals(content, "log/")
    if not all(len(values) == 1 and isfinite(values[0]) and name.isalpha() for name, values in found.items()):
        raise ValueError("what it logs must be one finite number under each name")
    log = {name: values[0] for name, values in found.items() if name not in ("round", "seconds")}
    if any(abs(value) > LARGEST for value in log.values()):
        raise ValueError("what it logs is too large a number")
    return log


def usual(answers: Sequence[Mapping[str, object]]) -> list[str]:
    """The names that more than half of the answers have: one that leaves some out takes them from nobody."""
    found = Counter(name for one in answers for name in one)
    return [name for name, count in found.items() if 2 * count > len(answers)]
