"""Differences between methods, seed by seed, with the intervals and tests that a sentence about them needs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import copysign, inf, sqrt
from statistics import fmean, stdev
from typing import Any, cast

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.report.groups import Spread
from pfed1bs.report.records import metric_of
from pfed1bs.runs.late import LATE

Run = Mapping[str, object]  # label or algorithm, seed, metric and its value, ...
LEVEL, MARGIN = 0.95, 0.3  # of the intervals; points within which two methods count as equal
TAIL = "_late"  # after the name of a metric: the mean of the last evaluations
MOST = 10  # comparisons that are tested together
NOISE = 1e-12  # of differences: equal shares of counts differ by less as floats, others by more


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

    @cached_property
    def error(self) -> float:
        """The standard error of the mean."""
        if len(self.values) < 2:
            raise UserError(f"one seed has no interval, got {len(self.values)}", "run more with --seeds 0,1,2")
        found = stdev(self.values) / sqrt(len(self.values))
        return found if found > NOISE else 0.0

    @property
    def testable(self) -> bool:
        """Whether a t-test says something: of one seed, or of differences that are all the same number, it does not."""
        return len(self.values) > 1 and (self.error > 0 or abs(self.mean) <= NOISE)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Student's interval for the mean; it says nothing about other partitions or data sets."""
        if len(self.values) > 1 and level == LEVEL:  # without scipy
            return cast(tuple[float, float], Spread.of(self.values).interval)
        half = self.error * float(self._student.ppf((1 + level) / 2))
        return self.mean - half, self.mean + half

    def different(self) -> float:
        """The p-value of the paired t-test: how rarely seeds alone would make such a difference."""
        return min(1.0, 2 * float(self._student.sf(abs(self._distance(0.0)))))

    def equal(self, margin: float = MARGIN) -> float:
        """The p-value of two one-sided tests: small where the difference lies within the margin on both sides."""
        return float(max(self._student.sf(self._distance(-margin)), self._student.cdf(self._distance(margin))))

    def _distance(self, other: float) -> float:
        """The mean's distance from another, in standard errors."""
        apart = self.mean - other
        return apart / self.error if self.error else copysign(inf, apart) if abs(apart) > NOISE else 0.0

    @cached_property
    def _student(self) -> Any:  # noqa: ANN401 (scipy has no types)
        return need("scipy.stats", "data").t(max(len(self.values) - 1, 1))


@dataclass(frozen=True)
class Verdict:
    """A method beside the one it is compared with; None where there is one seed, or nothing was tested."""

    method: str
    seeds: int
    difference: float  # its points, or another metric, minus the other's, last round
    interval: tuple[float, float] | None
    p: float | None  # of the paired t-test, with Holm's correction over all comparisons that were tested
    equal: float | None  # p-value of a difference within the margin of points
    late: float | None  # the difference in the mean of the last evaluations
    late_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Against:
    """Which method the others are compared with, and which of the comparisons are tested."""

    method: str
    tested: tuple[str, ...] | None = None  # None: all, unless they are too many
    tests: bool = True  # otherwise differences and intervals alone, which need no scipy

    @classmethod
    def asked(cls, method: str | None, tested: str | None) -> "Against | None":
        """What --against and --tested say."""
        if method is None and tested is not None:
            raise UserError("--tested needs a method to test against", "add --against NAME")
        return None if method is None else cls(method, None if tested is None else tuple(tested.split(",")))

    def verdicts(self, runs: Sequence[Run]) -> list[Verdict]:
        """Every other method, in the order of the runs."""
        metric = metric_of(runs[0])
        keys = metric.name, f"{metric.name}{TAIL}"
        last, late = ({item.first: item for item in paired(runs, self.method, key)} for key in keys)
        tested = [name for name in self.named([*last]) if self.tests and last[name].testable]
        p = dict(zip(tested, holm([last[name].different() for name in tested]), strict=True))
        return [
            Verdict(
                method=name,
                seeds=len(item.values),
                difference=item.mean,
                interval=_interval(item),
                p=p.get(name),
                equal=item.equal() if item.testable and metric.percent and self.tests else None,
                late=late[name].mean if name in late else None,
                late_interval=_interval(late.get(name)),
            )
            for name, item in last.items()
        ]

    def named(self, others: Sequence[str]) -> tuple[str, ...]:
        """The comparisons that are tested; none where nobody chose among too many."""
        if self.tested is None:
            return tuple(others) if len(others) <= MOST else ()
        for name in self.tested:
            if name not in others:
                raise UserError(f"there is no run of {name} to test", f"there are {', '.join(others)}")
        if len(self.tested) > MOST:
            raise UserError(f"at most {MOST} comparisons are tested together, got {len(self.tested)}", "name fewer")
        return self.tested

    def plain(self, runs: Sequence[Run]) -> dict[str, object]:
        """The verdicts for a file."""
        found = self.verdicts(runs)
        tested = [item.method for item in found if item.p is not None]
        asked = {"against": self.method, "level": LEVEL, "margin": MARGIN, "tested": tested}
        return {**asked, "differences": [asdict(item) for item in found]}

    def explained(self, runs: Sequence[Run]) -> str:
        """What the columns with p say, in words; nothing where nothing was tested."""
        found = self.verdicts(runs)
        tests = sum(item.p is not None for item in found)
        words = (
            "p if equal: how often seeds alone would show so large a difference between methods that are equal, "
            f"corrected for {tests} comparisons (Holm)." if tests else ""
        )  # fmt: skip
        if any(item.equal is not None for item in found):
            words += (
                f" p if {MARGIN} apart: how often they would show so small a difference between methods that are "
                f"{MARGIN} points or more apart."
            )
        return words and f"{words.strip()} Small means below 0.05."

    def sheet(self, runs: Sequence[Run]) -> list[list[str]]:
        """Heads and lines of a table in words."""
        found = self.verdicts(runs)
        metric = metric_of(runs[0])
        unit, digits = "points" if metric.percent else metric.name, metric.digits
        heads = ["method", unit, "95 %\ninterval"]
        heads += ["p if\nequal", f"p if {MARGIN}\napart"] if self.tests else []
        heads += [f"last {LATE}\n{unit}", "95 %\ninterval"]
        lines = [
            [
                *(item.method, f"{item.difference:+.{digits}f}", ranged(item.interval, digits, "+")),
                *((chance(item.p), chance(item.equal)) if self.tests else ()),
                "" if item.late is None else f"{item.late:+.{digits}f}",
                ranged(item.late_interval, digits, "+"),
            ]
            for item in found
        ]
        return [heads, *lines]


def holm(p: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected: the smallest of k times k, the next times k - 1, and none falls."""
    corrected, least = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        least = max(least, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = least
    return corrected


def scores(runs: Sequence[Run], key: str = "accuracy") -> dict[str, dict[int, float]]:
    """A number of every run that has it, by method or variant and by seed."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if key in run:
            own = found.setdefault(str(run.get("label", run["algorithm"])), {})
            own[int(str(run["seed"]))] = float(str(run[key]))
    return found


def paired(runs: Sequence[Run], second: str, key: str = "accuracy") -> list[Difference]:
    """The differences of every other method to one, over the seeds that both have."""
    found = scores(runs, key)
    if second not in found:
        if key.endswith(TAIL):
            return []
        raise UserError(f"there is no run of {second}", f"there are {', '.join(found)}")
    common = {name: sorted({*found[second]} & {*own}) for name, own in found.items() if name != second}
    return [
        Difference(name, second, tuple(found[name][seed] - found[second][seed] for seed in seeds))
        for name, seeds in common.items()
        if seeds
    ]


def _interval(item: Difference | None) -> tuple[float, float] | None:
    return None if item is None or len(item.values) < 2 else item.interval()


def ranged(ends: tuple[float, float] | None, digits: int, plus: str = "") -> str:
    """An interval on a terminal; empty where there is none."""
    return "" if ends is None else f"{ends[0]:{plus}.{digits}f}..{ends[1]:{plus}.{digits}f}"


def chance(p: float | None) -> str:
    """A p-value in words; empty where there is none."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
