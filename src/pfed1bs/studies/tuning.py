"""Hyper-parameters from the same small grid for all methods, judged on a quarter of the clients' training samples.

The step size of the clients takes the same four values for every method, and one more option takes three in those
methods that have a knob of their own. The best mean over the seeds wins. Test samples choose nothing (data.validate).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean

from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.engine.rounds import Diverged
from pfed1bs.nn.losses import loss_of
from pfed1bs.runs.config import Config
from pfed1bs.runs.run import Run
from pfed1bs.studies.comparison import Variant, agree, complete, entries, prepared

STEPS = (0.005, 0.02, 0.05, 0.1)
KNOBS: dict[str, tuple[str, tuple[float, ...]]] = {  # the option besides lr
    "pfed1bs": ("lam", (5e-5, 5e-4, 5e-2)),
    "pfed1bs-delta": ("lam", (0.03, 0.1, 0.3)),
    "obda": ("step", (0.002, 0.005, 0.01)),
    "signsgd": ("step", (0.002, 0.005, 0.01)),
    "zsign": ("sigma", (0.03, 0.1, 0.3)),
    "obcsaa": ("server_lr", (0.5, 1.0, 2.0)),
    "ditto": ("lam", (0.03, 0.1, 0.3)),
    "pfedme": ("lam", (1.5, 5.0, 15.0)),  # from 20 on its step overshoots (meta_lr * lam)
    "fedprox": ("prox", (0.001, 0.01, 0.1)),
    "fedrep": ("head_share", (0.2, 0.5, 0.8)),
    "perfedavg": ("alpha", (0.01, 0.03, 0.1)),
    "apfl": ("alpha", (0.25, 0.5, 0.75)),
    "fedproto": ("lam", (0.3, 1.0, 3.0)),
    "dispfl": ("density", (0.3, 0.5, 0.8)),
}


@dataclass(frozen=True)
class Tried:
    """A point of the grid and its validation accuracies or other metrics, one per seed."""

    variant: Variant
    scores: tuple[float, ...]
    better: str = "higher"

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.scores)


def grid(method: str) -> list[Variant]:
    """The points of a method."""
    knob, values = KNOBS.get(method, ("", (0.0,)))
    return [Variant(method, {"lr": lr, **({knob: value} if knob else {})}) for lr, value in product(STEPS, values)]


def trials(config: Config, method: str, seeds: Sequence[int], folder: Path) -> list[Tried]:
    """Run all points of a method; finished runs in the folder are taken as they are."""
    aside = replace(config, data=replace(config.data, validate=True), evaluate_every=config.rounds)
    points = grid(method)
    planned = entries(aside, points, seeds)
    agree(planned, folder)
    scores = [score(run) for run in prepared(planned, folder)]  # seed by seed
    better = metric_of(config).better
    return [Tried(point, tuple(scores[i :: len(points)]), better) for i, point in enumerate(points)]


def best(found: Sequence[Tried]) -> Tried:
    """The best mean; of equal ones the first."""
    return max(found, key=lambda trial: trial.mean if trial.better == "higher" else -trial.mean)


def score(run: Run) -> float:
    """The metric of a run; a step that diverges is a result, 0 or infinite, not an end."""
    metric = metric_of(run.config)
    try:
        complete(run)
    except Diverged:
        return 0.0 if metric.better == "higher" else inf
    return float(str(run.summary[metric.name]))


def metric_of(config: Config) -> Metric:
    """What the models of a run are judged by."""
    return METRICS[loss_of(config.model.loss, config.metric).metrics[0]]
