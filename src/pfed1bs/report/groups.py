"""Runs that differ only in their seed belong together; everything else tells them apart."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

from pfed1bs.core.errors import UserError
from pfed1bs.core.options import shown
from pfed1bs.engine.metrics import Metric, is_percent
from pfed1bs.report.records import Json, RunRecord
from pfed1bs.runs.config import with_role

STUDENT = (12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814)
FREE = with_role("seed", "machine", "simulator")
UNTOLD = tuple(f"{table}." for table in with_role("others"))  # what a comparison runs beside this one


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; no deviation for a single one."""

    mean: float
    deviation: float | None = None
    seeds: int = 1
    limits: tuple[float, float] = field(default=(-inf, inf), compare=False)  # that no value can pass

    @staticmethod
    def of(values: Sequence[float], key: str = "") -> "Spread":
        """Of at least one value; of a metric, if a key says so."""
        limits = (0.0, 100.0) if key and is_percent(key) else (-inf, inf)
        return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values), limits)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean; None for a single seed."""
        if self.deviation is None:
            return None
        half = student(self.seeds - 1) * self.deviation / sqrt(self.seeds)
        return max(self.mean - half, self.limits[0]), min(self.mean + half, self.limits[1])


def student(freedom: int) -> float:
    """Half the width of a 95 % interval in standard errors: the 0.975 quantile of Student's distribution."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = 1.959964  # Cornish and Fisher's expansion around the normal distribution
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / float(freedom**power) for power, term in enumerate(terms, 1))


@dataclass(frozen=True)
class Point:
    """A round of a group: rounds done, mean bytes sent so far, and the value over seeds."""

    rounds: int
    sent: float
    value: Spread


@dataclass(frozen=True)
class Group:
    """Runs of one method with one configuration, by ascending seed."""

    label: str  # the method; where it occurs twice, also the settings that tell its groups apart
    variant: int  # 0 for the first group of a method
    records: tuple[RunRecord, ...]

    @property
    def algorithm(self) -> str:
        """Name of the method."""
        return self.records[0].algorithm

    @property
    def metric(self) -> Metric:
        """What its models are judged by."""
        return self.records[0].metric

    @property
    def silent(self) -> bool:
        """Whether nothing was ever sent."""
        return all(record.sent()[-1] == 0 for record in self.records)

    @cached_property
    def settings(self) -> dict[str, object]:
        """The configuration without what may differ between seeds."""
        return settings(self.records[0].config)

    def spread(self, value: str | Callable[[RunRecord], float]) -> Spread | None:
        """A key of the summary, or any number of a run, over seeds; None if a run has none."""
        values = [record.number(value) if isinstance(value, str) else value(record) for record in self.records]
        return Spread.of(values, value if isinstance(value, str) else "") if all(map(isfinite, values)) else None

    def curve(self, key: str) -> list[Point]:
        """The rounds in which every run has a finite value; a run that ended at rest keeps its last one."""
        points = []
        sent = [record.sent() for record in self.records]
        ends = [len(total) for total in sent]
        going = [end for end, record in zip(ends, self.records, strict=True) if not record.rested]
        for t in range(min(going or [max(ends)])):
            at = [min(t, end - 1) for end in ends]
            values = [record.metrics[i].get(key, float("nan")) for i, record in zip(at, self.records, strict=True)]
            if all(map(isfinite, values)):
                total = fmean(own[i] for i, own in zip(at, sent, strict=True))
                points.append(Point(t + 1, total, Spread.of(values, key)))
        return points


def settings(config: Json) -> dict[str, object]:
    """The flat configuration of a run, without seed, device and the like."""
    flat = flatten(config)
    return {key: value for key, value in flat.items() if key not in FREE and not key.startswith(UNTOLD)}


def flatten(config: Json, prefix: str = "") -> dict[str, object]:
    """Nested tables as dotted keys."""
    result: dict[str, object] = {}
    for key, value in config.items():
        result |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return result


def groups(records: Iterable[RunRecord]) -> list[Group]:
    """Groups in the order in which the methods and their settings first occur."""
    methods: dict[str, dict[str, list[RunRecord]]] = {}
    for record in records:
        same = methods.setdefault(record.algorithm, {})
        same.setdefault(repr(sorted(settings(record.config).items())), []).append(record)
    found = []
    for algorithm, variants in methods.items():
        parts = [tuple(sorted(part, key=lambda record: record.seed)) for part in variants.values()]
        apart = labels([settings(part[0].config) for part in parts])
        for variant, (told, part) in enumerate(zip(apart, parts, strict=True)):
            found.append(Group(f"{algorithm} {told}".strip(), variant, part))
    if not found:
        raise UserError("a report needs at least one run, got none")
    return found


def labels(configs: Sequence[dict[str, object]]) -> list[str]:
    """What tells settings apart, as key=value with blanks between; empty where there is one of them."""
    keys = differing(configs)
    return [" ".join(f"{key.removeprefix('algorithm.')}={shown(own.get(key))}" for key in keys) for own in configs]


def differing(configs: Sequence[dict[str, object]]) -> list[str]:
    """Keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]
