"""How good the models are: each client's own held-out samples, in evaluation mode."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from pfed1bs.core.errors import Failure, naming
from pfed1bs.core.failing import explained
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import moved, rows, tell
from pfed1bs.engine.memory import fitting
from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.engine.rounds import REPLICA, Progress, Schedule, scheduled, where
from pfed1bs.engine.turns import Turn
from pfed1bs.engine.workers import alone, portions, spread
from pfed1bs.nn.losses import Loss

VISIT = "the visit of newcomers"


@dataclass(frozen=True)
class Score:
    """Results of one kind of model at all clients, (K,) each; counts for every label (K, C)."""

    samples: Tensor
    loss: Tensor  # the mean of the client's samples
    counts: Mapping[str, Tensor]  # sums over the client's samples
    metrics: tuple[str, ...] = ("accuracy",)  # what is told, the one that counts first

    @classmethod
    def of(cls, rows: Tensor, shapes: Mapping[str, tuple[int, ...]], metrics: tuple[str, ...]) -> "Score":
        """The score that clients wrote as `flat` rows (K, ...)."""
        *parts, samples, loss = torch.split(rows, [*map(prod, shapes.values()), 1, 1], 1)
        counts = {name: part.view(-1, *shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return cls(samples[:, 0], loss[:, 0], counts, metrics)

    def flat(self) -> list[float]:
        """The counts, samples and loss of a single client, one number after the other."""
        return torch.cat([value.flatten() for value in (*self.counts.values(), self.samples, self.loss)]).tolist()

    def rows(self, at: Tensor) -> "Score":
        """The same of some clients."""
        counts = {name: value[at] for name, value in self.counts.items()}
        return Score(self.samples[at], self.loss[at], counts, self.metrics)

    @property
    def sums(self) -> dict[str, Tensor]:
        """What metrics are made of, of every client."""
        return {"samples": self.samples, "loss": self.loss * self.samples, **self.counts}

    def each(self, name: str) -> Tensor:
        """A metric of every client."""
        return METRICS[name].value(self.sums)

    def pooled(self, name: str) -> float:
        """A metric over all samples."""
        return float(METRICS[name].value({key: value.sum(0) for key, value in self.sums.items()}))

    @property
    def metric(self) -> Metric:
        """The metric that counts."""
        return METRICS[self.metrics[0]]

    @property
    def clients(self) -> Tensor:
        """The metric that counts of every client; accuracy in percent."""
        return self.each(self.metrics[0])

    @property
    def micro(self) -> float:
        """The metric that counts over all samples."""
        return self.pooled(self.metrics[0])

    @property
    def macro(self) -> float:
        """The mean of the clients' metric."""
        return mean(self.clients)


def evaluate(
    algorithm: Algorithm,
    data: Federation,
    progress: Progress,
    schedule: Schedule | None = None,
    **fields: int | None,
) -> dict[str, Score]:
    """Scores of "personal", and where the method has them "global", "tuned" and other, models of all K clients.

    Fine-tuning before judging uses the clients' training samples only, as many steps as a round has. `fields` are those
    of a Schedule, in place of one or instead of its own. Newcomers, who are not there yet, are left out.
    """
    size, device, here = scheduled(schedule, fields), where(progress), data.present
    with explained(device, "evaluation", size.chunk or len(here)):
        data, server = data.to(device), moved(progress.server, device)
        chunk = size.chunk or fitting(algorithm, progress.clients, data, size.batch, device=device)

    def judge(at: Tensor) -> dict[str, Score]:
        ids = here[at]
        cohort = Cohort(size.seed, progress.round, ids, data.sizes[ids], progress.seen[ids])
        batches = data.batches(ids, progress.round, size.seed, size.steps, size.batch)
        models = algorithm.personal(server, rows(progress.clients, ids), cohort, batches)
        return {name: score(algorithm, data, model, ids) for name, model in models.items()}

    with explained(device, "evaluation", chunk):
        parts = spread(judge, portions(len(here), chunk, device), device)
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def visit(
    algorithm: Algorithm, data: Federation, progress: Progress, schedule: Schedule
) -> tuple[dict[str, Score], float]:
    """Scores of the newcomers after one visit, and the mean bytes that each was sent; nothing is kept.

    A visit is the method's ordinary round for a client that was never there: it hears what it has missed, or the
    snapshot, and does its local steps.
    """
    device, ids = where(progress), data.newcomers
    with explained(device, VISIT, schedule.chunk or len(ids)):
        data, server = data.to(device), moved(progress.server, device)
        chunk = schedule.chunk or fitting(algorithm, progress.clients, data, schedule.batch, device=device)
    cohort = Cohort(schedule.seed, progress.round, ids, data.sizes[ids], torch.full((len(ids),), -1))
    with alone(device):
        news = tell(algorithm, progress.server, progress.history, cohort)
    turn = Turn(algorithm, data, progress.clients, news, cohort, schedule.steps, schedule.batch)

    def judge(at: Tensor) -> dict[str, Score]:
        work, some = turn(at), cohort.rows(at)
        if work.differing:
            raise Failure(f"the replica of newcomer {min(work.differing)} is another than the server's", REPLICA)
        batches = data.batches(some.ids, some.round, some.seed, schedule.steps, schedule.batch)
        models = algorithm.personal(server, work.state, some, batches)
        return {name: score(algorithm, data, model, some.ids) for name, model in models.items()}

    with explained(device, VISIT, chunk):
        parts = spread(judge, portions(len(ids), chunk, device), device)
    sent = sum(len(item.data) for items in news for item in items) / len(ids)
    return {name: joined([part[name] for part in parts]) for name in parts[0]}, sent


def score(algorithm: Algorithm, data: Federation, model: State, ids: Tensor) -> Score:
    """The models of some clients, as `personal` gives them (S, ...), on those clients' test samples."""
    return answered(algorithm.task.loss, ((algorithm.predict(model, x), y, mask) for x, y, mask in data.tests(ids)))


def answered(loss: Loss, answers: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Score:
    """The score of outputs (S, E, ...) for targets, where the mask (S, E) is true."""
    sums = dict[str, Tensor]()
    for outputs, y, mask in answers:
        of_samples = {"samples": torch.ones_like(mask), "loss": loss.samples(outputs, y)}
        for name, value in {**loss.counts(outputs, y), **of_samples}.items():
            here = mask if value.dim() == 2 else mask.unsqueeze(2)
            sums[name] = sums.get(name, 0) + (value * here).sum(1).double()
    sums["loss"] = sums["loss"] / sums["samples"]
    found = torch.cat([value.flatten(1) if value.dim() > 1 else value[:, None] for value in sums.values()], 1).cpu()
    shapes = {name: tuple(value.shape[1:]) for name, value in sums.items() if name not in of_samples}
    return Score.of(found, shapes, loss.metrics)  # brought to the CPU at once


def scored(scores: dict[str, Score], liars: Tensor | None = None) -> dict[str, float | int]:
    """Metrics for the record: those of the personal models, and the one that counts of the others.

    Where `liars` (K,) is true of some clients, they count no more; their own metric stands apart.
    """
    if liars is not None and bool(liars.any()) and not bool(liars.all()):
        honest, others = ({k: one.rows(at) for k, one in scores.items()} for at in (~liars, liars))
        apart = {f"{one.metrics[0]}_attackers": one.micro for one in [others["personal"]]}
        return {**scored(honest), **apart}
    own = scores["personal"]
    record: dict[str, float | int] = {}
    for name in own.metrics:
        record |= {name: own.pooled(name), f"{name}_macro": mean(own.each(name))}
    record["test_loss"] = float(own.loss.mean())
    counts = own.metrics[0]
    return record | {f"{counts}_{name}": score.micro for name, score in scores.items() if name != "personal"}


def write_clients(path: Path, ids: Tensor, sizes: Tensor, scores: dict[str, Score]) -> None:
    """The last evaluation, client by client; `sizes` are the training samples of the clients `ids`."""
    own, extra = scores["personal"], [name for name in scores if name != "personal"]
    metric = own.metrics[0]
    with naming(path), path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["client", "train_samples", "test_samples", metric, "loss"]
        writer.writerow([*names, *(f"{metric}_{name}" for name in extra)])
        for row, (k, size) in enumerate(zip(ids.tolist(), sizes.tolist(), strict=True)):
            others = [round(float(scores[name].clients[row]), 4) for name in extra]
            samples, loss = int(own.samples[row]), round(float(own.loss[row]), 6)
            writer.writerow([k, size, samples, round(float(own.clients[row]), 4), loss, *others])


def mean(values: Tensor) -> float:
    """The mean of the clients for which a metric exists."""
    return float(values[~values.isnan()].mean())


def joined(scores: list[Score]) -> Score:
    """The scores of all portions, one after the other."""
    first = scores[0]
    counts = {name: torch.cat([part.counts[name] for part in scores]) for name in first.counts}
    samples, loss = (torch.cat([getattr(part, field) for part in scores]) for field in ("samples", "loss"))
    return Score(samples, loss, counts, first.metrics)
