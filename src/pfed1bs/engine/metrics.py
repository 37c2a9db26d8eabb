"""Numbers that say how good models are, each from sums over test samples, and which way is better."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Sums = Mapping[str, Tensor]  # over samples, with their number "samples" and their "loss"


@dataclass(frozen=True)
class Metric:
    """A metric by its name in metrics.jsonl."""

    name: str
    words: str  # on axes and in tables
    better: Literal["higher", "lower"]
    value: Callable[[Sums], Tensor]
    digits: int = 2  # worth telling

    @property
    def percent(self) -> bool:
        """Whether it is a share, of which differences are points."""
        return "%" in self.words

    @property
    def heading(self) -> str:
        """Its words in the head of a column, without brackets."""
        return self.words.replace("(", "").replace(")", "")

    def told(self, value: float) -> str:
        """The metric with a value."""
        return f"{self.name} {value:.{self.digits}f}"


def _f1(sums: Sums) -> Tensor:
    """The mean over the labels that occur of 2 hits / (said + true), in percent."""
    both = sums["said"] + sums["true"]
    return 100 * torch.where(both > 0, 2 * sums["hits"] / both, torch.nan).nanmean(-1)


def _r2(sums: Sums) -> Tensor:
    """1 - squared error / squared distance from the mean; NaN where all targets are the same."""
    spread = sums["square"] - sums["target"].square() / sums["samples"]
    return torch.where(spread > 0, 1 - sums["squared"] / spread, torch.nan)


def _mean_loss(sums: Sums) -> Tensor:
    return sums["loss"] / sums["samples"]


METRICS = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy (%)", "higher", lambda sums: 100 * sums["correct"] / sums["samples"]),
        Metric("f1", "macro-F1 (%)", "higher", _f1),
        Metric("bits", "bits per character", "lower", lambda sums: _mean_loss(sums) / math.log(2), 4),
        Metric("perplexity", "perplexity", "lower", lambda sums: _mean_loss(sums).exp(), 3),
        Metric("r2", "R\u00b2", "higher", _r2, 4),
        Metric("mae", "mean absolute error", "lower", lambda sums: sums["absolute"] / sums["samples"], 4),
        Metric("test_loss", "test loss", "lower", _mean_loss, 4),
    )
}


def is_percent(key: str) -> bool:
    """Whether a key of metrics.jsonl or summary.json is a share in percent: such a metric, of whichever models."""
    return any(metric.percent and f"{key}_".startswith(f"{name}_") for name, metric in METRICS.items())
