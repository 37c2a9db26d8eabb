"""A run: one configuration with its data, its method and its folder."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from pfed1bs.algorithms import make
from pfed1bs.core.errors import UserError
from pfed1bs.data import Federation, federate, load
from pfed1bs.data.normalise import with_constants
from pfed1bs.data.synthetic import is_synthetic, synthetic
from pfed1bs.engine.attacking import attacking, poisoned
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.memory import fitting
from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.engine.rest import resting
from pfed1bs.engine.rounds import Progress, Round, Schedule, choose, simulate
from pfed1bs.engine.scores import Score, evaluate, visit
from pfed1bs.nn.losses import loss_of
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs import diagnostics
from pfed1bs.runs.checkpoint import STATES
from pfed1bs.runs.config import Config, DataConfig, Options
from pfed1bs.runs.folder import RunFolder, written
from pfed1bs.runs.late import due
from pfed1bs.runs.precision import multiply
from pfed1bs.runs.recording import record, terminable
from pfed1bs.runs.summary import Record

SHOWN = 1000  # clients whose labels are written down


@dataclass(frozen=True)
class Simulator:
    """Rounds on this machine."""

    algorithm: Algorithm
    data: Federation
    config: Config
    states: Path | None = None  # the folder for clients' states that do not fit memory

    @property
    def schedule(self) -> Schedule:
        """How long the run is, and how much work a round has."""
        config = self.config
        size = (config.rounds, config.sampled, config.steps, config.batch)
        return Schedule(*size, config.seed_of("batches"), config.chunk)

    def rounds(self, resume: Progress | None) -> Iterator[Round]:
        """The rounds after this progress, those that are judged with diagnostics."""
        config = self.config
        rounds = simulate(
            self.algorithm,
            self.data,
            self.schedule,
            device=config.device,
            resume=resume,
            trust=config.trust,
            states=self.states,
        )
        for done in rounds:
            judged = done.last or due(done.number, config.evaluate_every, config.rounds)
            last = (done.last or done.number == config.rounds - 1) and len(self.data.newcomers) > 0
            notes = (self._noted(done) if judged else {}) | (self._visited(done) if last else {})
            yield replace(done, notes=notes)

    def judge(self, now: Progress) -> tuple[Tensor, dict[str, Score]]:
        """All clients but newcomers, and how good their models are."""
        return self.data.present, evaluate(self.algorithm, self.data, now, self.schedule)

    def _visited(self, done: Round) -> Record:
        """How good the newcomers' models are after one visit, and what it took to tell them."""
        scores, sent = visit(self.algorithm, self.data, done.progress, self.schedule)
        metric = self.algorithm.task.loss.metrics[0]
        named = {"personal": f"{metric}_newcomers"} | {
            name: f"{metric}_newcomers_{name}" for name in scores if name != "personal"
        }
        return {named[name]: score.micro for name, score in scores.items()} | {"newcomer_bytes": sent}

    def _noted(self, done: Round) -> Record:
        """How far signs are apart within and between groups of clients with the same labels, and Psi on request.

        Where signs are watched, the clients' models are, too: equal signs need not be equal models.
        """
        groups = diagnostics.label_groups(self.data)[done.cohort.ids]
        notes = diagnostics.apart(self.algorithm.up, done.log, groups)
        if notes:
            notes["models_apart"] = diagnostics.distance(rows(done.progress.clients, done.cohort.ids)["w"])
        if self.config.potential:
            notes |= diagnostics.potentials(self.algorithm, self.data, done.progress, self.config.chunk)
        return notes


@dataclass(frozen=True)
class Run:
    """One configuration with its data, its method and its folder."""

    config: Config
    folder: Path
    samples: Callable[[Config], Federation]  # where its data come from, when they are needed

    @classmethod
    def prepare(
        cls, config: Config, folder: Path | None = None, samples: Callable[[Config], Federation] | None = None
    ) -> "Run":
        """Choose the folder; nothing is loaded or written yet."""
        if config.threads:
            torch.set_num_threads(config.threads)
        return cls(config, folder or folder_of(config, f"{config.method}-s{config.seed}"), samples or federation)

    @cached_property
    def data(self) -> Federation:
        """The samples of all clients."""
        return self.samples(self.config)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method on the model."""
        return method(self.config, self.data.shape, self.data.num_classes)

    def rounds(self, resume: bool = False) -> Iterator[Record]:
        """Do the rounds, write them down, and yield what is written; Ctrl-C, SIGTERM and errors leave a checkpoint."""
        multiply(choose(self.config.device), self.config.tf32)
        _, one = self.algorithm.init(1)  # the user's options are checked before anything is written
        config, given = self.config, (self.algorithm, one, self.data)
        chunk = config.chunk or fitting(*given, config.batch, config.sampled, choose(config.device))
        source = Simulator(self.algorithm, self.data, replace(config, chunk=chunk), self.folder / STATES)
        with terminable(), RunFolder(self.folder, config, chunk).open(resume) as folder:
            written(self.folder / "normalise.json", json.dumps(self.data.described) + "\n")
            if self.data.labelled and self.data.clients <= SHOWN:
                written(self.folder / "labels.csv", held(self.data))
            yield from record(source, folder, source.schedule)
            folder.summarise(self.algorithm)

    @property
    def summary(self) -> Options:
        """The summary of the finished run."""
        found: Options = json.loads((self.folder / "summary.json").read_text())
        return found


def held(data: Federation) -> str:
    """Training samples of every client by label, as CSV."""
    lines = [["client", *range(data.num_classes)]]
    lines += [[client, *counts] for client, counts in enumerate(data.table()[0].tolist())]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


def method(config: Config, shape: tuple[int, ...], classes: int) -> Algorithm:
    """The method of a run on its model, for samples of this shape."""
    model, seed = build(config.model.name, shape, classes), config.seed_of("batches")
    task = Task(model, config.model.loss, metric=config.metric, bn=config.model.bn, seed=seed)
    honest = resting(make(config.method, task, config.seed_of("init"), **config.chosen), config.rest)
    return attacking(honest, config.attacks)


def judged_by(config: Config) -> Metric:
    """What the models of a run are judged by."""
    return METRICS[loss_of(config.model.loss, config.metric).metrics[0]]


def federation(config: Config) -> Federation:
    """The data of a run, given to its clients."""
    part = config.data
    if is_synthetic(part.name):
        return drawn(config)
    options = (part.cap, config.seed_of("partition"), part.min_size, part.augment, part.validate)
    samples = load(part.name, part.root)
    samples = with_constants(samples, part.constants) if part.constants else samples
    given = (part.partition, part.split, *options, part.normalise, part.newcomers)
    return poisoned(federate(samples, config.clients, *given), config.attacks)


def drawn(config: Config) -> Federation:
    """Clients that draw their own samples; what would change samples of a data set is refused."""
    part, plain = config.data, DataConfig()
    for key in ("split", "augment", "validate", "normalise", "constants", "root"):
        if getattr(part, key) != getattr(plain, key):
            raise UserError(f"data.{key} changes samples of a data set, and {part.name} has none", "leave it out")
    if config.attacks and config.attacks.kind in ("counts", "label-flip"):
        raise UserError(f"the attack {config.attacks.kind} needs a data set, and {part.name} is none", "choose another")
    return synthetic(part.name, config.clients, part.partition, part.cap, config.seed_of("partition"), part.newcomers)


def folder_of(config: Config, label: str) -> Path:
    """The folder the user asked for, or a new one under runs/ with time, data set and label in its name."""
    if config.out:
        return Path(config.out)
    name = Path(config.data.name).stem.replace(":", "-")
    base = Path("runs") / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M')}-{name}-{label}"
    names = (base.with_name(f"{base.name}-{i}") if i > 1 else base for i in range(1, 1000))
    return next(name for name in names if not name.exists())
