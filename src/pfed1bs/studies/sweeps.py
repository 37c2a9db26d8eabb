"""A picture of what runs come to against one of their options."""

from collections.abc import Sequence

from pfed1bs.core.options import shown
from pfed1bs.report.groups import Group, Spread, differing
from pfed1bs.report.pictures import SPREAD, Picture, bars_of, told
from pfed1bs.report.plots import LOGGED
from pfed1bs.report.style import COLOURS, DASHES, MARKERS, canvas, legend, look

LEFT_OUT = ("initial", "ties", "potential")
SAID = {"rounds": "{} rounds", "data.partition": "{}", "data.cap": "{} samples"}  # others by their key


def against(option: str, found: Sequence[Group]) -> Picture:
    """The metric and the diagnostics of the last evaluation against an option; a line for other settings together."""
    key = f"algorithm.{option}"
    others = [name for name in differing([group.settings for group in found]) if name != key]
    lines: dict[str, list[Group]] = {}
    for group in found:
        told_of = [_said(name, group.settings.get(name)) for name in others]
        lines.setdefault(", ".join(told_of) or group.algorithm, []).append(group)
    metric = found[0].metric
    titles = {metric.name: f"personal {metric.words}"} | {k: v for k, v in LOGGED.items() if k not in LEFT_OUT}
    panels = {name: words for name, words in titles.items() if any(group.curve(name) for group in found)}
    points: list[list[object]] = []
    across = sorted({_value(group, key) for group in found})
    with look():
        figure = canvas(0.2 + 2.2 * ((len(panels) + 1) // 2))
        for place, (name, words) in enumerate(panels.items(), 1):
            axes = figure.add_subplot((len(panels) + 1) // 2, 2, place)
            for number, (label, groups) in enumerate(lines.items()):
                ends = [(_value(group, key), end) for group in groups if (end := _end(group, name))]
                ends.sort(key=lambda end: end[0])
                ranges = [value.interval or (value.mean, value.mean) for _, value in ends]
                low = [value.mean - max(down, 0.0) for (_, value), (down, _) in zip(ends, ranges, strict=True)]
                high = [up - value.mean for (_, value), (_, up) in zip(ends, ranges, strict=True)]
                axes.errorbar(
                    [x for x, _ in ends], [value.mean for _, value in ends], (low, high), label=label, markersize=3.5,
                    color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], linewidth=1.2,
                    linestyle=DASHES[number % len(DASHES)], elinewidth=1,
                )  # fmt: skip
                points += [[name, label, x, *told(value)] for x, value in ends]
            axes.set_xscale("symlog", linthresh=min((x for x in across if x > 0), default=1.0), linscale=0.3)
            axes.set_xticks(across[::2], [f"{x:g}" for x in across[::2]], fontsize=7)
            axes.set_xticks([], minor=True)
            if name == "pull":  # from nothing to many times a gradient that has died
                axes.set_yscale("log", nonpositive="mask")
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("")
            axes.tick_params(axis="y", labelsize=7)
            axes.set_title(words, fontsize=8)
            axes.set_xlabel(option if place > len(panels) - 2 else "")
        legend(figure, figure.axes[0], bars_of(found))
    return Picture(figure, ("shown", "setting", option, *SPREAD), points)


def _said(name: str, value: object) -> str:
    """A setting in words."""
    key = name.rpartition(".")[2]
    return SAID.get(name, f"{key} {{}}").format("all" if name == "data.cap" and value is None else shown(value))


def _end(group: Group, name: str) -> Spread | None:
    """The value of the last evaluation; None where it is not finite, as a share of a gradient that has died."""
    points, last = group.curve(name), group.curve(group.metric.name)[-1:]
    return points[-1].value if points and [points[-1].rounds] == [end.rounds for end in last] else None


def _value(group: Group, key: str) -> float:
    return float(str(group.settings[key]))
