"""Names at the ends of lines, where none covers another: in a column beside the axes, or near points anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isinf
from typing import TYPE_CHECKING

import numpy as np

from pfed1bs.report.style import HANDLE, MARKERS, PAPER, TEXT, arranged, width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Box = tuple[float, float, float, float]  # left, bottom, right, top, in points
LEADING = 1.25  # height of a line of text in its size
SMALL = 8.5  # size of the letters of a name that does not stand out, or stands in a list
GAP = 6.0  # points between an end and its name
REACH = 30.0  # points, the farthest that a name lies from an end
WORST = 60.0  # points away, and what else stands against a place, of the worst that is taken
FILLS = ("full", "none", "left", "bottom")
LONGEST = 20  # letters in a line of a name


@dataclass(frozen=True)
class End:
    """Where a line ends, and how it is called there."""

    text: str
    x: float  # inf: the right edge of the axes
    y: float
    colour: str
    strong: bool = True  # otherwise in smaller and thinner letters
    number: int | None = None  # of its group, for a page that finds it by this

    @property
    def size(self) -> float:
        """Of the letters, in points."""
        return TEXT if self.strong else SMALL

    @property
    def words(self) -> str:
        """The name in lines that are short enough, broken between words."""
        lines: list[str] = []
        for word in self.text.split():
            fits = lines and len(lines[-1]) + len(word) < LONGEST
            lines[-1:] = [f"{lines[-1]} {word}"] if fits else [*lines[-1:], word]
        return "\n".join(lines)

    @property
    def weight(self) -> str:
        """Of the letters."""
        return "bold" if self.strong else "normal"


def name_ends(figure: "Figure", axes: "Axes", ends: Sequence[End], free: bool = False) -> None:
    """Write names beside the ends of lines, right of the axes in one column, or where there is room if `free`.

    The axes shrink by the room that the names take; the figure grows by a list of those that found none. It must not
    be laid out again afterwards.
    """
    sizes = [box_of(end) for end in ends]
    width, height = figure.get_size_inches() * 72
    room = max((wide for wide, _ in sizes), default=0) + 2.2 * GAP
    figure.get_layout_engine().set(rect=(0, 0, 1 - room / width, 1))  # type: ignore[union-attr, call-arg]
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine("none")
    scale = 72 / figure.dpi
    left, low, right, high = (scale * edge for edge in axes.get_window_extent().extents)
    spots = [scale * axes.transData.transform((axes.get_xlim()[1] if isinf(end.x) else end.x, end.y)) for end in ends]
    if free:
        lines = [scale * line.get_transform().transform(line.get_xydata()) for line in _inked(axes)]
        order = sorted(range(len(ends)), key=lambda i: (not ends[i].strong, -spots[i][1]))
        corners = near([(*map(float, spots[i]),) for i in order], [sizes[i] for i in order], (left, low, width, height),
                       np.concatenate([_dense(line) for line in lines]))  # fmt: skip
        placed = [*zip(order, corners, strict=True)]
        grown = _list(figure, axes, [ends[i] for i, corner in placed if corner is None])
        for i, corner in placed:
            if corner is not None:
                tip = float(spots[i][0]), float(spots[i][1]) + grown
                _write(axes, ends[i], tip, (corner[0], corner[1] + grown))
        return
    middles = column([float(y) for _, y in spots], [tall for _, tall in sizes], 2, height - 2)
    for end, spot, middle in zip(ends, spots, middles, strict=True):
        _write(axes, end, (float(spot[0]), float(spot[1])), (right + 1.5 * GAP, middle))


def box_of(end: End) -> tuple[float, float]:
    """Width and height of a name, in points."""
    lines = end.words.split("\n")
    width = max(width_of(line, end.size, end.weight) for line in lines)
    return width, LEADING * end.size * len(lines)


def column(heights: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Middles of texts as near to their heights as they can be in this order, one above the other, none over another.

    Least squares under an order: neighbours that would overlap are pooled.
    """
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    down = [0.0, *accumulate((sizes[i] + sizes[j]) / 2 for i, j in pairwise(order))]  # each below the first
    pools: list[list[float]] = []
    for i, offset in zip(order, down, strict=True):
        pools.append([heights[i] + offset])
        while len(pools) > 1 and np.mean(pools[-2]) < np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    tops = [float(np.mean(pool)) for pool in pools for _ in pool]
    least, most = low + down[-1] + sizes[order[-1]] / 2, high - sizes[order[0]] / 2
    found = dict(
        zip(order, (max(least, min(top, most)) - off for top, off in zip(tops, down, strict=True)), strict=True)
    )
    return [found[i] for i in range(len(heights))]


def near(
    spots: Sequence[tuple[float, ...]], sizes: Sequence[tuple[float, float]], bounds: Box, ink: np.ndarray
) -> list[tuple[float, float] | None]:
    """The left middle of each text: near its spot, over no text before it, and over as little ink (P, 2) as can be.

    None where every place is far from its spot, nearer to another one, or over a text or several lines.
    """
    taken, share = np.empty((0, 4)), np.linspace(0.2, 1, 9)[:, None]
    places: list[tuple[float, float] | None] = []
    for number, ((x, y), (wide, tall)) in enumerate(zip(spots, sizes, strict=True)):
        aside = np.array([GAP, 4 * GAP, -wide / 2, -wide - GAP, -wide - 5 * GAP])
        up = np.arange(-12, 13) * tall / 4
        left, middle = (part.ravel() for part in np.broadcast_arrays(x + aside, (y + up)[:, None]))
        boxes = np.stack([left, middle - tall / 2, left + wide, middle + tall / 2], 1)
        away = _apart(boxes, np.array(spots))
        strange = away[:, number] > np.minimum(away.min(1) + 1e-6, REACH)
        ends = np.stack([np.clip(x, left, left + wide), middle], 1)  # of the thin lines to the spot
        leaders = (x, y) + share * (ends[:, None] - (x, y))  # (N, 9, 2)
        crossed = _inside(leaders.reshape(-1, 2), taken).reshape(len(boxes), -1).sum(1)
        amid = 8.0 * ((left < x) & (x < left + wide))  # beside an end a name is read sooner than above or below it
        cost = away[:, number] + amid + _cost(boxes, taken, bounds, ink) + 40.0 * crossed + 1e4 * strange
        best = int(np.argmin(cost))
        if cost[best] > WORST:
            places.append(None)
            continue
        taken, ink = np.concatenate([taken, boxes[best : best + 1]]), np.concatenate([ink, *[leaders[best]] * 3])
        places.append((float(left[best]), float(middle[best])))
    return places


def _apart(boxes: np.ndarray, spots: np.ndarray) -> np.ndarray:
    """The distance of each box (N, 4) from each spot (M, 2), (N, M)."""
    gaps = np.maximum(boxes[:, None, :2] - spots, spots - boxes[:, None, 2:])
    result: np.ndarray = np.hypot(*np.moveaxis(np.maximum(gaps, 0), 2, 0))
    return result


def _inside(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """In how many boxes each point lies."""
    found: np.ndarray = ((points[:, None] > boxes[:, :2]) & (points[:, None] < boxes[:, 2:])).all(2).sum(1)
    return found


def _cost(boxes: np.ndarray, taken: np.ndarray, bounds: Box, ink: np.ndarray) -> np.ndarray:
    """How bad a text lies in each of the boxes (N, 4): outside, over another, over lines."""
    outside = (boxes[:, :2] < bounds[:2]).any(1) | (boxes[:, 2:] > bounds[2:]).any(1)
    over = ((boxes[:, None, :2] < taken[:, 2:]) & (taken[:, :2] < boxes[:, None, 2:])).all(2).sum(1)
    within = ((ink >= boxes[:, None, :2] - 1) & (ink <= boxes[:, None, 2:] + 1)).all(2).sum(1)
    result: np.ndarray = 1e4 * outside + 1e3 * over + 3.0 * within
    return result


def _inked(axes: "Axes") -> list["Line2D"]:
    """The lines that names should not cover, thick ones more than once."""
    return [line for line in axes.lines for _ in range(1 + 2 * (line.get_linewidth() > 1))]


def _dense(line: np.ndarray, every: float = 6.0) -> np.ndarray:
    """Points along a line of points, so close that no text fits between them."""
    parts = [line[-1:]]
    for first, second in pairwise(line):
        count = max(1, int(np.hypot(*(second - first)) / every))
        parts.append(first + (second - first) * np.linspace(0, 1, count, endpoint=False)[:, None])
    return np.concatenate(parts)


def _list(figure: "Figure", axes: "Axes", ends: Sequence[End]) -> float:
    """Names below the axes, beside pieces of their lines; the points that the figure grew by."""
    if not ends:
        return 0.0
    lines = {line.get_gid(): line for line in axes.lines}
    thin = [lines[f"line-{end.number}"] for end in ends if not end.strong]
    for number, line in enumerate(thin):  # of one colour: where they end tells them apart
        fill = FILLS[number // len(MARKERS) % len(FILLS)]
        line.set(marker=MARKERS[number % len(MARKERS)], markevery=[-1], markersize=4.5, fillstyle=fill)
    wide, tall = figure.get_size_inches()
    names, columns, rows = arranged([end.text for end in ends], 72 * wide)
    grown = 0.2 * rows
    place = axes.get_position().bounds
    figure.set_figheight(tall + grown)
    axes.set_position(
        (place[0], (place[1] * tall + grown) / (tall + grown), place[2], place[3] * tall / (tall + grown))
    )
    texts = figure.legend(
        [lines[f"line-{end.number}"] for end in ends], names, loc="lower center", ncols=columns, frameon=False,
        handlelength=HANDLE, fontsize=SMALL, borderaxespad=0,
    ).get_texts()  # fmt: skip
    for end, text in zip(ends, texts, strict=True):
        text.set(color=end.colour, fontweight=end.weight, gid=f"name-{end.number}")
    return 72 * grown


def _write(axes: "Axes", end: End, spot: tuple[float, float], place: tuple[float, float]) -> None:
    """The name with its left middle at a place, and a thin line to where it belongs if that is not beside it."""
    side = float(np.clip((spot[0] - place[0]) / box_of(end)[0], 0, 1))  # of the text where the line begins
    apart = abs(place[1] - spot[1]) > box_of(end)[1] / 2 + GAP or place[0] - spot[0] > 3 * GAP
    leader = {"arrowstyle": "-", "linewidth": 0.5, "color": end.colour, "alpha": 0.6, "relpos": (side, 0.5)}
    paper = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
    note = axes.annotate(
        end.words, xy=spot, xycoords="figure points", xytext=place, textcoords="figure points",
        va="center", ha="left", color=end.colour, fontsize=end.size, fontweight=end.weight, linespacing=1.1,
        annotation_clip=False, bbox=paper, arrowprops=leader | {"shrinkA": 1, "shrinkB": 2} if apart else None,
    )  # fmt: skip
    if end.number is not None:
        note.set_gid(f"name-{end.number}")
