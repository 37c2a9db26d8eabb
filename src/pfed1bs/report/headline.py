"""What a page says first: one result in words, with its numbers and how it was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfed1bs.report.groups import Group, Spread
from pfed1bs.report.leading import sent, worth
from pfed1bs.report.results import gain
from pfed1bs.report.statistics import MARGIN


@dataclass(frozen=True)
class Headline:
    """A line, and the sentences below it."""

    title: str
    told: list[str]


def headline(found: Sequence[Group]) -> Headline:
    """Of the methods that come within a small margin of the best mean, the one that sends least."""
    best = max(found, key=worth)
    margin = MARGIN if best.metric.percent else 0.0
    near = [group for group in found if worth(group) >= worth(best) - margin]
    chosen = min(near, key=lambda group: (sent(group), -worth(group)))
    ahead = gain(chosen, found)
    told = [_value(chosen, ahead, found), _chosen(chosen, best, len(near), len(found))]
    return Headline(_title(chosen, ahead, len(found)), [text for text in told if text])


def _title(chosen: Group, ahead: Spread | None, methods: int) -> str:
    metric, value = chosen.metric, chosen.spread(chosen.metric.name)
    assert value is not None  # a record without it is refused
    if chosen.algorithm == "local" and methods > 1:
        close = f"within {MARGIN} points of" if metric.percent else "as good as"
        return f"Training alone is {close} the best of {methods} methods, and sends nothing"
    said = f"{_number(value.mean, chosen)} {metric.words.removesuffix(' (%)')}"
    if ahead is not None and metric.percent:
        said = f"{ahead.mean:+.1f} points over training alone"
    elif ahead is not None:
        which = "less" if ahead.mean < 0 else "more"
        said = f"{abs(ahead.mean):.{metric.digits}f} {metric.words} {which} than training alone"
    if ahead is not None and ahead.interval is None:
        said += " (one seed)"
    elif ahead is not None and ahead.interval and ahead.interval[0] <= 0 <= ahead.interval[1]:
        said = f"no difference to training alone is shown ({said.partition(' than ')[0].partition(' over ')[0]}),"
    return f"{chosen.label}: {said}{_bytes(chosen)}"


def _bytes(group: Group) -> str:
    ratio = group.spread("ratio_to_fedavg")
    if ratio is None:
        return ""
    if not ratio.mean:
        return " with no byte sent"
    if abs(ratio.mean - 1) < 0.05:
        return " at FedAvg's bytes"
    share = f"1/{1 / ratio.mean:.0f} of" if ratio.mean < 0.5 else f"{ratio.mean:.2g} times"
    return f" at {share} FedAvg's bytes"


def _value(chosen: Group, ahead: Spread | None, found: Sequence[Group]) -> str:
    """The number itself, beside that of training alone."""
    metric = chosen.metric.words.removesuffix(" (%)")
    text = f"Personal {metric} of {chosen.label} after the last round: {_with_interval(chosen)}"
    local = next((group for group in found if group.algorithm == "local" and group is not chosen), None)
    if local is None or ahead is None:
        return f"{text}."
    unit = " points" if chosen.metric.percent else ""
    digits = chosen.metric.digits
    text += (
        f"; training alone: {_with_interval(local)}. Paired by seed, the difference is {ahead.mean:+.{digits}f}{unit}"
    )
    if ahead.interval is None:
        return f"{text}; one seed has no interval."
    low, high = ahead.interval
    shown = " It holds 0: no difference is shown." if low <= 0 <= high else ""
    return f"{text}, 95 % interval {low:+.{digits}f} to {high:+.{digits}f}.{shown}"


def _chosen(chosen: Group, best: Group, near: int, methods: int) -> str:
    """How the method of the headline was chosen."""
    if methods == 1:
        return ""
    many = f"of {methods} methods" if methods > 2 else "of the two"
    if near == 1:
        first = "highest" if best.metric.better == "higher" else "lowest"
        return f"It has the {first} mean {many}; a small lead over the next one may be chance."
    others = f" The highest is {best.label} with {_with_interval(best)}." if best is not chosen else ""
    return f"It sends the fewest bytes of the {near} within {MARGIN} points of the highest mean {many}.{others}"


def _with_interval(group: Group) -> str:
    value = group.spread(group.metric.name)
    assert value is not None
    text = _number(value.mean, group)
    if value.interval is None:
        return text
    low, high = (_number(end, group) for end in value.interval)
    return f"{text} (95 % interval {low} to {high}, {value.seeds} seeds)"


def _number(value: float, group: Group) -> str:
    return f"{value:.{group.metric.digits}f}{' %' if group.metric.percent else ''}"
