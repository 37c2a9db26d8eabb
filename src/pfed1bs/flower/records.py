"""Where contents become Flower's messages and back: one ConfigRecord each, the smallest that Flower can carry."""

from collections.abc import Mapping
from time import monotonic, sleep

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from pfed1bs.flower.link import Content, Question, Reply, Size

NAME = "pfed1bs"  # of the one record
POLL = 0.2  # seconds between looks for replies
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
    inner = sum(len(one.deflate()) for one in message.content.values())
    return len(message.deflate()) + len(message.content.deflate()) + inner


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

    def ask(self, question: Question, letters: Mapping[int, Content], timeout: float) -> list[Reply]:
        """Send and gather; a letter that was not fetched in time is not delivered later."""
        end = monotonic() + timeout
        nodes = [*letters]
        messages = [Message(record(letters[node]), node, TYPES[question], ttl=timeout + POLL) for node in nodes]
        down = sum(map(serialised, messages))
        self.size = Size(self.size.up, self.size.down + down, self.size.messages + len(nodes))
        waiting = {
            number: node for number, node in zip(self.grid.push_messages(messages), nodes, strict=True) if number
        }
        replies = [Reply(node, None, "it could not be sent to") for node in {*nodes} - {*waiting.values()}]
        while waiting and monotonic() < end:
            for message in self.grid.pull_messages([*waiting]):
                # The sender of an error may be the SuperLink, so only the message that it replies to tells the node.
                replies.append(self._reply(waiting.pop(message.metadata.reply_to_message_id), message))
            if waiting:
                sleep(POLL)
        return replies

    def _reply(self, node: int, message: Message) -> Reply:
        self.size = Size(self.size.up + serialised(message), self.size.down, self.size.messages)
        if message.has_error():
            return Reply(node, None, f"{message.error.reason} (Flower's code {message.error.code})")
        try:
            return Reply(node, content_of(message.content))
        except ValueError as error:
            return Reply(node, None, str(error))
