"""Accuracy against bytes and rounds, training loss, diagnostics, accuracy per client: as SVG files."""

from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING

from pfed1bs.core.errors import UserError
from pfed1bs.report.groups import Group, Point, groups
from pfed1bs.report.records import RunRecord
from pfed1bs.report.style import DASHED, HEIGHT, byte_axis, canvas, legend, look, named, pen, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKED = 25  # points of a line that still get a marker each
LOGGED = {  # what a method may log, and how to read it
    "agreement": "client bits equal to the consensus",
    "flips": "consensus bits changed",
    "initial": "consensus bits equal to the first",
    "ties": "consensus bits decided by a tie",
    "pull": "pull relative to the gradient",
    "hamming_within": "sketch bits apart, same labels",
    "hamming_between": "sketch bits apart, other labels",
    "potential": "potential Psi",
}


def accuracy_bytes(records: Sequence[RunRecord], path: str | Path) -> None:
    """Personal accuracy against all bytes sent so far; a method that sends nothing is a horizontal line."""
    _save(draw_accuracy_bytes(records), path, "no run has evaluated its models after sending something")


def accuracy_rounds(records: Sequence[RunRecord], path: str | Path) -> None:
    """Personal accuracy against rounds."""
    _save(draw_accuracy_rounds(records), path, "no run has evaluated its models yet")


def training_loss(records: Sequence[RunRecord], path: str | Path) -> None:
    """Mean training loss of the clients of each round."""
    _save(draw_training_loss(records), path, "no run has logged a training loss")


def diagnostics(records: Sequence[RunRecord], path: str | Path) -> None:
    """What the methods log about themselves, one panel each."""
    _save(draw_diagnostics(records), path, f"no run has logged any of {', '.join(LOGGED)}")


def accuracy_clients(records: Sequence[RunRecord], path: str | Path) -> None:
    """Accuracy of every client at the smallest seed, clients sorted by local training where it was run."""
    _save(draw_accuracy_clients(records), path, "no run has evaluated its clients")


def draw_all(records: Sequence[RunRecord]) -> dict[str, str]:
    """SVG text by name, without the pictures that would be empty."""
    drawn = {name: draw(records) for name, draw in PICTURES.items()}
    return {name: text for name, text in drawn.items() if text is not None}


def draw_accuracy_bytes(records: Sequence[RunRecord]) -> str | None:
    """SVG text of `accuracy_bytes`."""
    found, metric = _logged(records, records[0].metric.name), records[0].metric
    talking = [(group, points) for group, points in found if points[-1].sent > 0]
    if not talking:  # a logarithmic axis has no place for 0 bytes
        return None
    with look():
        figure = canvas()
        axes = figure.add_subplot()
        last = [(group, *_line(axes, group, points, lambda point: point.sent)) for group, points in talking]
        byte_axis(axes)
        last += [(group, inf, _level(axes, group, points[-1])) for group, points in found if points[-1].sent == 0]
        axes.set_ylabel(f"personal {metric.words}")
        named(figure, axes, last)
        return svg(figure)


def draw_accuracy_rounds(records: Sequence[RunRecord]) -> str | None:
    """SVG text of `accuracy_rounds`."""
    found, metric = _logged(records, records[0].metric.name), records[0].metric
    if not found:
        return None
    with look():
        figure = canvas()
        axes = figure.add_subplot()
        last = [(group, *_line(axes, group, points, lambda point: point.rounds)) for group, points in found]
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="rounds", ylabel=f"personal {metric.words}")
        named(figure, axes, last)
        return svg(figure)


def draw_training_loss(records: Sequence[RunRecord]) -> str | None:
    """SVG text of `training_loss`."""
    found = _logged(records, "loss")
    if not found:
        return None
    with look():
        figure = canvas()
        axes = figure.add_subplot()
        last = [(group, *_line(axes, group, points, lambda point: point.rounds)) for group, points in found]
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="rounds", ylabel="training loss")
        if all(point.value.mean > 0 for _, points in found for point in points):
            axes.set(yscale="log", ylabel="training loss (log scale)")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        named(figure, axes, last)
        return svg(figure)


def draw_diagnostics(records: Sequence[RunRecord]) -> str | None:
    """SVG text of `diagnostics`."""
    panels = {key: _logged(records, key) for key in LOGGED}
    panels = {key: found for key, found in panels.items() if found}
    if not panels:
        return None
    rows = (len(panels) + 1) // 2
    with look():
        figure = canvas(0.2 + 2.2 * rows)
        for place, (key, found) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(rows, 2, place)
            for group, points in found:
                _line(axes, group, points, lambda point: point.rounds)
            axes.locator_params(axis="x", integer=True)
            axes.set_title(LOGGED[key], fontsize=8.5)
            axes.set_xlabel("rounds" if place > len(panels) - 2 else "")
        most = max(panels.values(), key=len)
        if len(most) > 1:
            legend(figure, figure.axes[list(panels.values()).index(most)])
        return svg(figure)


def draw_accuracy_clients(records: Sequence[RunRecord]) -> str | None:
    """SVG text of `accuracy_clients`."""
    found, metric = groups(records), records[0].metric
    seed = min(record.seed for record in records)
    shown = [(group, record) for group in found for record in group.records[:1] if record.seed == seed]
    base, first = next(((group, record) for group, record in shown if group.algorithm == "local"), shown[0])
    order = [row["client"] for row in sorted(first.clients, key=lambda row: (row[metric.name], row["client"]))]
    with look():
        figure = canvas(HEIGHT + 0.2)
        axes = figure.add_subplot()
        for group, record in shown:
            own = {row["client"]: row.get(metric.name, nan) for row in record.clients}
            known = [(place, own[client]) for place, client in enumerate(order, 1) if client in own]
            _dots(axes, group, known)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(f"clients of seed {seed}, sorted by their {metric.name} under {base.label}")
        axes.set_ylabel(f"personal {metric.words}")
        if len(shown) > 1:
            legend(figure, axes)
        return svg(figure)


PICTURES: dict[str, Callable[[Sequence[RunRecord]], str | None]] = {
    "accuracy-bytes": draw_accuracy_bytes,
    "accuracy-rounds": draw_accuracy_rounds,
    "diagnostics": draw_diagnostics,
    "accuracy-clients": draw_accuracy_clients,
    "training-loss": draw_training_loss,
}


def _logged(records: Sequence[RunRecord], key: str) -> list[tuple[Group, list[Point]]]:
    """The curves of all groups that have one."""
    return [(group, points) for group in groups(records) if (points := group.curve(key))]


def _line(axes: "Axes", group: Group, points: list[Point], x: Callable[[Point], float]) -> tuple[float, float]:
    """Mean line, band of one standard deviation where there are seeds; the end of the line."""
    points = [point for point in points if x(point) > 0]
    across, means = [x(point) for point in points], [point.value.mean for point in points]
    own = pen(group)
    marker = own.marker if len(points) <= MARKED else ""
    axes.plot(across, means, color=own.colour, linestyle=own.dash, marker=marker, markersize=3.5, label=group.label)
    if points[0].value.deviation is not None:
        low, high = ([point.value.mean + side * (point.value.deviation or 0) for point in points] for side in (-1, 1))
        axes.fill_between(across, low, high, color=own.colour, alpha=0.18, linewidth=0)
    return across[-1], means[-1]


def _level(axes: "Axes", group: Group, last: Point) -> float:
    """A method that sends nothing: its last accuracy over the whole width; its height."""
    own, value = pen(group), last.value
    axes.axhline(value.mean, color=own.colour, linestyle=DASHED, linewidth=1.4, label=group.label)
    if value.deviation is not None:
        axes.axhspan(
            value.mean - value.deviation, value.mean + value.deviation, color=own.colour, alpha=0.12, linewidth=0
        )
    return value.mean


def _dots(axes: "Axes", group: Group, places: list[tuple[int, float]]) -> None:
    own = pen(group)
    across, accuracies = zip(*places, strict=True)
    area, local = (22 if len(places) <= 50 else 9), group.algorithm == "local"
    face = "none" if local else own.colour  # hollow: the others may lie exactly on it
    axes.scatter(
        across, accuracies, s=2 * area if local else area, marker=own.marker, facecolors=face, edgecolors=own.colour,
        linewidths=1.2 if local else 0.4, alpha=0.9, label=group.label, zorder=2 if local else 3,
    )  # fmt: skip


def _save(text: str | None, path: str | Path, otherwise: str) -> None:
    if text is None:
        raise UserError(f"there is nothing to draw in {path}: {otherwise}")
    Path(path).write_text(text, encoding="utf-8")
