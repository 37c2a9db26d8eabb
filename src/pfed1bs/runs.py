"""A run and its folder: configuration, environment, metrics, checkpoint, summary."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import torch

from pfed1bs import checkpoint, diagnostics
from pfed1bs.algorithm import Algorithm
from pfed1bs.algorithms import make
from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.config import Config, Options, UserError, as_tables, free
from pfed1bs.data import Federation, federate, load
from pfed1bs.environment import argv, commit, environment
from pfed1bs.evaluate import Score, evaluate, scored, write_clients
from pfed1bs.exchange import listen
from pfed1bs.extras import need
from pfed1bs.models import build
from pfed1bs.simulate import Progress, Round, simulate
from pfed1bs.task import Task

MIB = 2**20
FREE = free()
Record = dict[str, float | int]


@dataclass(frozen=True)
class Run:
    """One configuration with its data, its method and its folder."""

    config: Config
    folder: Path
    data: Federation

    @classmethod
    def prepare(cls, config: Config, folder: Path | None = None, data: Federation | None = None) -> "Run":
        """Load the data and choose the folder; nothing is written yet."""
        if config.threads:
            torch.set_num_threads(config.threads)
        return cls(config, folder or folder_of(config, f"{config.method}-s{config.seed}"), data or federation(config))

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method on the model."""
        return method(self.config, self.data.shape, self.data.num_classes)

    @cached_property
    def identity(self) -> str:
        """What a checkpoint must agree with, as JSON."""
        return identity(self.config)

    def rounds(self, resume: bool = False) -> Iterator[Record]:
        """Do the rounds, write them down, and yield what is written; Ctrl-C and errors leave a checkpoint behind."""
        progress = self._open(resume)
        config, last = self.config, progress
        saved = -1 if progress is None else progress.round
        size = {"steps": config.steps, "batch": config.batch, "seed": config.seed, "chunk": config.chunk}
        options = {"rounds": config.rounds, "sampled": config.sampled, "device": config.device, "resume": progress}
        with (self.folder / "metrics.jsonl").open("a") as metrics:
            try:
                for done in simulate(self.algorithm, self.data, **size, **options):  # type: ignore[arg-type]
                    final = done.number == config.rounds - 1
                    record = recorded(done)
                    if final or (done.number + 1) % config.evaluate_every == 0:
                        scores = evaluate(self.algorithm, self.data, done.progress, **size)  # type: ignore[arg-type]
                        record |= self._judged(scores, done)
                    metrics.write(json.dumps(record) + "\n")
                    metrics.flush()
                    last = done.progress
                    if final or (config.checkpoint_every and last.round % config.checkpoint_every == 0):
                        self._save(last)
                        saved = last.round
                    yield record
            finally:
                if last is not None and last.round > saved:
                    self._save(last)
        if last is not None:
            self._summarise()

    def _save(self, progress: Progress) -> None:
        checkpoint.save(self.folder / "checkpoint.safetensors", progress, self.identity)

    def _open(self, resume: bool) -> Progress | None:
        """Make the folder, or find the checkpoint in it."""
        self.algorithm.init(1)  # the user's options are checked before anything is written
        if resume:
            progress = checkpoint.load(self.folder / "checkpoint.safetensors", self.identity)
            if progress.round >= self.config.rounds:
                raise UserError(
                    f"{self.folder} has {progress.round} rounds, {self.config.rounds} were asked for",
                    f"go on with --rounds {2 * progress.round}, or make its report with `pfed1bs report`",
                )
            keep(self.folder, progress.round)
            return progress
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UserError(
                f"the run folder {self.folder} exists", "add --resume to go on with it, or choose another --out"
            )
        describe(self.config, self.folder)
        return None

    def _judged(self, scores: dict[str, Score], done: Round) -> Record:
        """Accuracies for the metrics; the last ones also client by client."""
        write_clients(self.folder / "clients.csv", torch.arange(self.data.clients), self.data.sizes, scores)
        return scored(scores) | self._diagnosed(done)

    def _diagnosed(self, done: Round) -> Record:
        """How far sketches are apart within and between groups of clients with the same labels, and Psi on request."""
        method = self.algorithm
        if not isinstance(method, PFed1BS):
            return {}
        sketches = torch.stack([message["sketch"] for message in listen(method, done.uplinks, done.cohort, done.known)])
        groups = diagnostics.label_groups(self.data)[done.cohort.ids]
        within, between = diagnostics.group_hamming(diagnostics.hamming(sketches, method.sketch.m), groups)
        record: Record = {"hamming_within": within, "hamming_between": between}
        if self.config.potential:
            now = done.progress
            record["potential"] = diagnostics.potential(
                method, self.data, now.server, now.clients, round=now.round, chunk=self.config.chunk
            )
        return {name: value for name, value in record.items() if value == value}  # without pairs there is no mean

    def _summarise(self) -> None:
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        summary = summarised(self.config, self.algorithm.task.n, lines)
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

    @property
    def summary(self) -> Options:
        """The summary of the finished run."""
        found: Options = json.loads((self.folder / "summary.json").read_text())
        return found


def method(config: Config, shape: tuple[int, ...], classes: int) -> Algorithm:
    """The method of a run on its model, for samples of this shape."""
    options = {key: value for key, value in config.algorithm.items() if key != "name"}
    task = Task(build(config.model.name, shape, classes), bn=config.model.bn)
    return make(config.method, task, config.seed, **options)


def identity(config: Config) -> str:
    """What a checkpoint of this configuration must agree with, as JSON."""
    tables = {key: value for key, value in as_tables(config).items() if key not in FREE}
    tables["data"] = {key: value for key, value in asdict(config.data).items() if key != "root"}
    return json.dumps(tables, sort_keys=True)


def describe(config: Config, folder: Path, facts: Mapping[str, object] | None = None) -> None:
    """Make the folder of a run, and write down what it was told and what it runs on; `facts` overrule what is found."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {key: value for key, value in as_tables(config).items() if key != "out"}
    (folder / "config.toml").write_text(need("tomli_w", "cli").dumps(tables))
    (folder / "env.json").write_text(json.dumps(environment(config.device) | {**(facts or {})}, indent=2) + "\n")


def keep(folder: Path, rounds: int) -> None:
    """Take out of the metrics what a checkpoint does not know of."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:rounds]))


def federation(config: Config) -> Federation:
    """The data of a run, given to its clients."""
    part = config.data
    options = (part.partition, part.split, part.cap, config.seed, part.min_size, part.augment, part.validate)
    return federate(load(part.name, part.root), config.clients, *options)


def recorded(done: Round) -> Record:
    """One line of metrics.jsonl; values of clients as their mean."""
    cost = {f"{name}_bytes": value for name, value in asdict(done.traffic).items()}
    log = {name: float(value.double().mean()) for name, value in done.log.items()}
    return {"round": done.number, **cost, "seconds": round(done.seconds, 6), **log}


def summarised(config: Config, n: int, lines: list[Record]) -> Options:
    """What a finished run comes to: the last round, never the best one."""
    last, total = (
        lines[-1],
        {key: sum(line[f"{key}_bytes"] for line in lines) for key in ("up", "down", "broadcast", "once")},
    )
    sampled = config.sampled or config.clients
    sent = total["up"] + total["down"]
    scores = {key: value for key, value in last.items() if key.startswith("accuracy")}
    return {
        "algorithm": config.method,
        "dataset": config.data.name,
        "partition": config.data.partition,
        "cap": config.data.cap,
        "model": config.model.name,
        "parameters": n,
        "clients": config.clients,
        "sampled": sampled,
        "seed": config.seed,
        "rounds": len(lines),
        **scores,
        "mib_per_round": sent / MIB / len(lines),
        "total_mib": (sent + total["once"]) / MIB,
        "up_mib": total["up"] / MIB,
        "down_mib": total["down"] / MIB,
        "broadcast_mib": total["broadcast"] / MIB,
        "once_bytes": total["once"],
        "ratio_to_fedavg": sent / len(lines) / (8 * n * sampled),
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "version": version("pfed1bs"),
        "commit": commit(),
        "command": argv(),
    }


def folder_of(config: Config, label: str) -> Path:
    """The folder the user asked for, or a new one under runs/ with time, data set and label in its name."""
    if config.out:
        return Path(config.out)
    name = Path(config.data.name).stem.replace(":", "-")
    base = Path("runs") / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M')}-{name}-{label}"
    names = (base.with_name(f"{base.name}-{i}") if i > 1 else base for i in range(1, 1000))
    return next(name for name in names if not name.exists())
