"""A cell of a table of `pfed1bs reproduce`: the runs of a method with one setting, and what is said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite, sqrt
from statistics import fmean
from typing import TypeVar, cast

from pfed1bs.facts.printed import SPELT, paper_table
from pfed1bs.report.groups import Spread, student
from pfed1bs.report.records import Json
from pfed1bs.report.statistics import MARGIN, Difference, Verdict, chance

T = TypeVar("T", bound=float)  # the number of a round
CLOSE = 1.0  # points; nearer, or within the 95 % interval of the difference, a cell of several seeds is reproduced
WIDE = 2.0  # points; where half that interval is more, a cell within it is open
RUNS = 10  # of each cell of the paper
OURS = {"zSignFed": "zsign"}  # other names are the paper's in small letters
COSTS = {
    (OURS.get(cell.method, cell.method.lower()), data): cell
    for data, name in SPELT.items()
    for cell in paper_table()
    if cell.dataset == name
}
NUMBERS = (
    "accuracy accuracy_late accuracy_global accuracy_tuned mib_per_round total_mib ratio_to_fedavg seconds rounds"
).split()


@dataclass(frozen=True)
class Entered:
    """A cell: the runs of a method with one setting."""

    part: str
    label: str
    data: str
    wanted: int  # seeds
    rows: Sequence[Json]
    paper: Sequence[float] | None = None  # mean and deviation
    beside: Verdict | None = None  # how it compares with another label of its part, seed by seed
    logged: Sequence[str] = ()  # diagnostics that it has
    peaks: bool = False  # whether its highest evaluation is told

    def spread(self, key: str) -> Spread | None:
        """A number of the summaries over seeds, or a diagnostic; None where a run has none, or there is none."""
        values = [_end(row, key) if key in self.logged else _summed(row, key) for row in self.rows]
        found = [float(str(value)) for value in values if value is not None]
        return Spread.of(found, key) if found and len(found) == len(values) and all(map(isfinite, found)) else None

    @property
    def ours(self) -> str:
        """What came out."""
        if any("diverged" in row for row in self.rows):
            return "diverged"
        return told(self.spread("accuracy")) if self.rows else "not run"

    @property
    def verdict(self) -> str:
        """How it compares with the paper's."""
        value = self.spread("accuracy")
        if value is None or self.paper is None:
            return ""
        (paper, spread), seeds = self.paper, value.seeds
        apart = value.mean - paper
        way = f"{abs(apart):.2f} {'higher' if apart > 0 else 'lower'}"
        if value.deviation is None:  # nobody knows how far off one run may be
            return f"one seed: {way}"
        half = _uncertain(value.deviation / sqrt(seeds), seeds, spread / sqrt(RUNS))
        if max(abs(apart), WIDE) < half:
            return f"open: {way} \u00b1 {half:.2f}"
        return "reproduced" if abs(apart) <= max(CLOSE, half) else f"differs: {way}"

    @property
    def cost(self) -> str:
        """What the paper prints for a round, and whether that can be."""
        printed = COSTS.get((self.label.partition(" ")[0], self.data)) if self.paper else None
        return "" if printed is None else printed.printed + (f" {printed.verdict}" if printed.wrong else "")

    @property
    def apart(self) -> tuple[str, str, str, str]:
        """In words: the difference, its p-values if equal and if apart, and the difference of the last evaluations."""
        if (item := self.beside) is None:
            return "", "", "", ""
        late = "" if item.late is None else between(item.late, item.late_interval)
        return between(item.difference, item.interval), chance(item.p), chance(item.equal), late

    @property
    def highest(self) -> tuple[int, Spread] | None:
        """The evaluation with the highest mean over the seeds: after how many rounds, and what they have there."""
        curves = [*_curves(self.rows).values()]
        at = None if any("diverged" in row for row in self.rows) else best(curves)
        return None if at is None else (at, Spread.of([curve[at] for curve in curves], "accuracy"))

    @property
    def lost(self) -> Difference | None:
        """From the highest evaluation to the end, seed by seed; None where the end is the highest."""
        if self.highest is None:
            return None
        at, curves = self.highest[0], [own for _, own in sorted(_curves(self.rows).items())]
        ended = all(at == max(own) for own in curves)
        return None if ended else Difference("", "", tuple(own[max(own)] - own[at] for own in curves))

    @property
    def facts(self) -> Json:
        """Everything, for a file."""
        found = {key: value for key in (*NUMBERS, *self.logged) if (value := self.spread(key))}
        about: Json = {"part": self.part, "label": self.label, "data": self.data, "wanted": self.wanted}
        about |= {"seeds": len(self.rows), **{key: _plain(value) for key, value in found.items()}}
        if item := self.beside:
            about["difference"] = contrast(item)
            about |= {"equal_within": {"margin": MARGIN, "p": item.equal}} if item.equal is not None else {}
        if self.peaks and self.highest:
            about["highest"] = {"after": self.highest[0], **_plain(self.highest[1])}
            about |= {"since_highest": _facts(self.lost)} if self.lost else {}
        return {**about, "paper": self.paper, "verdict": self.verdict}


def best(curves: Sequence[Mapping[T, float]], sign: int = 1) -> T | None:
    """Of the rounds that all curves have, the first with the highest mean, with sign -1 the lowest."""
    common = set.intersection(*map(set, curves)) if curves else set()
    return max(common, key=lambda at: (sign * fmean(curve[at] for curve in curves), -at), default=None)


def _uncertain(ours: float, seeds: int, theirs: float) -> float:
    """Half the 95 % interval of a difference of two means with these standard errors: Welch's, degrees rounded down."""
    error = hypot(ours, theirs)
    freedom = error**4 / (ours**4 / (seeds - 1) + theirs**4 / (RUNS - 1)) if error else inf
    return student(max(1, int(min(freedom, seeds + RUNS - 2)))) * error


def told(value: Spread | None) -> str:
    """Mean and deviation."""
    if value is None:
        return ""
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" \u00b1 {value.deviation:.2f}")


def _plain(value: Spread) -> Json:
    """For a file, without limits: JSON knows no infinity."""
    return {"mean": value.mean, "deviation": value.deviation, "seeds": value.seeds}


def _summed(row: Json, key: str) -> object:
    return cast(Json, row.get("summary", {})).get(key)


def _end(row: Json, key: str) -> object:
    """The last value of a diagnostic."""
    return (cast(dict[str, list[object]], row.get("curve", {})).get(key) or [None])[-1]


def between(mean: float, interval: tuple[float, float] | None) -> str:
    """A difference and its interval; of one seed the difference alone."""
    return f"{mean:+.2f}" + (f" ({interval[0]:+.2f} to {interval[1]:+.2f})" if interval else "")


def contrast(item: Verdict) -> Json:
    """A comparison, for a file."""
    last = {"mean": item.difference, "seeds": item.seeds, "interval": item.interval, "p_holm": item.p}
    return {**last, "late": item.late, "late_interval": item.late_interval}


def _facts(found: Difference) -> Json:
    more = {"interval": found.interval()} if len(found.values) > 1 else {}
    tested = {"p": found.different()} if found.testable else {}
    return {"mean": found.mean, "seeds": len(found.values), **more, **tested}


def _curves(rows: Sequence[Json]) -> dict[int, dict[int, float]]:
    """By seed, the accuracy after so many rounds."""
    found = {}
    for row in rows:
        curve, seed = cast(dict[str, list[float]], row.get("curve", {})), _summed(row, "seed")
        if "accuracy" in curve:
            rounds = (int(number) + 1 for number in curve["round"])
            found[int(str(seed))] = dict(zip(rounds, curve["accuracy"], strict=True))
    return found
