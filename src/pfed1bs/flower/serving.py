"""A federation's folder at the server: the files of every run, who was not counted, and the name clients know it by."""

import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import strftime
from typing import ClassVar, Self

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.rounds import Progress, Round, Schedule
from pfed1bs.engine.scores import Score
from pfed1bs.flower.link import Link, Size
from pfed1bs.flower.server import Server
from pfed1bs.flower.settings import Rules
from pfed1bs.runs import checkpoint
from pfed1bs.runs.config import Config, Options
from pfed1bs.runs.folder import RunFolder, json_of, written
from pfed1bs.runs.recording import record
from pfed1bs.runs.run import folder_of, method
from pfed1bs.runs.summary import Record

WIRE = {"up": 8752, "down": 1838}  # bytes that HTTP adds to a question and its answer (results/flower-wire.json)


def serve(link: Link, config: Config, rules: Rules, told: str = "") -> Path:
    """Do all rounds over a link and write them down; the folder. `told`: what clients must know of the run besides."""
    algorithm = method(config, *rules.problem(config))
    path = folder_of(config, f"{config.method}-flower-s{config.seed}")
    with Folder(path, config).open(rules.resume) as folder:
        written(path / "normalise.json", json.dumps(rules.about(config)) + "\n")
        folder.name(asdict(rules))
        server = Server(algorithm, link, config, rules, folder.federation, folder.event, told)
        server.roster.pins = folder.pins if rules.pin else None
        folder.server, folder.counted = server, link.size
        for _ in record(Federated(server, rules), folder, Schedule(config.rounds)):
            pass
        folder.summarise(algorithm)
    return path


@dataclass(frozen=True)
class Federated:
    """The rounds of a server, whose clients are judged only if the rules say so."""

    server: Server
    rules: Rules

    def rounds(self, resume: Progress | None) -> Iterator[Round]:
        """The rounds after this progress."""
        return self.server.rounds(resume)

    def judge(self, now: Progress) -> tuple[Tensor, dict[str, Score]]:
        """Those who are there, and how good their models are."""
        return self.server.judge(now) if self.rules.evaluate else (torch.empty(0, dtype=torch.int64), {})


@dataclass
class Folder(RunFolder):
    """Where a federation is written down: every round is saved before the next one begins."""

    server: Server = field(init=False, repr=False)
    counted: Size = field(init=False, repr=False)  # what the link had carried when the last round was written down
    _closed: str = field(init=False, default="")

    holds: ClassVar[str] = "federation"
    go_on: ClassVar[str] = "resume=true"
    out: ClassVar[str] = "out"
    patience: ClassVar[int] = 30  # the server of a SuperLink that was killed lives on for some seconds
    facts: ClassVar[Mapping[str, object]] = {"command": "flwr run"}  # the real one holds Flower's token
    checkpoint_every: ClassVar[int] = 1

    @property
    def federation(self) -> str:
        """The name that tells the clients' states of this federation from others."""
        found = json_of(self.path / "federation.json")
        if not isinstance(found.get("name"), str):
            raise UserError(f"{self.path / 'federation.json'} says no name", checkpoint.ELSEWHERE)
        return str(found["name"])

    def name(self, rules: Options, federation: str = "") -> None:
        """Write down the federation's name, and the rules that it goes on by."""
        about = {"name": federation or self.federation, "rules": rules}
        written(self.path / "federation.json", json.dumps(about) + "\n")

    @property
    def pins(self) -> dict[int, int]:
        """Which node each client is pinned to."""
        found = json_of(self.path / "pins.json")
        if not all(client.isdecimal() and isinstance(node, int) for client, node in found.items()):
            raise UserError(f"{self.path / 'pins.json'} must name a node for every client", checkpoint.ELSEWHERE)
        return {int(client): int(str(node)) for client, node in found.items()}

    def remember(self, pins: dict[int, int] | None) -> None:
        """Keep the pins for a server that goes on later."""
        written(self.path / "pins.json", json.dumps(pins or {}) + "\n")

    def open(self, resume: bool = False) -> Self:
        """As every run, with a name for what clients keep; going on is an event."""
        super().open(resume)
        if not (self.path / "federation.json").exists():
            self.remember(None)
            self.name({}, secrets.token_hex(8))
        if resume:
            self.event(f"goes on with round {self.progress.round if self.progress else 0}")
        return self

    def event(self, line: str) -> None:
        """Write down what happened, and say it."""
        with (self.path / "events.log").open("a", encoding="utf-8") as file:
            file.write(f"{strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        print(f"pfed1bs: {line}", file=sys.stderr, flush=True)

    def judged(self, ids: Tensor, scores: dict[str, Score], done: Round) -> Record:
        """The accuracies of those who are there."""
        line = super().judged(ids, scores, replace(done, sizes=self.server.roster.sizes))  # some may have come since
        if not line:
            return {}
        metric = scores["personal"].metric
        self.event(f"round {done.number}: {metric.told(line[metric.name])} at {len(ids)} clients")
        middle = float(scores["personal"].clients.nanmedian())  # a client that lies about its score moves it little
        return line | {f"{metric.name}_median": middle, "judged": len(ids)}

    def append(self, record: Record, done: Round) -> None:
        """Write down a round with what the link has carried for it."""
        size, self.counted = self.server.link.size.since(self.counted), self.server.link.size
        tier = {"protobuf_up_bytes": size.up, "protobuf_down_bytes": size.down, "protobuf_messages": size.messages}
        self.remember(self.server.roster.pins)
        super().append({**record, "answers": len(done.cohort.ids), **tier}, done)
        self._closed = f"counted {' '.join(map(str, done.cohort.ids.tolist()))}, {done.traffic.up} bytes up"

    def save(self, progress: Progress) -> None:
        """Save the state that makes a round count, then say that it does."""
        super().save(progress)
        self.event(f"round {progress.round - 1}: {self._closed}")

    def summed(self, lines: list[Record], algorithm: Algorithm) -> Options:
        """What all rounds came to, with the bytes as they are on each level."""
        return super().summed(lines, algorithm) | {"bytes": tiers(lines)}


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
