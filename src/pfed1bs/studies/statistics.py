"""Differences between methods over seeds, with the intervals that a sentence about them needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need

Run = Mapping[str, object]  # label or algorithm, seed, accuracy, ...


@dataclass(frozen=True)
class Difference:
    """How much the first method is ahead of the second, seed by seed."""

    first: str
    second: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.values)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Student's interval for the mean; it says nothing about other partitions or data sets."""
        count = len(self.values)
        if count < 2:
            raise UserError(f"one seed has no interval, got {count}", "run more with --seeds 0,1,2")
        half = float(need("scipy.stats", "data").t.ppf((1 + level) / 2, count - 1)) * stdev(self.values) / sqrt(count)
        return self.mean - half, self.mean + half


def scores(runs: Sequence[Run], key: str = "accuracy") -> dict[str, dict[int, float]]:
    """A number of every run that has it, by method or variant and by seed."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if key in run:
            own = found.setdefault(str(run.get("label", run["algorithm"])), {})
            own[int(str(run["seed"]))] = float(str(run[key]))
    return found


def paired(runs: Sequence[Run], first: str, key: str = "accuracy") -> list[Difference]:
    """The differences of one method to each of the others, over the seeds that both have."""
    found = scores(runs, key)
    if first not in found:
        raise UserError(f"there is no run of {first}", f"there are {', '.join(found)}")
    common = {name: sorted({*found[first]} & {*own}) for name, own in found.items() if name != first}
    return [
        Difference(first, name, tuple(found[first][seed] - found[name][seed] for seed in seeds))
        for name, seeds in common.items()
    ]
