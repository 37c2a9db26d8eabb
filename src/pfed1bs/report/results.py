"""The table of results, once for the page, the terminal and files: what stands in it, and how it is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.options import keys
from pfed1bs.engine.metrics import Metric
from pfed1bs.report.groups import Group, Spread, groups
from pfed1bs.report.records import Json, RunRecord
from pfed1bs.report.statistics import Against
from pfed1bs.report.style import pen

MIB = 2**20
CAPTION = "personal: each client's own model; global: the shared one; tuned: the shared one after local steps"


@dataclass(frozen=True)
class Row:
    """A line of the result table; None where there is no such number."""

    label: str
    colour: str
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
    broadcast: Spread | None
    ratio: Spread | None
    total: Spread | None
    seconds: Spread | None
    gradients: Spread | None  # of a client in a round


@dataclass(frozen=True)
class Cell:
    """A number and what is said beside it in smaller letters; both may be empty."""

    text: str = "\u2013"
    aside: str = ""
    short: str = ""  # for a terminal, where it is not both

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


@dataclass(frozen=True)
class Results:
    """The table: a line for every row, a cell for every column."""

    rows: list[Row]
    columns: list[Column]

    def cells(self, row: Row) -> list[Cell]:
        """The line of a row."""
        return [column.cell(row) for column in self.columns]

    def brief(self) -> list[list[str]]:
        """Heads and lines for a terminal, with the labels first."""
        shown = [column for column in self.columns if column.brief]
        lines = [[row.label, *(str(column.cell(row)) for column in shown)] for row in self.rows]
        return [["method", *(column.brief for column in shown)], *lines]


def results(found: Sequence[Group]) -> Results:
    """The table of some groups."""
    rows = [row(group, found) for group in found]
    empty = Cell()
    shown = [
        column
        for column in columns(found[0].metric)
        if not column.optional or any(column.cell(row) != empty for row in rows)
    ]
    return Results(rows, shown)


def row(group: Group, among: Sequence[Group]) -> Row:
    """The results of a group."""
    metric = group.metric.name
    return Row(
        label=group.label,
        colour=pen(group.algorithm, group.variant).colour,
        seeds=", ".join(str(record.seed) for record in group.records),
        metric=group.metric,
        value=group.spread(metric),
        late=group.spread(f"{metric}_late"),
        macro=group.spread(f"{metric}_macro"),
        shared=group.spread(f"{metric}_global"),
        tuned=group.spread(f"{metric}_tuned"),
        newcomers=group.spread(f"{metric}_newcomers"),
        gain=gain(group, among),
        mib=group.spread("mib_per_round"),
        broadcast=group.spread(broadcast),
        ratio=group.spread("ratio_to_fedavg"),
        total=group.spread("total_mib"),
        seconds=group.spread("seconds"),
        gradients=group.spread("gradients"),
    )


def labelled(found: Sequence[Group]) -> list[Json]:
    """The summary of every run with the label of its group."""
    return [{"label": group.label, **record.summary} for group in found for record in group.records]


def plain(records: Sequence[RunRecord], against: Against | None = None) -> Json:
    """Every run with its label, options, summary and curve (round, bytes so far, its metric), for a file."""
    runs = []
    for group in groups(records):
        for record in group.records:
            sent, metric = record.sent(), record.metric.name
            curve = [[t + 1, sent[t], line[metric]] for t, line in enumerate(record.metrics) if metric in line]
            own = {"label": group.label, "options": chosen(record), "device": record.env.get("device")}
            runs.append({**own, **record.summary, "curve": curve})
    recipe = {key: value for key, value in records[0].config.items() if key != "algorithm"}
    return {"recipe": recipe, "runs": runs, **({"paired": against.plain(runs)} if against else {})}


def chosen(record: RunRecord) -> Json:
    """The options of a run that are not the method's defaults."""
    options = record.config.get("algorithm", {})
    known = keys(algorithm_class(record.algorithm)) if record.algorithm in REGISTRY else {}
    found = options.items() if isinstance(options, dict) else ()
    return {key: value for key, value in found if key != "name" and (key not in known or value != known[key].default)}


def broadcast(record: RunRecord) -> float:
    """MiB per round if the server sends each different message once, to all who need it."""
    rows = record.metrics
    return sum(row["up_bytes"] + row.get("broadcast_bytes", float("nan")) for row in rows) / len(rows) / MIB


def gain(group: Group, among: Sequence[Group]) -> Spread | None:
    """The metric minus that of local training, over the seeds and clients that both have; None without them."""
    if group.algorithm == "local":
        return None
    held = {
        (record.seed, partition(record)): record
        for other in among
        if other.algorithm == "local"
        for record in other.records
    }
    pairs = [(record, held.get((record.seed, partition(record)))) for record in group.records]
    metric = group.metric.name
    points = [record.number(metric) - local.number(metric) for record, local in pairs if local]
    return Spread.of(points) if points else None


def partition(record: RunRecord) -> tuple[tuple[float, ...], ...]:
    """Who holds how many samples: runs that agree in it and in the seed judged the same clients."""
    return tuple((row["client"], row["train_samples"], row["test_samples"]) for row in record.clients)


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


def _amount(value: Spread | None) -> Cell:
    return Cell() if value is None else Cell(significant(value.mean), short=significant(value.mean, 3))


def _ratio(value: Spread | None) -> Cell:
    if value is None or not 0 < value.mean < 0.5:
        return _amount(value)
    share = f"1/{1 / value.mean:.0f}"
    return Cell(significant(value.mean), share, share)


def columns(metric: Metric) -> tuple[Column, ...]:
    """The columns for runs that are judged by this metric."""
    name, digits = metric.heading, metric.digits
    short = "%" if metric.percent else metric.name
    against = "points" if metric.percent else metric.name
    return (
        Column(f"{name}\nall samples", lambda row: _spread(row.value, digits), "personal"),
        Column("MiB\nper round", lambda row: _amount(row.mib), "MiB/round"),
        Column("ratio to\nFedAvg", lambda row: _ratio(row.ratio), "of FedAvg"),
        Column(f"{against}\nagainst local", lambda row: _spread(row.gain, digits, "+"), optional=True),
        Column(f"{name}\nmean of last five", lambda row: _spread(row.late, digits), optional=True),
        Column(f"{name}\nmean of clients", lambda row: _spread(row.macro, digits)),
        Column(f"global\nmodel {short}", lambda row: _spread(row.shared, digits), "global", optional=True),
        Column(f"tuned\nmodel {short}", lambda row: _spread(row.tuned, digits), "tuned", optional=True),
        Column(f"newcomers {short}\nafter a visit", lambda row: _spread(row.newcomers, digits), "newcomers", True),
        Column("MiB per round\nif broadcast", lambda row: _amount(row.broadcast)),
        Column("MiB\nin total", lambda row: _amount(row.total)),
        Column("gradients\na round", lambda row: _amount(row.gradients), optional=True),
        Column("seconds", lambda row: Cell("" if row.seconds is None else f"{row.seconds.mean:.1f}")),
        Column("seeds", lambda row: Cell(row.seeds)),
    )
