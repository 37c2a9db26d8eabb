"""Lines over rounds, a panel for every method that was run with several settings, a line for each of these."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from pfed1bs.report.groups import Group, Point
from pfed1bs.report.pictures import Picture, Shown, bars_of
from pfed1bs.report.plots import HEADS, points_of
from pfed1bs.report.style import COLOURS, DASHES, canvas, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIGH = 97.0  # percent; where methods end above it, an axis is drawn by what they get wrong
TICKS = (50.0, 80.0, 90.0, 95.0, 97.0, 98.0, 98.5, 99.0, 99.2, 99.5, 99.7, 99.8, 99.9)
MANY = 8  # methods; of more, those with the most seeds have panels
EARLY = 0.1  # of the rounds, whose values need not be in view on a linear axis


def accuracy_methods(shown: Sequence[Shown]) -> Picture | None:
    """The personal metric against rounds."""
    metric = shown[0].group.metric
    return _panels(shown, metric.name, f"personal {metric.words}", _wrong if metric.percent else _late)


def loss_methods(shown: Sequence[Shown]) -> Picture | None:
    """Mean training loss of the clients of each round."""
    return _panels(shown, "loss", "training loss", _log)


METHODS = {"accuracy-methods": accuracy_methods, "loss-methods": loss_methods}


def _panels(
    shown: Sequence[Shown], key: str, words: str, scaled: Callable[["Axes", list[list[Point]]], str]
) -> Picture | None:
    methods: dict[str, list[tuple[Shown, list[Point]]]] = {}
    for item in shown:
        if points := item.group.curve(key):
            methods.setdefault(item.group.algorithm, []).append((item, points))
    if not methods:
        return None
    methods = {name: found for name, found in methods.items() if len(found) > 1} or methods
    if len(methods) > MANY:
        seeds = {name: min(len(item.group.records) for item, _ in found) for name, found in methods.items()}
        methods = {name: found for name, found in methods.items() if seeds[name] == max(seeds.values())}
    rows = ceil(len(methods) / 2)
    with look():
        figure = canvas(0.4 + 2.3 * rows)
        grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (name, found) in zip(grid, methods.items(), strict=False):
            for number, (item, points) in enumerate(found):
                _line(axes, item.group, points, number)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("rounds")
            axes.tick_params(labelsize=8, labelbottom=True, labelleft=True)
            axes.locator_params(axis="x", integer=True, nbins=4)
        for axes in grid[len(methods) :]:
            axes.set_axis_off()
        curves = [points for found in methods.values() for _, points in found]
        words += scaled(grid[0], curves)
        _name(figure, grid, len(methods), bars_of([item.group for found in methods.values() for item, _ in found]))
        figure.supylabel(words, fontsize=9.5)
    return Picture(figure, HEADS, points_of([pair for found in methods.values() for pair in found]))


def _name(figure: "Figure", grid: np.ndarray, panels: int, bars: str) -> None:
    """Say what bars are, and which line is which: once where all panels have the same settings, or in every panel."""
    names = [axes.get_legend_handles_labels() for axes in grid[:panels]]
    if all(labels == names[0][1] for _, labels in names[1:]):
        if panels < len(grid):
            grid[-1].legend(*names[0], frameon=False, handlelength=2.6, loc="center", title=bars, title_fontsize=8)
        else:
            legend(figure, grid[0], bars)
        return
    figure.supxlabel(bars, fontsize=8)
    for axes in grid[:panels]:
        axes.legend(fontsize=7.5, handlelength=2.2, labelspacing=0.2, edgecolor="none", framealpha=0.9)


def _line(axes: "Axes", group: Group, points: list[Point], number: int) -> None:
    """Mean line, and the interval of its end, a little aside so that those of several lines can be seen."""
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
    rounds, means = [point.rounds for point in points], [point.value.mean for point in points]
    label = group.label.partition(" ")[2] or group.label
    axes.plot(rounds, means, label=label, color=colour, linestyle=dash, linewidth=1.2)
    if points[-1].value.interval:
        aside = rounds[-1] * (1.02 + 0.03 * number)
        axes.plot([aside] * 2, points[-1].value.interval, color=colour, linewidth=1, solid_capstyle="butt")


def _log(axes: "Axes", curves: list[list[Point]]) -> str:
    if not all(point.value.mean > 0 for points in curves for point in points):
        return ""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    return " (log scale)"


def _late(axes: "Axes", curves: list[list[Point]]) -> str:
    """From the lowest value after the first rounds on."""
    late = [point.value.mean for points in curves for point in points if point.rounds > EARLY * points[-1].rounds]
    axes.set_ylim(bottom=min(late))
    return ""


def _wrong(axes: "Axes", curves: list[list[Point]]) -> str:
    """By the logarithm of what is missing to 100 where that is little, otherwise linear."""
    ends = [points[-1].value.mean for points in curves]
    if min(ends) < HIGH or max(ends) > TICKS[-1]:
        return _late(axes, curves)
    axes.set_yscale("function", functions=(_nines, lambda value: 100 - 10 ** (2 - value)))
    low = min(point.value.mean for points in curves for point in points)
    high = max((point.value.interval or (0, point.value.mean))[1] for points in curves for point in points[-1:])
    axes.set_ylim(low - 0.1 * (100 - low), min(high + 0.1 * (100 - high), TICKS[-1]))
    axes.set_yticks([tick for tick in TICKS if low <= tick <= high])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    return ", log scale of what is missing"


def _nines(percent: np.ndarray) -> np.ndarray:
    """How many nines a share has."""
    result: np.ndarray = 2 - np.log10(np.maximum(100 - percent, 1e-6))
    return result
