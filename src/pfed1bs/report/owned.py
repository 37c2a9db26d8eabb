"""Who holds which labels: a bar for every client, cut by label."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pfed1bs.report.pictures import Picture
from pfed1bs.report.style import INK, PAPER, WIDTH, canvas, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Shade = tuple[float, float, float, float]

LEGEND = 20  # labels that are explained one by one; more share a colour scale
DARKEST, LIGHTEST = 0.2, 0.95  # of the colour scale, so that both pages show it
TALLEST = 11.0  # inches


def holdings(counts: np.ndarray) -> Picture:
    """Training samples of every client by label, (K, C)."""
    with look():
        figure = canvas(height(len(counts)))
        axes = figure.add_subplot()
        bars(axes, counts, range(len(counts)), WIDTH * 60)
    lines = [[client, *map(int, row)] for client, row in enumerate(counts)]
    return Picture(figure, ("client", *map(str, range(counts.shape[1]))), lines)


def height(clients: int) -> float:
    """Inches that so many bars take, with what stands around them."""
    return min(TALLEST, 1.3 + clients * (0.2 if clients <= 40 else 0.12))


def bars(axes: "Axes", counts: np.ndarray, order: Sequence[int], width: float) -> None:
    """Draw the rows of `counts` in this order, from the top; `width` is that of the axes in points, about."""
    from matplotlib import colormaps

    classes, most = counts.shape[1], counts.sum(1).max()
    scale = colormaps["viridis"].resampled(256)
    shades = [scale(DARKEST + (LIGHTEST - DARKEST) * label / max(1, classes - 1)) for label in range(classes)]
    held = counts[list(order)]
    lefts = np.cumsum(held, axis=1) - held
    for label in range(classes):
        rows = np.flatnonzero(held[:, label]).tolist()
        axes.barh(
            rows, held[rows, label], 0.86, lefts[rows, label], color=shades[label], edgecolor=PAPER, linewidth=0.4
        )
        for row in rows if len(held) <= 40 and classes > 1 else ():
            if held[row, label] / most * width > 6 * len(str(label)) + 4:
                dark = np.dot(shades[label][:3], (0.3, 0.6, 0.1)) < 0.5
                middle = lefts[row, label] + held[row, label] / 2
                axes.text(middle, row, str(label), ha="center", va="center_baseline", fontsize=6.5,
                          color="#fefefe" if dark else "#010101")  # fmt: skip
    axes.set(xlabel="training samples", ylabel="client", ylim=(len(held) - 0.4, -0.6))
    every = 1 if len(held) <= 50 else 5
    axes.set_yticks(range(0, len(held), every), [str(client) for client in list(order)[::every]])
    axes.grid(False, axis="y")
    if 1 < classes <= LEGEND:
        _explain(axes, shades, 10 if width > 200 else 5)
    elif classes > LEGEND:
        _scale(axes, classes)


def _explain(axes: "Axes", shades: Sequence[Shade], columns: int) -> None:
    """A square for every label, above the bars."""
    from matplotlib.patches import Patch

    squares = [Patch(color=shade, label=str(label)) for label, shade in enumerate(shades)]
    axes.legend(
        handles=squares, ncols=columns, loc="lower left", bbox_to_anchor=(-0.02, 1.0), frameon=False, fontsize=7.5,
        title="label", title_fontsize=8, alignment="left", handlelength=0.7, handletextpad=0.25, columnspacing=0.55,
        borderaxespad=0.1, labelcolor=INK,
    )  # fmt: skip


def _scale(axes: "Axes", classes: int) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    part = colormaps["viridis"](np.linspace(DARKEST, LIGHTEST, 64))
    shown = ScalarMappable(Normalize(0, classes - 1), LinearSegmentedColormap.from_list("labels", part))
    bar = axes.figure.colorbar(shown, ax=axes, label="label", location="top", shrink=0.8, aspect=30)
    bar.outline.set_visible(False)
