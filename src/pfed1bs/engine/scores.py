"""How good the models are: each client's own held-out samples, in evaluation mode."""

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.core.failing import explained
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, Cohort, State
from pfed1bs.engine.exchange import moved, rows
from pfed1bs.engine.memory import fitting
from pfed1bs.engine.rounds import Progress, Schedule, scheduled, where
from pfed1bs.engine.workers import portions, spread


@dataclass(frozen=True)
class Score:
    """Results of one kind of model at all clients, (K,) each."""

    correct: Tensor
    samples: Tensor
    loss: Tensor  # mean cross-entropy

    @property
    def clients(self) -> Tensor:
        """Accuracy of every client, in percent."""
        return 100 * self.correct / self.samples

    @property
    def micro(self) -> float:
        """Right answers among all samples, in percent."""
        return 100 * float(self.correct.sum()) / float(self.samples.sum())

    @property
    def macro(self) -> float:
        """Mean of the clients' accuracies, in percent."""
        return float(self.clients.mean())


def evaluate(
    algorithm: Algorithm,
    data: Federation,
    progress: Progress,
    schedule: Schedule | None = None,
    **fields: int | None,
) -> dict[str, Score]:
    """Scores of "personal", and where the method has them "global", "tuned" and other, models of all K clients.

    Fine-tuning before judging uses the clients' training samples only, as many steps as a round has. `fields` are those
    of a Schedule, in place of one or instead of its own.
    """
    size, device = scheduled(schedule, fields), where(progress)
    data, server = data.to(device), moved(progress.server, device)

    def judge(ids: Tensor) -> dict[str, Score]:
        cohort = Cohort(size.seed, progress.round, ids, data.sizes[ids], progress.seen[ids])
        batches = data.batches(ids, progress.round, size.seed, size.steps, size.batch)
        models = algorithm.personal(server, rows(progress.clients, ids), cohort, batches)
        return {name: score(algorithm, data, model, ids) for name, model in models.items()}

    chunk = size.chunk or fitting(algorithm, progress.clients, data, size.batch, device=device)
    with explained(device, "evaluation", chunk or data.clients):
        parts = spread(judge, portions(data.clients, chunk, device), device)
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def score(algorithm: Algorithm, data: Federation, model: State, ids: Tensor) -> Score:
    """The models of some clients, as `personal` gives them (S, ...), on those clients' test samples."""
    found = torch.zeros(3, len(ids), dtype=torch.float64, device=model["w"].device)  # brought to the CPU at once
    correct, samples, loss = found
    for x, y, mask in data.tests(ids):
        logits = algorithm.predict(model, x)
        entropy = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        correct += ((logits.argmax(-1) == y) & mask).sum(1)
        samples += mask.sum(1)
        loss += (entropy * mask).sum(1).double()
    correct, samples, loss = found.cpu()
    return Score(correct, samples, loss / samples)


def scored(scores: dict[str, Score]) -> dict[str, float | int]:
    """Accuracies for the metrics."""
    own = scores["personal"]
    record: dict[str, float | int] = {
        "accuracy": own.micro,
        "accuracy_macro": own.macro,
        "test_loss": float(own.loss.mean()),
    }
    return record | {f"accuracy_{name}": score.micro for name, score in scores.items() if name != "personal"}


def write_clients(path: Path, ids: Tensor, sizes: Tensor, scores: dict[str, Score]) -> None:
    """The last evaluation, client by client; `sizes` are the training samples of the clients `ids`."""
    own, extra = scores["personal"], [name for name in scores if name != "personal"]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["client", "train_samples", "test_samples", "accuracy", "loss"]
        writer.writerow([*names, *(f"accuracy_{name}" for name in extra)])
        for row, (k, size) in enumerate(zip(ids.tolist(), sizes.tolist(), strict=True)):
            others = [round(float(scores[name].clients[row]), 4) for name in extra]
            samples, loss = int(own.samples[row]), round(float(own.loss[row]), 6)
            writer.writerow([k, size, samples, round(float(own.clients[row]), 4), loss, *others])


def _joined(scores: list[Score]) -> Score:
    fields = ("correct", "samples", "loss")
    return Score(*(torch.cat([getattr(part, field) for part in scores]) for field in fields))
