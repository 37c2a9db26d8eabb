"""A picture, in the forms that people want it in: drawn as lines or pixels, and as the numbers behind it."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from pfed1bs.core.errors import UserError
from pfed1bs.report.groups import Group, Spread
from pfed1bs.report.leading import BESIDE, OWN, leading
from pfed1bs.report.style import KNOWN, MUTED, Pen, distinct, png, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPREAD = ("mean", "std", "low", "high", "seeds")  # columns that describe a number over seeds


@dataclass(frozen=True)
class Picture:
    """A figure and what it shows, a line for every point."""

    figure: "Figure"
    heads: tuple[str, ...]
    lines: Sequence[Sequence[object]]

    @cached_property
    def svg(self) -> str:
        """As text, in which text stays text."""
        return svg(self.figure)

    @property
    def csv(self) -> str:
        """The numbers."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.heads, *self.lines])
        return text.getvalue()

    def write(self, path: Path, made: str = "") -> None:
        """The file that the ending asks for: .svg, which says how it was made if that is told, .png or .csv."""
        said = f"\\1\n <desc>{escape(made)}</desc>" if made else "\\1"
        drawn = re.sub(r"(<svg [^>]*>)", said, self.svg, count=1)
        kinds = {".svg": lambda: drawn.encode(), ".png": lambda: png(self.figure), ".csv": lambda: self.csv.encode()}
        if path.suffix not in kinds:
            raise UserError(f"{path} names no kind of picture", f"end it in {', '.join(kinds)}")
        path.write_bytes(kinds[path.suffix]())


@dataclass(frozen=True)
class Shown:
    """A group in a picture."""

    number: int  # among all groups, from 0; what a page finds it by
    group: Group
    leads: bool  # otherwise it is there for comparison, in grey where there are many
    pen: Pen

    @property
    def colour(self) -> str:
        """Of its name and its marks."""
        return self.pen.colour if self.leads else MUTED


def told(value: Spread) -> list[object]:
    """A number over seeds, for the columns of SPREAD; six digits after the point."""
    numbers = (value.mean, value.deviation, *(value.interval or (None, None)))
    return [*(None if number is None else round(number, 6) for number in numbers), value.seeds]


def bars_of(found: Sequence[Group], what: str = "bars") -> str:
    """What bars in a picture are, where there are any."""
    counts = sorted({len(group.records) for group in found})
    several = counts[counts[0] == 1 :]
    seeds = " to ".join(map(str, dict.fromkeys((several[0], several[-1])))) if several else ""
    return f"{what}: 95 % intervals, {seeds} seeds{'; one seed has none' * (counts[0] == 1)}" if seeds else ""


def shown_of(found: Sequence[Group]) -> list[Shown]:
    """The groups with their numbers, which of them stand out, and their pens."""
    leads = leading(found)
    known = [*BESIDE, OWN, *KNOWN]  # by name, so that a method that stands out has one colour in all pictures
    names = [group.algorithm for group in found]
    ranks = [known.index(name) if name in known else len(known) for name in names]
    order = sorted(range(len(found)), key=lambda i: (not leads[i], ranks[i], names[i], found[i].variant))
    pens = dict(zip(order, distinct([(found[i].algorithm, found[i].variant) for i in order]), strict=True))
    return [Shown(number, group, leads[number], pens[number]) for number, group in enumerate(found)]
