"""A federation's folder at the server: the files of every run, who was not counted, and the name clients know it by."""

import fcntl
import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep, strftime
from typing import IO

from pfed1bs import checkpoint
from pfed1bs.config import Config, Options, UserError
from pfed1bs.evaluate import scored, write_clients
from pfed1bs.flower.link import Link, Size
from pfed1bs.flower.server import Server, start
from pfed1bs.flower.settings import Rules
from pfed1bs.runs import Record, describe, folder_of, identity, keep, method, recorded, summarised
from pfed1bs.simulate import Progress, Round

WIRE = {"up": 8752, "down": 1838}  # bytes that HTTP adds to a question and its answer (results/flower-wire.json)
PATIENCE = 30  # seconds
COMMAND = {"command": "flwr run"}  # the real one holds Flower's token


def serve(link: Link, config: Config, rules: Rules) -> Path:
    """Do all rounds over a link and write them down; the folder."""
    algorithm = method(config, *rules.problem(config))
    folder = Folder(folder_of(config, f"{config.method}-flower-s{config.seed}"), config)
    with folder.opened(start(algorithm, config.clients), rules.resume) as progress:
        server = Server(algorithm, link, config, rules, folder.federation, folder.tell)
        server.roster.pins = folder.pins if rules.pin else None
        before = link.size
        for done in server.rounds(progress):
            record = recorded(done) | {"answers": len(done.cohort.ids)}
            due = done.number == config.rounds - 1 or (done.number + 1) % config.evaluate_every == 0
            record |= folder.judged(server, done) if due and rules.evaluate else {}
            folder.remember(server.roster.pins)
            folder.write(record, link.size.since(before), done)
            before = link.size
        folder.summarise(algorithm.task.n)
    return folder.path


@dataclass(frozen=True)
class Folder:
    """Where a federation is written down."""

    path: Path
    config: Config

    @property
    def federation(self) -> str:
        """The name that tells the clients' states of this federation from others."""
        return str(json.loads((self.path / "federation.json").read_text())["name"])

    @property
    def pins(self) -> dict[int, int]:
        """Which node each client is pinned to."""
        return {int(client): node for client, node in json.loads((self.path / "pins.json").read_text()).items()}

    def remember(self, pins: dict[int, int] | None) -> None:
        """Keep the pins for a server that goes on later."""
        (self.path / "pins.part").write_text(json.dumps(pins or {}) + "\n")
        (self.path / "pins.part").replace(self.path / "pins.json")

    @contextmanager
    def opened(self, first: Progress, resume: bool) -> Iterator[Progress]:
        """The progress to go on from, with the folder locked against a second server."""
        if resume and not (self.path / "federation.json").exists():
            raise UserError(f"{self.path} holds no federation", "leave resume out to begin a new one there")
        if not resume and self.path.exists() and any(self.path.iterdir()):
            raise UserError(f"the run folder {self.path} exists", "add resume=true to go on, or choose another out")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            for waited in range(PATIENCE + 1):  # the server of a SuperLink that was killed lives on for some seconds
                if locked(file):
                    break
                if waited == PATIENCE:
                    raise UserError(f"another server works in {self.path}", "wait until it ends, or end it")
                sleep(1)
            yield self._resumed() if resume else self._begun(first)

    def _begun(self, first: Progress) -> Progress:
        describe(self.config, self.path, COMMAND)
        (self.path / "metrics.jsonl").write_text("")
        self._save(first)
        self.remember(None)
        (self.path / "federation.json").write_text(json.dumps({"name": secrets.token_hex(8)}) + "\n")
        return first

    def _resumed(self) -> Progress:
        progress = checkpoint.load(self.path / "checkpoint.safetensors", identity(self.config))
        if progress.round >= self.config.rounds:
            raise UserError(
                f"{self.path} has {progress.round} rounds, {self.config.rounds} were asked for", "ask for more rounds"
            )
        keep(self.path, progress.round)
        self.tell(f"goes on with round {progress.round}")
        return progress

    def _save(self, progress: Progress) -> None:
        checkpoint.save(self.path / "checkpoint.safetensors", progress, identity(self.config))

    def tell(self, line: str) -> None:
        """Write down what happened, and say it."""
        with (self.path / "events.log").open("a") as file:
            file.write(f"{strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        print(f"pfed1bs: {line}", file=sys.stderr, flush=True)

    def judged(self, server: Server, done: Round) -> Record:
        """The accuracies of those who are there."""
        ids, scores = server.judge(done.progress)
        if not scores:
            return {}
        write_clients(self.path / "clients.csv", ids, server.roster.sizes[ids], scores)
        record = scored(scores)
        self.tell(f"round {done.number}: accuracy {record['accuracy']:.2f} at {len(ids)} clients")
        return record | {"judged": len(ids)}

    def write(self, record: Record, size: Size, done: Round) -> None:
        """A round, on disk before the next one begins: first its line, then the state that makes it count."""
        record |= {"protobuf_up_bytes": size.up, "protobuf_down_bytes": size.down, "protobuf_messages": size.messages}
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        self._save(done.progress)
        counted = " ".join(map(str, done.cohort.ids.tolist()))
        self.tell(f"round {done.number}: counted {counted}, {done.traffic.up} bytes up")

    def summarise(self, parameters: int) -> None:
        """What all rounds came to, with the bytes as they are on each level."""
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        summary = summarised(self.config, parameters, lines) | COMMAND | {"bytes": tiers(lines)}
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def locked(file: IO[str]) -> bool:
    """Whether the file could be locked; the lock ends with the process at the latest."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tiers(lines: list[Record]) -> Options:
    """Bytes of a run on three levels: our messages, Flower's serialised objects, and what HTTP makes of them."""

    def total(key: str) -> int:
        return int(sum(line[key] for line in lines))

    protobuf, messages = {way: total(f"protobuf_{way}_bytes") for way in WIRE}, total("protobuf_messages")
    return {
        "payload": {"up": total("up_bytes"), "down": total("down_bytes"), "once": total("once_bytes")},
        "protobuf": protobuf,
        "wire": {way: protobuf[way] + messages * extra for way, extra in WIRE.items()} | {"estimated": True},
        "messages": messages,
    }
