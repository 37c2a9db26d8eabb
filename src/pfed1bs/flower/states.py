"""A client's model on its disk: after its last round, and before it, until the server says which of them counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pfed1bs.core.errors import Failure
from pfed1bs.engine.contract import State
from pfed1bs.runs import checkpoint
from pfed1bs.runs.locking import hold

PATIENCE = 30  # seconds to wait for another process of the same client


@dataclass(frozen=True)
class Shelf:
    """The states of one client in one federation, by the round they were reached in, in one file.

    A client cannot know whether its answer was counted. So it keeps the state it began a round with beside the one it
    ended with; the next message says from which of them to go on, and only then the other one is dropped.
    """

    path: Path
    identity: str

    @classmethod
    def of(cls, folder: Path, federation: str, partition: int, identity: str) -> "Shelf":
        """The shelf of a client in a federation; names that are no file names are refused."""
        if not federation or not all(letter.isalnum() or letter in "-_" for letter in federation):
            raise ValueError(f"a federation's name has letters, digits, - and _, got {federation!r:.40}")
        return cls(folder / f"{federation}-{partition}.safetensors", identity)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process work on these states; the last one of a SuperNode that was killed may live on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = hold(self.path.with_suffix(".lock"), PATIENCE)
        if lock is None:
            raise Failure(
                f"another process works on {self.path.name}", "give every SuperNode a state folder of its own"
            )
        with lock:
            yield

    def states(self) -> dict[int, State]:
        """The states that are here, by round, ascending."""
        return checkpoint.by_round(checkpoint.read(self.path, self.identity)[0]) if self.path.exists() else {}

    def put(self, states: dict[int, State], about: str = "{}") -> None:
        """Replace everything by these states, all or nothing; `about` is what their model needs later, as JSON."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {f"{round}/{name}": value.clone() for round, state in states.items() for name, value in state.items()}
        checkpoint.write(self.path, tensors, {"identity": self.identity, "about": about})
