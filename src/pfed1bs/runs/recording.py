"""The loop that records rounds, wherever they come from."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from pfed1bs.core.failing import explained
from pfed1bs.engine.rounds import Progress, Round, Schedule
from pfed1bs.engine.scores import Score
from pfed1bs.engine.store import device_of
from pfed1bs.runs.folder import RunFolder
from pfed1bs.runs.late import due
from pfed1bs.runs.summary import Record


class Source(Protocol):
    """Where rounds come from: the simulator, or the server of a real federation."""

    def rounds(self, resume: Progress | None) -> Iterator[Round]:
        """The rounds after this progress; None: all of them."""
        ...

    def judge(self, now: Progress) -> tuple[Tensor, dict[str, Score]]:
        """The clients that were judged, and how good their models are; no scores where nobody was."""
        ...


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does: with a checkpoint."""


def record(source: Source, folder: RunFolder, schedule: Schedule) -> Iterator[Record]:
    """Write down the rounds of a source and yield what is written; however it ends, the last round is saved.

    A GPU that is gone takes the rounds since the last checkpoint with it.
    """
    last = saved = folder.progress
    try:
        for done in source.rounds(last):
            line = recorded(done)
            if done.last or due(done.number, folder.config.evaluate_every, schedule.rounds):
                line |= folder.judged(*source.judge(done.progress), done)
            line |= done.notes
            folder.append(line, done)
            last = done.progress
            if done.last or due(done.number, folder.checkpoint_every, schedule.rounds):
                folder.save(last)
                saved = last
            yield line
    finally:
        if last is not None and last is not saved:
            with explained(device_of(last.clients), f"the checkpoint after round {last.round - 1}", 1):
                folder.save(last)


def recorded(done: Round) -> Record:
    """One line of metrics.jsonl; values of clients as their mean."""
    cost = {f"{name}_bytes": value for name, value in asdict(done.traffic).items()}
    log = {name: float(value.double().mean()) for name, value in done.log.items() if value.dtype != torch.uint8}
    return {"round": done.number, **cost, "seconds": round(done.seconds, 6), **log}


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into Terminated, unless somebody else handles it already or this is not the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
