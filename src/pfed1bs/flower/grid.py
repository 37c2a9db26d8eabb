"""Where contents become Flower's messages and back: one ConfigRecord each, the smallest that Flower can carry."""

from collections.abc import Mapping
from time import monotonic, sleep

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pfed1bs.flower.link import LATE, Content, Question, Reply, Size, Ticket

NAME = "pfed1bs"  # of the one record
SENT = 500  # letters that are made at once
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
        """Send; a letter that is not fetched in time is not delivered later."""
        waiting, everyone = dict[str, int](), [*letters]
        for nodes in (everyone[start : start + SENT] for start in range(0, len(everyone), SENT)):
            messages = [Message(record(letters[node]), node, TYPES[question], ttl=timeout + 1) for node in nodes]
            down = sum(map(serialised, messages))
            self.size = Size(self.size.up, self.size.down + down, self.size.messages + len(nodes))
            numbers = [*self.grid.push_messages(messages)]
            if len(numbers) != len(nodes):
                raise RuntimeError(f"{len(nodes)} messages of {down} bytes are more than the SuperLink takes at once")
            # A letter that could not be sent has no number; it waits under its own name, and in vain.
            waiting |= {number or f"unsent {node}": node for number, node in zip(numbers, nodes, strict=True)}
        return Ticket(waiting, monotonic() + timeout)

    def collect(self, ticket: Ticket) -> list[Reply]:
        """What has come back, once each; an error may come from the SuperLink, so the question tells the node."""
        sent = [number for number in ticket.waiting if not number.startswith("unsent")]
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
            return Reply(node, None, f"{message.error.reason} (Flower's code {message.error.code})")
        try:
            return Reply(node, content_of(message.content))
        except ValueError as error:
            return Reply(node, None, str(error))
