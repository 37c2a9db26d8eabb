"""Pictures of the end of runs: differences to a method, every client, what crossed the wire."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pfed1bs.report.owned import bars, height
from pfed1bs.report.pictures import Picture, Shown, told
from pfed1bs.report.records import RunRecord
from pfed1bs.report.results import per_round
from pfed1bs.report.statistics import Verdict
from pfed1bs.report.style import INK, MUTED, WIDTH, byte_axis, canvas, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = 0.19  # inches for a method
DOTS = 500  # clients that are drawn; of more, every so many
WIRE = {  # marker, and whether it is filled
    "up_bytes": ("up", "^", True),
    "down_bytes": ("down", "v", False),
    "catch_up_bytes": ("of that catch-up", "x", True),
    "side_bytes": ("headers and single numbers", "|", True),
}


def differences(shown: Sequence[Shown], verdicts: Sequence[Verdict], against: str) -> Picture | None:
    """How much each method is ahead of one, seed by seed, with the interval; the highest on top."""
    if not verdicts:
        return None
    metric, known = shown[0].group.metric, {item.group.label: item for item in shown}
    order = sorted(verdicts, key=lambda item: item.difference, reverse=metric.better == "higher")
    unit = "points" if metric.percent else metric.words
    with look():
        figure = canvas(0.8 + ROW * len(order))
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=0.8)
        for row, verdict in enumerate(order):
            item = known[verdict.method]
            colour = item.colour
            low, high = verdict.interval or (verdict.difference,) * 2
            axes.plot([low, high], [row, row], color=colour, linewidth=1.6).pop().set_gid(f"band-{item.number}")
            axes.plot([verdict.difference], [row], "o", color=colour, markersize=4.5).pop().set_gid(
                f"dot-{item.number}"
            )
        _rows(axes, [known[verdict.method] for verdict in order])
        axes.set_xlabel(f"{unit} more than {against}, 95 % intervals")
    lines = [
        [
            item.method,
            against,
            item.seeds,
            round(item.difference, 6),
            *(item.interval or (None, None)),
            item.p,
            item.equal,
        ]
        for item in order
    ]
    return Picture(figure, ("method", "against", "seeds", "difference", "low", "high", "p_holm", "p_equal"), lines)


def accuracy_clients(shown: Sequence[Shown]) -> Picture | None:
    """The metric of every client at the smallest seed, beside the labels that it holds where that is known."""
    metric = shown[0].group.metric
    if not all(record.clients for item in shown for record in item.group.records):
        return None
    seed = min(record.seed for item in shown for record in item.group.records)
    first = [(item, item.group.records[0]) for item in shown if item.group.records[0].seed == seed]
    base, record = next(((item, own) for item, own in first if item.group.algorithm == "local"), first[0])
    order = [int(row["client"]) for row in sorted(record.clients, key=lambda row: (row[metric.name], row["client"]))]
    labels, every = record.labels, len(order)
    order = order[:: -(-every // DOTS)]
    with look():
        figure = canvas(height(len(order)) + 0.35)
        axes = figure.subplots(1, 2, sharey=True, width_ratios=(4, 5)) if labels is not None else [figure.add_subplot()]
        if labels is not None:
            bars(axes[0], labels, order, WIDTH * 20)
        leads = [item.number for item, _ in first if item.leads]
        for item, own in first:
            place = leads.index(item.number) - (len(leads) - 1) / 2 if item.leads else 0.0
            _dots(axes[-1], item, own, order, place * min(0.12, 0.8 / len(leads)))
        axes[-1].set_xlabel(f"personal {metric.words}")
        if labels is None:
            axes[-1].set(ylabel="client", yticks=range(len(order)), yticklabels=order, ylim=(len(order) - 0.4, -0.6))
        if len(first) > 1:
            legend(figure, axes[-1])
        some = f", {len(order)} of {every:,} clients" if len(order) < every else ""
        axes[-1].set_title(f"seed {seed}, by {base.group.label}{some}", fontsize=8.5)
    return Picture(figure, ("seed", "client", "method", metric.name), _every_client(shown))


def wire(shown: Sequence[Shown]) -> Picture | None:
    """Bytes of a round, up, down and of that for catching up, on a logarithmic axis; the fewest on top."""
    found = [(item, {key: item.group.spread(partial(per_round, key)) for key in WIRE}) for item in shown]
    talking = [(item, sent) for item, sent in found if any(value and value.mean for value in sent.values())]
    if not talking:
        return None
    talking.sort(key=lambda pair: sum(value.mean for key in ("up_bytes", "down_bytes") if (value := pair[1][key])))
    with look():
        figure = canvas(0.9 + ROW * len(talking))
        axes = figure.add_subplot()
        for key, (words, marker, filled) in WIRE.items():
            places = [(value.mean, row) for row, (_, sent) in enumerate(talking) if (value := sent[key]) and value.mean]
            if places:
                x, y = zip(*places, strict=True)
                dots = axes.scatter(x, y, s=30, marker=marker, label=words, color=INK, linewidths=1)
                dots.set_facecolor(INK if filled else "none")
        _rows(axes, [item for item, _ in talking])
        byte_axis(axes)
        axes.set_xlabel("bytes of a round, all clients (log scale)")
        legend(figure, axes)
    lines = [
        [item.group.label, WIRE[key][0], *told(value)] for item, sent in found for key, value in sent.items() if value
    ]
    return Picture(figure, ("method", "part", "mean", "std", "low", "high", "seeds"), lines)


def _rows(axes: "Axes", items: Sequence[Shown]) -> None:
    """A line for every method, named at the left, the first on top."""
    axes.set(yticks=range(len(items)), yticklabels=[item.group.label for item in items], ylim=(len(items) - 0.4, -0.6))
    for item, text in zip(items, axes.get_yticklabels(), strict=True):
        text.set(color=item.colour, fontweight="bold" if item.leads else "normal", gid=f"name-{item.number}")
    axes.tick_params(axis="y", length=0)


def _dots(axes: "Axes", item: Shown, record: RunRecord, order: Sequence[int], lift: float) -> None:
    """A dot for every client, a little above or below its line; hollow for training alone."""
    metric, own = record.metric.name, item.pen
    values = {row["client"]: row[metric] for row in record.clients}
    rows = [(values[client], row + lift) for row, client in enumerate(order) if client in values]
    x, y = zip(*rows, strict=True)
    hollow = "none" if item.group.algorithm == "local" else own.colour
    if item.leads:
        dots = axes.scatter(x, y, s=22, marker=own.marker, facecolors=hollow, edgecolors=own.colour, linewidths=0.9)
    else:
        dots = axes.scatter(x, y, s=16, marker="|", color=MUTED, linewidths=0.8, zorder=0.9)
    dots.set(label=item.group.label if item.leads else "others", gid=f"dots-{item.number}")


def _every_client(shown: Sequence[Shown]) -> list[list[object]]:
    return [
        [record.seed, int(row["client"]), item.group.label, row[record.metric.name]]
        for item in shown
        for record in item.group.records
        for row in record.clients
    ]
