"""The columns of the tables of results, and how numbers are written in them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, isfinite, log10

from pfed1bs.engine.metrics import Metric
from pfed1bs.report.groups import Spread
from pfed1bs.report.style import size


@dataclass(frozen=True)
class Row:
    """A line of the result table; None where there is no such number."""

    label: str
    seeds: str
    metric: Metric
    value: Spread | None  # of the metric
    late: Spread | None  # mean of the last evaluations
    macro: Spread | None
    shared: Spread | None  # of the global model
    tuned: Spread | None
    newcomers: Spread | None  # after one visit
    gain: Spread | None  # points against local training, seed by seed
    mib: Spread | None
    ratio: Spread | None
    up: Spread | None  # bytes of a round, these six
    down: Spread | None
    catch_up: Spread | None
    side: Spread | None
    broadcast: Spread | None
    once: Spread | None  # bytes of the run
    total: Spread | None
    seconds: Spread | None
    gradients: Spread | None  # of a client in a round


@dataclass(frozen=True)
class Cell:
    """A number and what is said beside it in smaller letters; both may be empty."""

    text: str = "\u2013"
    aside: str = ""
    short: str = ""  # for a terminal, where it is not both
    order: float | None = None  # what a table is sorted by, where the text does not begin with it

    def __str__(self) -> str:
        """The cell on a terminal."""
        return self.short or self.text + self.aside


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    head: str
    cell: Callable[[Row], Cell]
    brief: str = ""  # its head on a terminal; empty: it stands on the page only
    optional: bool = False  # left out where no row has a number
    level: int = 0  # 1: not on a telephone, 2: nor where a page is narrow


def significant(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, never in powers of ten."""
    if not value or not isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, digits - 1 - floor(log10(abs(value))))}f}"


def _spread(value: Spread | None, digits: int, plus: str = "") -> Cell:
    if value is None:
        return Cell()
    aside = "" if value.deviation is None else f"\u00b1{value.deviation:.{digits}f}"
    return Cell(f"{value.mean:{plus}.{digits}f}", aside)


def _interval(value: Spread | None, digits: int) -> Cell:
    if value is None or value.interval is None:
        return Cell()
    low, high = value.interval
    brief = [f"{end:g}" if end in (0, 100) else f"{end:.{digits}f}" for end in (low, high)]  # an end of all percents
    return Cell(f"{low:.{digits}f} \u2026 {high:.{digits}f}", short="..".join(brief))


def _gain(value: Spread | None, digits: int) -> Cell:
    if value is None or value.interval is None:
        return _spread(value, digits, "+")
    low, high = value.interval
    return Cell(f"{value.mean:+.{digits}f}", f"{low:+.1f} \u2026 {high:+.1f}")


def _bytes(value: Spread | None) -> Cell:
    return Cell() if value is None else Cell(size(value.mean), order=value.mean)


def _count(value: Spread | None) -> Cell:
    return Cell() if value is None else Cell(f"{value.mean:g}")


def _amount(value: Spread | None) -> Cell:
    return Cell() if value is None else Cell(significant(value.mean), short=significant(value.mean, 3))


def _ratio(value: Spread | None) -> Cell:
    if value is None or not value.mean:
        return _amount(value)
    return Cell(f"1/{1 / value.mean:.0f}" if value.mean < 0.5 else f"{value.mean:.2f}", order=value.mean)


def columns(metric: Metric) -> tuple[Column, ...]:
    """The columns for runs that are judged by this metric."""
    name, digits = metric.heading, metric.digits
    short = "%" if metric.percent else metric.name
    against = "points" if metric.percent else metric.name
    return (
        Column(f"{name}\nall samples", lambda row: _spread(row.value, digits), "personal"),
        Column("95 %\ninterval", lambda row: _interval(row.value, digits), "95 %\ninterval", True, 1),
        Column(f"{against} over\nlocal, 95 %", lambda row: _gain(row.gain, digits), optional=True),
        Column("MiB\nper round", lambda row: _amount(row.mib), "MiB a\nround", level=1),
        Column("ratio to\nFedAvg", lambda row: _ratio(row.ratio), "of\nFedAvg"),
        Column("mean of\nlast five", lambda row: _spread(row.late, digits), optional=True, level=2),
        Column("mean of\nclients", lambda row: _spread(row.macro, digits), level=2),
        Column(f"global\nmodel {short}", lambda row: _spread(row.shared, digits), "global", True, 2),
        Column(f"tuned\nmodel {short}", lambda row: _spread(row.tuned, digits), "tuned", True, 2),
        Column(f"newcomers {short}\nafter a visit", lambda row: _spread(row.newcomers, digits), "newcomers", True, 2),
        Column("gradients\na round", lambda row: _count(row.gradients), optional=True, level=2),
        Column("seconds", lambda row: Cell("" if row.seconds is None else f"{row.seconds.mean:.1f}"), level=2),
        Column("seeds", lambda row: Cell(row.seeds), level=2),
    )


def wire(metric: Metric) -> tuple[Column, ...]:
    """The columns that say what crossed the wire: bytes of a round, all clients together."""
    return (
        Column("up", lambda row: _bytes(row.up)),
        Column("down", lambda row: _bytes(row.down)),
        Column("of that\ncatch-up", lambda row: _bytes(row.catch_up), level=1),
        Column("headers and\nsingle numbers", lambda row: _bytes(row.side), level=1),
        Column("if broadcast", lambda row: _bytes(row.broadcast), level=1),
        Column("once,\nin the run", lambda row: _bytes(row.once), level=2),
        Column("in the\nwhole run", lambda row: _bytes(row.total)),
    )
