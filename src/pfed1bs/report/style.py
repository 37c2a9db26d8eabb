"""How the pictures look: colours, units, direct labels, reproducible SVG."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from math import ceil, floor, log2
from typing import TYPE_CHECKING
from zlib import crc32

from pfed1bs.core.extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dash = str | tuple[int, tuple[float, ...]]

INK, PAPER, GRID = "#1c2733", "#ffffff", "#d9dfe5"
NEUTRAL = "#6b7480"  # local training, the line that the others are measured against
MUTED = "#727b87"  # one of many lines that are there for comparison
# Any two colours stay apart under simulated deutan, protan and tritan vision, on white and on the dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#d14af0", "#524027", "#063a72", "#541339", "#a3562d")
DARK = {  # on the dark page
    INK: "#e6edf3",
    PAPER: "#161b22",
    GRID: "#30363d",
    NEUTRAL: "#9aa4af",
    MUTED: "#8b949e",
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
KNOWN = (  # each has its own colour and dash; those that stand out together in our results differ in colour
    "pfed1bs fedavg fedavg-ft pfed1bs-delta obda obcsaa zsign eden fedbat fedrep pfedme fedprox fedper ditto perfedavg "
    "apfl fedproto dispfl signsgd ef-sign stc fedpaq decomfl ferret powersgd eden-two delta-float32 "
    "scaffold fedbn knnper"
).split()
DPI = 200  # of PNG files
TEXT = 9.5  # points
HANDLE = 2.6  # length of a line in a legend, in its letters
WIDTH, HEIGHT = 4.6, 3.5  # inches; small enough for a telephone to show the text at a readable size


@dataclass(frozen=True)
class Pen:
    """What tells one group from another."""

    colour: str
    dash: Dash
    marker: str


def pen(name: str, variant: int = 0) -> Pen:
    """A pen that depends only on the method's name and on the variant."""
    if name == "local":
        return Pen(NEUTRAL, DASHED if not variant else DASHES[variant % len(DASHES)], "o")
    index = KNOWN.index(name) if name in KNOWN else crc32(name.encode())
    shift = index // len(COLOURS) + variant  # how often the colour is taken already
    colour = COLOURS[(index + 3 * variant) % len(COLOURS)]
    return Pen(colour, DASHES[shift % len(DASHES)], MARKERS[(index + 3 * shift) % len(MARKERS)])


def distinct(named: Sequence[tuple[str, int]]) -> list[Pen]:
    """A pen for every (name, variant); where two would have one colour, the later takes one that is free."""
    found: list[Pen] = []
    for name, variant in named:
        own = pen(name, variant)
        others = [own.colour, *COLOURS]
        free = next((colour for colour in others if colour not in [other.colour for other in found]), own.colour)
        found.append(replace(own, colour=free))
    return found


def look() -> AbstractContextManager[None]:
    """Settings of all pictures: text stays text, the same input gives the same bytes."""
    need("matplotlib", "report")
    from matplotlib import rc_context

    return rc_context(
        {
            "svg.hashsalt": "pfed1bs",
            "svg.fonttype": "none",
            "text.parse_math": False,
            "path.simplify": False,
            "font.family": ["sans-serif"],
            "font.size": TEXT,
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

    return Figure(figsize=(WIDTH, height), dpi=72, layout="constrained")


def svg(figure: "Figure") -> str:
    """The figure as text, without date and versions; what belongs to a group (gid "line-3") says so by its class."""
    text = StringIO()
    with look():
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    found = re.sub(r'id="([a-z]+)-(\d+)"', r'class="\1" data-group="\2"', text.getvalue())
    return "\n".join(line.rstrip() for line in found.splitlines()) + "\n"


def png(figure: "Figure") -> bytes:
    """The figure as pixels."""
    data = BytesIO()
    with look():
        figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    return data.getvalue()


def size(count: float) -> str:
    """Bytes in words: 512 B, 32 KiB, 1.5 MiB."""
    power = min(4, max(0, floor(log2(count) / 10))) if count >= 1 else 0
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def byte_axis(axes: "Axes") -> None:
    """A logarithmic x axis with powers of two as ticks, at most five or six."""
    axes.set_xscale("log", base=2)
    low, high = (log2(end) for end in axes.get_xlim())
    step = next(step for step in (1, 2, 3, 5, 10) if (high - low) / step <= 5 or step == 10)
    ticks = [2.0**power for power in range(ceil(low / step) * step, floor(high) + 1, step)]
    axes.set_xticks(ticks, [size(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("bytes sent so far, all clients (log scale)")


def headed(figure: "Figure", text: str) -> None:
    """A line above a picture that is drawn already, which grows by it."""
    tall, grown = figure.get_figheight(), 0.22
    share = tall / (tall + grown)
    laid_out = figure.get_layout_engine() is not None and figure.get_constrained_layout()
    figure.set_figheight(tall + grown)
    if laid_out:
        figure.get_layout_engine().set(rect=(0, 0, 1, share))  # type: ignore[union-attr, call-arg]
    for axes in () if laid_out else figure.axes:
        left, low, wide, high = axes.get_position().bounds
        axes.set_position((left, low * share, wide, high * share))
    figure.text(0.012, 1 - 0.04 / (tall + grown), text, va="top", fontsize=TEXT, fontweight="bold")


def legend(figure: "Figure", axes: "Axes", title: str = "") -> None:
    """All labelled artists below the axes, each label once, below a title; the figure grows by the rows."""
    named = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels, columns, rows = arranged(list(named), figure.get_figwidth() * 72)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows + bool(title)))
    figure.legend(
        list(named.values()), labels, loc="outside lower center", ncols=columns, frameon=False,
        handlelength=HANDLE, title=title or None, title_fontsize=8,
    )  # fmt: skip


def arranged(labels: Sequence[str], width: float) -> tuple[list[str], int, int]:
    """Labels of a legend of this width in points, its columns and lines: as few as fit, in rows as equal as can be.

    A label that is wider is broken between words.
    """
    beside = (HANDLE + 0.8) * TEXT  # matplotlib's space behind a line
    fitting = [_folded(label, width - beside - 0.8 * TEXT) for label in labels]
    entry = max(width_of(line, TEXT) for label in fitting for line in label) + beside
    most = max(1, int((width + 1.2 * TEXT) / (entry + 2 * TEXT)))  # 2 between columns, 0.4 at both edges
    columns = ceil(len(labels) / ceil(len(labels) / most))
    rows = ceil(len(labels) / columns) + sum(len(label) - 1 for label in fitting)
    return ["\n".join(label) for label in fitting], columns, rows


def _folded(label: str, width: float) -> list[str]:
    """Lines of whole words that are no wider than this in bold letters, as far as words allow."""
    lines: list[str] = []
    for word in label.split():
        longer = " ".join([*lines[-1:], word])
        fits = lines and width_of(longer, TEXT, "bold") <= width
        lines[-1:] = [longer] if fits else [*lines[-1:], word]
    return lines


def width_of(line: str, size: float, weight: str = "normal") -> float:
    """Of a line of text, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(line, FontProperties(size=size, weight=weight), False)[0])
