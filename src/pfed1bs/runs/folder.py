"""The folder of a run: configuration, environment, metrics, checkpoint, summary; one process at a time writes in it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Self

from torch import Tensor

from pfed1bs.core.errors import UserError, naming
from pfed1bs.core.extras import need
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.rounds import Progress, Round
from pfed1bs.engine.scores import Score, scored, write_clients
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import Config, Options, as_tables, free, load
from pfed1bs.runs.environment import started
from pfed1bs.runs.locking import hold
from pfed1bs.runs.own import own_files, unchanged
from pfed1bs.runs.summary import Record, summarised

LOCK = "lock"


@dataclass
class RunFolder:
    """Where a run is written down. `open` it, `append` rounds, `save` what they led to, `summarise` at the end."""

    path: Path
    config: Config
    chunk: int | None = None  # clients computed at once, where that is known

    progress: Progress | None = field(init=False, default=None)  # what to go on from; None: the beginning
    _lock: IO[str] | None = field(init=False, default=None)
    _metrics: IO[str] | None = field(init=False, default=None)

    holds: ClassVar[str] = "run"
    go_on: ClassVar[str] = "--resume"  # how a user says it
    out: ClassVar[str] = "--out"
    patience: ClassVar[int] = 0  # seconds to wait for another process to end
    facts: ClassVar[Mapping[str, object]] = {}  # overrule what is found out about the environment

    def open(self, resume: bool = False) -> Self:
        """Lock the folder and begin a run in it, or find out where to go on; nothing of another run is touched."""
        self._check(resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = hold(self.path / LOCK, self.patience)
        if self._lock is None:
            raise UserError(f"another process works in {self.path}", "wait until it ends, or end it")
        try:
            self._check(resume)  # again: only now nobody else can begin here
            self.progress = self._found() if resume else None
            keep(self.path / "metrics.jsonl", self.progress.round if self.progress else 0)
            self._describe()
            self._metrics = (self.path / "metrics.jsonl").open("a")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Let others work here, also when the last lines do not fit on the disk."""
        try:
            if self._metrics is not None:
                with naming(self._metrics.name):
                    self._metrics.close()
        finally:
            if self._lock is not None:
                self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, resume: bool) -> None:
        """Refuse to begin where something is, and to go on where nothing is."""
        found = self.path.iterdir() if self.path.exists() else ()
        names = {path.name for path in found if path.name != LOCK and path.suffix != ".part"}
        if not resume and names:
            raise UserError(
                f"the run folder {self.path} exists", f"add {self.go_on} to go on with it, or choose another {self.out}"
            )
        if resume and (not self.path.exists() or (names and "config.toml" not in names)):
            raise UserError(
                f"{self.path} holds no {self.holds}", f"leave {self.go_on} out to begin one in a new folder"
            )

    def _found(self) -> Progress | None:
        """What the last checkpoint says; None if the run ended before its first."""
        unchanged(self.path, earlier(self.path / "env.json"), self.config)
        file, finished = self.path / "checkpoint.safetensors", (self.path / "summary.json").exists()
        if not file.exists():
            if finished:
                raise UserError(f"{file} is gone, so nothing can go on from it", checkpoint.ELSEWHERE)
            if (written := self.path / "config.toml").exists():
                checkpoint.agree(written, identity(load(str(written))), identity(self.config))
            return None
        progress, wanted = checkpoint.load(file, identity(self.config)), self.config.rounds
        if progress.round > wanted or (progress.round == wanted and finished):
            raise UserError(
                f"{self.path} has {progress.round} rounds, {wanted} were asked for",
                "ask for more rounds, or make its report with `pfed1bs report`",
            )
        return progress

    def _describe(self) -> None:
        """Write down what the run was told and what it runs on; the summary of fewer rounds goes."""
        tables = {key: value for key, value in as_tables(self.config).items() if key != "out"}
        written(self.path / "config.toml", need("tomli_w", "cli").dumps(tables))
        path = self.path / "env.json"
        before = earlier(path) if self.progress else {}
        facts = started(self.config.device, self.progress.round if self.progress else 0, before) | {**self.facts}
        facts |= {"chunk": self.chunk} if self.chunk else {}
        facts |= {"files": own} if (own := own_files(self.config)) else {}
        written(path, json.dumps(facts, indent=2) + "\n")
        (self.path / "summary.json").unlink(missing_ok=True)

    @property
    def checkpoint_every(self) -> int:
        """Rounds from one checkpoint to the next; 0: only the last one is saved."""
        return self.config.checkpoint_every

    def judged(self, ids: Tensor, scores: dict[str, Score], done: Round) -> Record:
        """Accuracies for the metrics; the last ones also client by client."""
        if not scores:
            return {}
        write_clients(self.path / "clients.csv", ids, done.sizes[ids], scores)
        attack = self.config.attacks
        return scored(scores, attack.by(self.config.clients)[ids] if attack else None)

    def append(self, record: Record, done: Round) -> None:
        """Write down a round; it counts when the state after it is saved."""
        assert self._metrics is not None
        with naming(self._metrics.name):
            self._metrics.write(json.dumps(record) + "\n")
            self._metrics.flush()

    def save(self, progress: Progress) -> None:
        """Write a checkpoint; the lines of its rounds are on disk before it is."""
        assert self._metrics is not None
        os.fsync(self._metrics.fileno())
        checkpoint.save(self.path / "checkpoint.safetensors", progress, identity(self.config))

    def summarise(self, algorithm: Algorithm) -> None:
        """Write down what all rounds came to."""
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        written(self.path / "summary.json", json.dumps(self.summed(lines, algorithm), indent=2) + "\n")

    def summed(self, lines: list[Record], algorithm: Algorithm) -> Options:
        """What all rounds came to."""
        return summarised(self.config, algorithm, lines) | {**self.facts}


def identity(config: Config) -> str:
    """What a checkpoint of this configuration must agree with, as JSON."""
    tables = {key: value for key, value in as_tables(config).items() if key not in free()}
    tables["data"] = {key: value for key, value in asdict(config.data).items() if f"data.{key}" not in free()}
    return json.dumps(tables, sort_keys=True)


def keep(path: Path, rounds: int) -> None:
    """Take out of the metrics what a checkpoint does not know of, a cut last line for instance."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = 0
    while whole < min(rounds, len(lines)) and _round(lines[whole]) == whole:
        whole += 1
    if whole < rounds:
        raise UserError(
            f"line {whole + 1} of {path} is missing or damaged, the checkpoint has {rounds} rounds",
            checkpoint.ELSEWHERE,
        )
    if len(lines) > rounds:
        os.truncate(path, sum(map(len, lines[:rounds])))


def _round(line: bytes) -> int | None:
    """The number of the round that a line of the metrics is about; None if it is not whole."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record.get("round") if isinstance(record, dict) else None


def written(path: Path, text: str) -> None:
    """Write a file all or nothing, on the disk before it has its name."""
    part = path.with_name(path.name + ".part")
    try:
        with naming(part), part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def earlier(path: Path) -> dict[str, object]:
    """What env.json says of the starts before; nothing if it is gone or cut off, for it is not needed to go on."""
    try:
        return json_of(path)
    except (UserError, FileNotFoundError):
        return {}


def json_of(path: Path) -> dict[str, object]:
    """The object in a file that `written` wrote."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged or cut off ({error})", checkpoint.ELSEWHERE) from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no object", checkpoint.ELSEWHERE)
    return found
