"""Where to look next for good options: along one axis after the other, in factors, finer when all are bracketed.

One rule for all methods: from the default, values on both sides along the first axis; where the best lies on an edge,
one more on that side, and so on; then the next axis from the best place so far. When every axis has its best value
inside, the neighbours that were left out, then factors of half the width. How many places are tried is the caller's.
"""

from dataclasses import dataclass, field
from math import copysign, dist, inf
from statistics import fmean

FACTOR = 3.0  # between neighbours, at first
FINEST = 2.0**-9  # of a factor
PARTS = (1.0, 0.5, 0.25)  # of a step that are tried where the option does not allow the whole of it
DIGITS = 4

Place = tuple[float, ...]  # how many factors each option is away from its start


@dataclass(frozen=True)
class Axis:
    """An option that is searched."""

    option: str
    start: float
    share: bool = False  # lies between 0 and 1 and moves in factors of its odds

    def value(self, at: float) -> float:
        """The value so many factors away from the start."""
        first = self.start / (1 - self.start) if self.share else self.start
        moved = first * FACTOR**at
        return float(f"{moved / (1 + moved) if self.share else moved:.{DIGITS}g}")


@dataclass
class Search:
    """What is known of a method: the score of every place that was tried, and the places that its options refuse."""

    axes: tuple[Axis, ...]
    tried: dict[Place, float] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)  # and why

    def options(self, place: Place) -> dict[str, float]:
        """The options at a place."""
        return {axis.option: axis.value(at) for axis, at in zip(self.axes, place, strict=True)}

    @property
    def best(self) -> Place:
        """The highest score; of equal ones that in their middle, then that nearest to the start."""
        highest = max(self.tried.values())
        equal = [place for place, score in self.tried.items() if score == highest]
        middle, start = tuple(map(fmean, zip(*equal, strict=True))), self._start
        return min(equal, key=lambda place: (dist(place, middle), dist(place, start), place))

    def wanted(self) -> list[Place]:
        """One or two places to try next; none when the finest steps around the best place are done."""
        if not self.tried:
            return [self._start]
        best, axes = self.best, range(len(self.axes))
        for axis in axes:
            if sides := [side for sign in (-1, 1) if (side := self._missing(best, axis, sign))]:
                return sides
        width = 1.0
        while width >= FINEST:
            for axis in axes:
                far = [step for step in (-width, width) if not self._near(best, axis, step)]
                if sides := [side for step in far if (side := self._side(best, axis, step))]:
                    return sides
            width /= 2
        return []

    def edge(self, axis: int) -> str:
        """Where the best value of an option lies: inside of those tried, at a limit of the option, at an open end.

        Inside is judged with the other options at their best. Where a side was tried with others alone, that is said.
        """
        best, found = self.best, []
        for sign, end in ((-1, "lower"), (1, "upper")):
            if self._near(best, axis, sign * inf):
                continue
            if self._side(best, axis, sign) is None:
                found.append(f"at its {end} limit")
            else:
                elsewhere = self._beyond(best, axis, sign)
                found.append(f"{end} side tried with other options" if elsewhere else f"at the {end} end")
        return ", ".join(found) or "inside"

    @property
    def _start(self) -> Place:
        return (0.0,) * len(self.axes)

    def _beyond(self, place: Place, axis: int, sign: float) -> bool:
        """Whether a value of an option beyond this one has been tried."""
        return any((other[axis] - place[axis]) * sign > 0 for other in self.tried)

    def _near(self, place: Place, axis: int, step: float) -> bool:
        """Whether a place that differs in this option alone, by no more than a step, has been tried."""
        line = [other[axis] for other in self.tried if _rest(other, axis) == _rest(place, axis)]
        return any(0 < (at - place[axis]) * copysign(1, step) <= abs(step) for at in line)

    def _missing(self, place: Place, axis: int, sign: float) -> Place | None:
        """The neighbour on a side where nothing has been tried yet; None: something has, or nothing can be."""
        return None if self._beyond(place, axis, sign) else self._side(place, axis, sign)

    def _side(self, place: Place, axis: int, step: float) -> Place | None:
        """The place a step away, or the largest part of it that the option allows; None at its limit."""
        ends = [place[axis] + part * step for part in PARTS]
        free = [end for end in ends if all((end - limit) * step < 0 for limit in self._limits(axis, step))]
        return (*place[:axis], free[0], *place[axis + 1 :]) if free else None

    def _limits(self, axis: int, sign: float) -> list[float]:
        """Where the option was refused on the way up or down from a place that was tried; whatever is beyond is too."""
        return [
            other[axis]
            for other in self.refused
            for place in self.tried
            if _rest(place, axis) == _rest(other, axis) and (other[axis] - place[axis]) * sign > 0
        ]


def _rest(place: Place, axis: int) -> Place:
    return place[:axis] + place[axis + 1 :]
