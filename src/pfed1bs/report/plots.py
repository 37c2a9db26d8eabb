"""Accuracy against bytes and rounds, training loss, diagnostics: lines over rounds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from pfed1bs.report.groups import Point
from pfed1bs.report.labels import End, name_ends
from pfed1bs.report.leading import FEW
from pfed1bs.report.pictures import SPREAD, Picture, Shown, bars_of, told
from pfed1bs.report.style import DASHED, DASHES, HEIGHT, MUTED, byte_axis, canvas, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = 25  # points of a line that still get a marker each
ROW = 0.155  # inches for a name beside the axes
LOGGED = {  # what a method may log, and how to read it
    "agreement": "bits equal to the consensus",
    "flips": "consensus bits changed",
    "initial": "consensus bits equal to the first",
    "ties": "consensus bits decided by a tie",
    "pull": "pull relative to the gradient",
    "hamming_within": "sketch bits apart, same labels",
    "hamming_between": "sketch bits apart, other labels",
    "models_apart": "distance of two models",
    "potential": "potential Psi",
}
HEADS = ("method", "rounds", "bytes", *SPREAD)

Curve = tuple[Shown, list[Point]]


def accuracy_bytes(shown: Sequence[Shown]) -> Picture | None:
    """The personal metric against all bytes sent so far; a method that sends nothing is a horizontal line."""
    found, metric = _logged(shown, shown[0].group.metric.name), shown[0].group.metric
    talking = [(item, [point for point in points if point.sent > 0]) for item, points in found]
    talking = [(item, points) for item, points in talking if points]
    if not talking:  # a logarithmic axis has no place for 0 bytes
        return None
    silent = [(item, points[-1:]) for item, points in found if points[-1].sent == 0]
    with look():
        figure, axes = _axes(found)
        ends = [_line(axes, item, points, lambda point: point.sent, len(found)) for item, points in talking]
        byte_axis(axes)
        ends += [_level(axes, item, points[0]) for item, points in silent]
        axes.set_ylabel(f"personal {metric.words}")
        name_ends(figure, axes, ends, free=True)
    return Picture(figure, HEADS, points_of([*talking, *silent]))


def accuracy_rounds(shown: Sequence[Shown]) -> Picture | None:
    """The personal metric against rounds."""
    metric = shown[0].group.metric
    return _over_rounds(_logged(shown, metric.name), f"personal {metric.words}")


def training_loss(shown: Sequence[Shown]) -> Picture | None:
    """Mean training loss of the clients of each round."""
    found = _logged(shown, "loss")
    log = all(point.value.mean > 0 for _, points in found for point in points)
    return _over_rounds(found, "training loss (log scale)" if log else "training loss", log)


def diagnostics(shown: Sequence[Shown]) -> Picture | None:
    """What the methods log about themselves, one panel each."""
    panels = {key: _logged(shown, key) for key in LOGGED}
    panels = {key: found for key, found in panels.items() if found}
    if not panels:
        return None
    rows = (len(panels) + 1) // 2
    with look():
        figure = canvas(0.2 + 2.2 * rows)
        for place, (key, found) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(rows, 2, place)
            for item, points in found:
                _line(axes, replace(item, leads=True), points, lambda point: point.rounds, len(found))
            axes.locator_params(axis="x", integer=True)
            axes.set_title(LOGGED[key], fontsize=8.5)
            axes.set_xlabel("rounds" if place > len(panels) - 2 else "")
        most = max(panels.values(), key=len)
        if len(most) > 1:
            legend(figure, figure.axes[list(panels.values()).index(most)])
    lines = [[key, *line] for key, found in panels.items() for line in points_of(found)]
    return Picture(figure, ("diagnostic", *HEADS), lines)


def _over_rounds(found: list[Curve], words: str, log: bool = False) -> Picture | None:
    if not found:
        return None
    with look():
        figure, axes = _axes(found)
        ends = [_line(axes, item, points, lambda point: point.rounds, len(found)) for item, points in found]
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="rounds", ylabel=words)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        name_ends(figure, axes, ends)
    return Picture(figure, HEADS, points_of(found))


def _axes(found: Sequence[Curve]) -> tuple["Figure", "Axes"]:
    """A figure that is high enough for all names."""
    figure = canvas(max(HEIGHT, 0.7 + ROW * len(found)))
    axes = figure.add_subplot()
    grey = any(not item.leads for item, _ in found)
    said = bars_of([item.group for item, _ in found if item.leads], f"{'coloured ' * grey}bands and bars")
    axes.set_title(said, fontsize=7.5, color=MUTED, loc="left")
    return figure, axes


def _logged(shown: Sequence[Shown], key: str) -> list[Curve]:
    """The curves of all groups that have one."""
    return [(item, points) for item in shown if (points := item.group.curve(key))]


def points_of(found: Sequence[Curve]) -> list[list[object]]:
    """What curves show, a line for every point."""
    return [
        [item.group.label, point.rounds, round(point.sent), *told(point.value)]
        for item, points in found
        for point in points
    ]


def _line(axes: "Axes", item: Shown, points: list[Point], x: Callable[[Point], float], among: int) -> End:
    """Mean line, and the band of its interval where there are seeds; the end of the line."""
    across, means = [x(point) for point in points], [point.value.mean for point in points]
    own, group = item.pen, item.group
    marker = own.marker if len(points) <= MARKED and among <= FEW else ""
    grey = {
        "color": MUTED,
        "linewidth": 0.9,
        "alpha": 0.7,
        "zorder": 1.5,
        "linestyle": DASHES[item.number % len(DASHES)],
    }
    above = 2.6 if group.algorithm == "local" else 2.5  # dashes that another line would hide
    coloured = {"color": own.colour, "linestyle": own.dash, "marker": marker, "markersize": 3.5, "zorder": above}
    (line,) = axes.plot(across, means, label=group.label, **(coloured if item.leads else grey))
    line.set_gid(f"line-{item.number}")
    ranges = [point.value.interval for point in points]
    if item.leads and ranges[0] is not None:
        low, high = zip(*(ends for ends in ranges if ends), strict=True)
        band = axes.fill_between(across, low, high, color=own.colour, alpha=0.12 if among <= FEW else 0.05, linewidth=0)
        band.set_gid(f"band-{item.number}")
        axes.plot([across[-1]] * 2, [low[-1], high[-1]], color=own.colour, linewidth=1, solid_capstyle="butt")
    return End(group.label, across[-1], means[-1], item.colour, item.leads, item.number)


def _level(axes: "Axes", item: Shown, last: Point) -> End:
    """A method that sends nothing: its last value over the whole width."""
    own, value = item.pen, last.value
    line = axes.axhline(value.mean, color=own.colour, linestyle=DASHED, linewidth=1.4, label=item.group.label)
    line.set_gid(f"line-{item.number}")
    if value.interval:
        axes.axhspan(*value.interval, color=own.colour, alpha=0.1, linewidth=0).set_gid(f"band-{item.number}")
    return End(f"{item.group.label}, 0 bytes", inf, value.mean, item.colour, item.leads, item.number)
