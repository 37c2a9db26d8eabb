"""The table of results, once for the page, the terminal and files: what stands in it, and how it is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.options import keys
from pfed1bs.engine.metrics import Metric
from pfed1bs.report.columns import Cell, Column, Row, columns
from pfed1bs.report.columns import significant as significant
from pfed1bs.report.groups import Group, Spread, flatten, groups
from pfed1bs.report.records import Json, RunRecord
from pfed1bs.report.statistics import Against

ROUND = ("up", "down", "catch_up", "side")  # bytes that every round counts
CAPTION = "personal: each client's own model; global: the shared one; tuned: the shared one after local steps"


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


def results(found: Sequence[Group], told: Callable[[Metric], tuple["Column", ...]] | None = None) -> Results:
    """The table of some groups, with the columns that are told, or those of the main one."""
    rows = [row(group, found) for group in found]
    empty = Cell()
    shown = [
        column
        for column in (told or columns)(found[0].metric)
        if not column.optional or any(column.cell(row) != empty for row in rows)
    ]
    return Results(rows, shown)


def row(group: Group, among: Sequence[Group]) -> Row:
    """The results of a group."""
    metric = group.metric.name
    return Row(
        label=group.label,
        seeds=seeds([record.seed for record in group.records]),
        metric=group.metric,
        value=group.spread(metric),
        late=group.spread(f"{metric}_late"),
        macro=group.spread(f"{metric}_macro"),
        shared=group.spread(f"{metric}_global"),
        tuned=group.spread(f"{metric}_tuned"),
        newcomers=group.spread(f"{metric}_newcomers"),
        gain=gain(group, among),
        mib=group.spread("mib_per_round"),
        ratio=group.spread("ratio_to_fedavg"),
        **{name: group.spread(partial(per_round, f"{name}_bytes")) for name in ROUND},
        broadcast=group.spread(broadcast),
        once=group.spread("once_bytes"),
        total=group.spread(lambda record: record.sent()[-1]),
        seconds=group.spread("seconds"),
        gradients=group.spread("gradients"),
    )


def seeds(given: Sequence[int]) -> str:
    """Seeds with commas between; runs of them as 0..9."""
    if len(given) > 2 and [*given] == [*range(given[0], given[0] + len(given))]:
        return f"{given[0]}..{given[-1]}"
    return ", ".join(map(str, given))


def labelled(found: Sequence[Group]) -> list[Json]:
    """The summary of every run with the label of its group."""
    return [{"label": group.label, **record.summary} for group in found for record in group.records]


def plain(records: Sequence[RunRecord], against: Against | None = None) -> Json:
    """Every run with its label, options, summary and curve (round, bytes so far, its metric), for a file."""
    runs, recipe = [], {key: value for key, value in records[0].config.items() if key != "algorithm"}
    for group in groups(records):
        for record in group.records:
            sent, metric = record.sent(), record.metric.name
            curve = [[t + 1, sent[t], line[metric]] for t, line in enumerate(record.metrics) if metric in line]
            own = {"label": group.label, "options": chosen(record), "device": record.env.get("device")}
            runs.append({**own, **apart(group.settings, recipe), **record.summary, "curve": curve})
    return {
        "recipe": recipe,
        "runs": runs,
        "over_seeds": over_seeds(groups(records)),
        **({"paired": against.plain(runs)} if against else {}),
    }


def apart(settings: Json, recipe: Json) -> Json:
    """The settings of a run that are not those of the recipe, apart from the method's."""
    known = flatten(recipe)
    own = {
        key: value for key, value in settings.items() if not key.startswith("algorithm.") and known.get(key) != value
    }
    return {"settings": own} if own else {}


def over_seeds(found: Sequence[Group]) -> list[Json]:
    """The metric of every group over its seeds: mean, standard deviation, and the 95 % interval of the mean."""
    values = [(group.label, group.spread(group.metric.name)) for group in found]
    return [
        {"label": label, "mean": value.mean, "std": value.deviation, "interval": value.interval, "seeds": value.seeds}
        for label, value in values
        if value
    ]


def chosen(record: RunRecord) -> Json:
    """The options of a run that are not the method's defaults."""
    options = record.config.get("algorithm", {})
    known = keys(algorithm_class(record.algorithm)) if record.algorithm in REGISTRY else {}
    found = options.items() if isinstance(options, dict) else ()
    return {key: value for key, value in found if key != "name" and (key not in known or value != known[key].default)}


def per_round(key: str, record: RunRecord) -> float:
    """Bytes of a round under a key of metrics.jsonl, on average."""
    return sum(row.get(key, float("nan")) for row in record.metrics) / len(record.metrics)


def broadcast(record: RunRecord) -> float:
    """Bytes of a round if the server sends each different message once, to all who need it."""
    return per_round("up_bytes", record) + per_round("broadcast_bytes", record)


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


def partition(record: RunRecord) -> tuple[tuple[float | str, ...], ...]:
    """Who holds how many samples: runs that agree in it and in the seed judged the same clients."""
    if not record.clients:
        return ((str(record.config.get("data")), str(record.config.get("clients"))),)
    return tuple((row["client"], row["train_samples"], row["test_samples"]) for row in record.clients)
