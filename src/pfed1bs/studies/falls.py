"""A picture of what every method has lost by its last round since its best one, a mark for every server step."""

from collections.abc import Sequence

import numpy as np

from pfed1bs.report.groups import Group, Spread
from pfed1bs.report.pictures import SPREAD, Picture, Shown, bars_of, told
from pfed1bs.report.style import COLOURS, MARKERS, canvas, legend, look
from pfed1bs.studies.cells import best

TICKS = (0, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100)


def falls(shown: Sequence[Shown]) -> Picture | None:
    """From the evaluation with the best mean to the end, methods that lose most on top; nothing of a single method."""
    methods: dict[str, list[Group]] = {}
    for item in shown:
        methods.setdefault(item.group.algorithm, []).append(item.group)
    steps = {name: _by_step(own) for name, own in methods.items() if len(own) > 1}
    lost = {name: {share: _lost(group) for share, group in own.items()} for name, own in steps.items()}
    if len(lost) < 2:
        return None
    order = sorted(lost, key=lambda name: max(value.mean for value in lost[name].values()))
    shares = sorted({share for own in lost.values() for share in own}, reverse=True)
    with look():
        figure = canvas(0.6 + 0.19 * len(order))
        axes = figure.add_subplot()
        for number, share in enumerate(shares):
            found = [(place, lost[name][share]) for place, name in enumerate(order) if share in lost[name]]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                [value.mean for _, value in found], [place for place, _ in found], label=f"{share:g}", color=colour,
                marker=MARKERS[number % len(MARKERS)], markersize=4, linestyle="none", clip_on=False,
            )  # fmt: skip
            for place, value in found:
                if value.interval:
                    low, high = (max(end, 0.0) for end in value.interval)
                    axes.plot([low, high], [place + 0.12 * (number - 1)] * 2, color=colour, linewidth=1)
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        far = max(value.mean for own in lost.values() for value in own.values())
        axes.set_xticks([tick for tick in TICKS if tick <= far], [f"{tick:g}" for tick in TICKS if tick <= far])
        axes.set_xlim(left=0)
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel(f"{shown[0].group.metric.words} lost since the best evaluation (root scale)")
        bars = bars_of([group for own in steps.values() for group in own.values()])
        legend(figure, axes, ", ".join(filter(None, ["server step, of the longest", bars])))
    points = [[name, share, *told(value)] for name in order for share, value in lost[name].items()]
    return Picture(figure, ("method", "step", *SPREAD), points)


def _by_step(own: Sequence[Group]) -> dict[float, Group]:
    """Groups of a method by the one number that their labels end with, as a share of the largest."""
    values = [float(group.label.rpartition("=")[2]) for group in own]
    return {round(value / max(values), 3): group for value, group in zip(values, own, strict=True)}


def _lost(group: Group) -> Spread:
    """What the metric is worse at the end than where its mean was best, over the seeds."""
    metric = group.metric
    curves = [
        {line["round"]: line[metric.name] for line in record.metrics if metric.name in line} for record in group.records
    ]
    sign = 1 if metric.better == "higher" else -1
    at = best(curves, sign)
    return Spread.of([0.0 if at is None else sign * (curve[at] - curve[max(curve)]) for curve in curves])
