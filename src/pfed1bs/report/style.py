"""How the pictures look: colours, units, direct labels, reproducible SVG."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import StringIO
from math import ceil, floor, isinf, log2
from typing import TYPE_CHECKING
from zlib import crc32

from pfed1bs.core.extras import need
from pfed1bs.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[float, ...]]

INK, PAPER, GRID = "#1c2733", "#ffffff", "#d9dfe5"
NEUTRAL = "#6b7480"  # local training, the line that the others are measured against
# Any two colours stay apart under simulated deutan, protan and tritan vision, on white and on the dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#d14af0", "#524027", "#063a72", "#541339", "#a3562d")
DARK = {  # on the dark page
    INK: "#e6edf3",
    PAPER: "#161b22",
    GRID: "#30363d",
    NEUTRAL: "#9aa4af",
    **dict(
        zip(
            COLOURS,
            ("#4fa3e0", "#ff8a4c", "#2bc79b", "#ce1df4", "#fdf715", "#4efefe", "#ef3361", "#edad14"),
            strict=True,
        )
    ),
}
MARKERS = "os^DvPX*"
DASHES: tuple[Dash, ...] = ("-", (0, (6, 1.5)), (0, (3, 1.2, 1, 1.2)), (0, (1, 1)))
DASHED: Dash = (0, (4, 3))
KNOWN = (  # each has its own colour and dash, the same in every picture
    "pfed1bs fedavg fedavg-ft pfed1bs-delta obda obcsaa zsign eden fedbat ditto pfedme fedprox fedper fedrep perfedavg "
    "apfl fedproto dispfl signsgd ef-sign stc fedpaq decomfl ferret powersgd eden-two delta-float32 "
    "fedbn scaffold knnper"
).split()
MOST_LABELS, LONGEST_LABEL = 8, 24  # beyond these a legend is easier to read
WIDTH, HEIGHT = 5.0, 3.5  # inches; small enough for a telephone to show the text at a readable size


@dataclass(frozen=True)
class Pen:
    """What tells one group from another."""

    colour: str
    dash: Dash
    marker: str


def pen(group: Group) -> Pen:
    """A pen that depends only on the method's name and on the variant."""
    name = group.algorithm
    if name == "local":
        return Pen(NEUTRAL, DASHED if not group.variant else DASHES[group.variant % len(DASHES)], "o")
    index = KNOWN.index(name) if name in KNOWN else crc32(name.encode())
    shift = index // len(COLOURS) + group.variant  # how often the colour is taken already
    colour = COLOURS[(index + 3 * group.variant) % len(COLOURS)]
    return Pen(colour, DASHES[shift % len(DASHES)], MARKERS[(index + 3 * shift) % len(MARKERS)])


def look() -> AbstractContextManager[None]:
    """Settings of all pictures: text stays text, the same input gives the same bytes."""
    need("matplotlib", "report")
    from matplotlib import rc_context

    return rc_context(
        {
            "svg.hashsalt": "pfed1bs",
            "svg.fonttype": "none",
            "text.parse_math": False,
            "font.family": ["sans-serif"],
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.linewidth": 0.6,
            "grid.color": GRID,
            "axes.facecolor": PAPER,
            "figure.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        }
    )


def canvas(height: float = HEIGHT) -> "Figure":
    """An empty figure; call it inside `look()`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg(figure: "Figure") -> str:
    """The figure as text, without date and versions."""
    text = StringIO()
    with look():
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def size(count: float) -> str:
    """Bytes in words: 512 B, 32 KiB, 1.5 MiB."""
    power = min(4, max(0, floor(log2(count) / 10))) if count >= 1 else 0
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def byte_axis(axes: "Axes") -> None:
    """A logarithmic x axis with powers of two as ticks, at most seven."""
    axes.set_xscale("log", base=2)
    low, high = (log2(end) for end in axes.get_xlim())
    step = next(step for step in (1, 2, 3, 5, 10) if (high - low) / step <= 7 or step == 10)
    ticks = [2.0**power for power in range(ceil(low / step) * step, floor(high) + 1, step)]
    axes.set_xticks(ticks, [size(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bytes sent so far, all clients (log scale)")


def named(figure: "Figure", axes: "Axes", drawn: Sequence[tuple[Group, float, float]]) -> None:
    """Names at the ends of the lines where they fit, otherwise a legend."""
    if len(drawn) <= MOST_LABELS and max(len(group.label) for group, _, _ in drawn) <= LONGEST_LABEL:
        ends(axes, drawn)
    else:
        legend(figure, axes)


def ends(axes: "Axes", drawn: Sequence[tuple[Group, float, float]]) -> None:
    """Write each group's name behind the end (x, y) of its line; names that would overlap move down.

    An infinite x is the right edge: the line of a method that sends nothing.
    """
    axes.autoscale_view()  # otherwise limits follow the data only when drawn
    to_axes, edge = axes.transScale + axes.transLimits, axes.get_xlim()[1]
    names = [f"{group.label}, 0 bytes" if isinf(x) else group.label for group, x, _ in drawn]
    spots = [to_axes.transform((min(x, edge), y)) for _, x, y in drawn]
    heights = apart([(x, x + 0.03 + 0.019 * len(name), y) for (x, y), name in zip(spots, names, strict=True)])
    box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
    for (group, _, _), (x, _), y, name in zip(drawn, spots, heights, names, strict=True):
        axes.text(x + 0.02, y, name, transform=axes.transAxes, va="center", color=pen(group).colour, bbox=box)


def apart(spots: Sequence[tuple[float, float, float]], gap: float = 0.067, floor: float = 0.02) -> list[float]:
    """Heights y of texts (left, right, y) moved down, then up from the floor, until none covers another."""
    heights = [y for *_, y in spots]
    order = sorted(range(len(spots)), key=lambda i: -heights[i])
    for side, turn in ((-1, order), (1, order[::-1])):
        for place, i in enumerate(turn):
            heights[i] = max(heights[i], floor) if side > 0 else heights[i]
            for j in turn[:place]:
                if spots[i][0] < spots[j][1] and spots[j][0] < spots[i][1]:
                    heights[i] = side * max(side * heights[i], side * heights[j] + gap)
    return heights


def legend(figure: "Figure", axes: "Axes") -> None:
    """All labelled artists below the axes; the figure grows by the rows."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(4, 64 // (6 + max(map(len, labels)))))
    figure.set_figheight(figure.get_figheight() + 0.2 * ceil(len(labels) / columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6)
