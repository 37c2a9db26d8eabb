"""Where contents become Flower's messages and back: one ConfigRecord each, the smallest that Flower can carry."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from time import monotonic, sleep

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pfed1bs.flower.link import LATE, Content, Question, Reply, Size, Ticket

NAME = "pfed1bs"  # of the one record
SENT = 500  # letters that are made at once
EXPIRED = (3, 4)  # Flower's codes of a question and of an answer whose time is over, which may end before ours
PARTS = 3  # of an answer: message, records, record
PATIENCE = {"query": 10.0}  # seconds to wait for the parts of an answer that was announced; otherwise all there is
LASTING = 4  # times that an introduction may lie at the SuperLink: nobody looks for it while a round goes on
SPARE = 2.0  # but for so many, or a quarter of a short time
LOOK = 3.0  # seconds between the looks of Flower's own loop
TYPES = {"query": MessageType.QUERY, "train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}


def record(content: Content) -> RecordDict:
    """A content as Flower's."""
    return RecordDict({NAME: ConfigRecord(dict(content))})


def content_of(records: RecordDict) -> Content:
    """The content of Flower's records, if it is ours and nothing else."""
    found = records.get(NAME)
    if len(records) != 1 or not isinstance(found, ConfigRecord):
        raise ValueError(f"a message holds one ConfigRecord {NAME!r}, got {[*records]!r:.60}")
    return dict(found)


def serialised(message: Message) -> int:
    """Bytes of a message's objects, as they are pushed."""
    if not message.has_content():
        return len(message.deflate())
    held, hollow = message.content, RecordDict({name: ConfigRecord() for name in message.content})
    message.content = hollow  # names of objects are equally long, whatever they hold: so its records are deflated once
    around = len(message.deflate()) + len(hollow.deflate())
    message.content = held
    return around + sum(len(one.deflate()) for one in held.values())


Fetch = Callable[..., dict[str, bytes]]


def fetched(
    fetch: Fetch, end: float, parts: float, object_ids: list[str], pull_object_fn: Callable[[str], bytes]
) -> dict[str, bytes]:
    """The parts of an answer, if they are not too many, come in time, and make a message.

    A node announces an answer before it sends its parts. Flower waits for them for up to two hours, before it looks at
    the next answer, and raises whatever comes of parts that are no message.
    """
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents

    if len(object_ids) > parts:
        raise ObjectPullError(object_ids[-1], f"an answer has {parts} parts, got {len(object_ids)}")
    left = max(0.0, end - monotonic())
    pause = min(1.0, left / 4)  # so that the end is not missed by more than that
    try:
        found = fetch(object_ids, pull_object_fn, max_time=left, initial_backoff=pause / 8, backoff_cap=pause)
    except ObjectPullError as error:
        raise (ObjectPullError(object_ids[-1], LATE) if monotonic() >= end else error) from None
    try:
        whole = inflate_object_from_contents(object_ids[-1], {**found})
    except Exception as error:  # whatever Flower's readers say of bytes
        raise ObjectPullError(object_ids[-1], f"it is no message: {type(error).__name__}") from None
    if not isinstance(whole, Message):
        raise ObjectPullError(object_ids[-1], f"it is no message but a {type(whole).__name__}")
    return found


@contextmanager
def careful(end: float, parts: float = PARTS) -> Iterator[None]:
    """Let Flower's grid fetch answers of so many parts until then."""
    from flwr.superlink.grid import http_grid

    names = vars(http_grid)
    fetch = names["pull_objects"]
    names["pull_objects"] = partial(fetched, fetch, end, parts)
    try:
        yield
    finally:
        names["pull_objects"] = fetch


class Timely:
    """A grid whose exchanges end in time, whatever nodes announce; in all else the grid that it goes around."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's; after the longest wait for parts of an answer it looks once more for what others have sent."""
        waited = inf if timeout is None else timeout - min(2 * LOOK, timeout / 2)
        with careful(monotonic() + waited, inf):
            return self._grid.send_and_receive(messages, timeout=timeout)


class GridLink:
    """Flower's grid, asked more often than its own loop does."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.size = grid, Size()

    def nodes(self) -> set[int]:
        """The nodes that are connected now."""
        return {*self.grid.get_node_ids()}

    def pause(self, seconds: float) -> None:
        """Wait."""
        sleep(seconds)

    def post(self, question: Question, letters: Mapping[int, Content], timeout: float) -> Ticket:
        """Send; a letter that is not fetched in time is not delivered later, but for the question who somebody is."""
        waiting, everyone, lasts = dict[str, int](), [*letters], timeout * (LASTING if question == "query" else 1) + 1
        for nodes in (everyone[start : start + SENT] for start in range(0, len(everyone), SENT)):
            messages = [Message(record(letters[node]), node, TYPES[question], ttl=lasts) for node in nodes]
            down = sum(map(serialised, messages))
            self.size = Size(self.size.up, self.size.down + down, self.size.messages + len(nodes))
            numbers = [*self.grid.push_messages(messages)]
            if len(numbers) != len(nodes):
                raise RuntimeError(f"{len(nodes)} messages of {down} bytes are more than the SuperLink takes at once")
            # A letter that could not be sent has no number; it waits under its own name, and in vain.
            waiting |= {number or f"unsent {node}": node for number, node in zip(numbers, nodes, strict=True)}
        return Ticket(waiting, monotonic() + timeout, PATIENCE.get(question, inf), min(SPARE, timeout / 4))

    def collect(self, ticket: Ticket) -> list[Reply]:
        """What has come back, once each; an error may come from the SuperLink, so the question tells the node."""
        sent = [number for number in ticket.waiting if not number.startswith("unsent")]
        with careful(min(ticket.end - ticket.spare, monotonic() + ticket.patience)):
            found = self.grid.pull_messages(sent) if sent else []
        asked = ((one.metadata.reply_to_message_id, one) for one in found)
        replies = [self._reply(ticket.waiting.pop(number), one) for number, one in asked if number in ticket.waiting]
        if not ticket.waiting or (sent and monotonic() < ticket.end):
            return replies
        replies += [Reply(node, None, LATE) for node in ticket.waiting.values()]
        ticket.waiting.clear()
        return replies

    def _reply(self, node: int, message: Message) -> Reply:
        self.size = Size(self.size.up + serialised(message), self.size.down, self.size.messages)
        if message.has_error():
            reason, code = message.error.reason or "", message.error.code
            late = code in EXPIRED and (reason.endswith(LATE) or "Failed to pull" not in reason)
            return Reply(node, None, LATE if late else f"{reason} (Flower's code {code})")
        try:
            return Reply(node, content_of(message.content))
        except ValueError as error:
            return Reply(node, None, str(error))
