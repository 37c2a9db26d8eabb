"""What a page says first: one result in words, with its numbers and how it was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfed1bs.report.groups import Group, Spread
from pfed1bs.report.leading import sent, worth
from pfed1bs.report.results import gain, labelled
from pfed1bs.report.statistics import MARGIN, Difference, paired


@dataclass(frozen=True)
class Headline:
    """A line, and the sentences below it."""

    title: str
    told: list[str]


def headline(found: Sequence[Group]) -> Headline:
    """Of the methods above which no other is shown to be, the one that sends least."""
    near = [group for group in found if not any(_above(other, group) for other in found)]
    chosen = min(near, key=lambda group: (sent(group), -worth(group)))
    ahead = gain(chosen, found)
    told = [plainly(chosen, found), _value(chosen, ahead, found), _chosen(chosen, found, len(near)), _idle(found)]
    return Headline(_title(chosen, ahead, found), [text for text in told if text])


def _above(other: Group, group: Group) -> bool:
    """Whether a method is above another by more than a margin, and by more than seeds alone may do."""
    if not _farther(other, group):
        return False
    if (pairs := _paired(other, group)) is None:
        return True
    low, high = pairs.interval()
    return not low <= 0 <= high


def _farther(other: Group, group: Group) -> bool:
    """Whether a mean is better than another by more than a margin."""
    return worth(other) - worth(group) > (MARGIN if group.metric.percent else 0.0)


def _paired(first: Group, second: Group) -> Difference | None:
    """Two methods seed by seed; None where there are no two seeds that both have."""
    pairs = paired(labelled([first, second]), second.label, first.metric.name)
    return pairs[0] if pairs and len(pairs[0].values) > 1 else None


def plainly(chosen: Group, found: Sequence[Group]) -> str:
    """The result for somebody who has never heard of any of it."""
    value = chosen.spread(chosen.metric.name)
    if value is None or not chosen.metric.percent or chosen.metric.name != "accuracy":
        return ""
    clients = f"{chosen.records[0].summary.get('clients', 'several')} devices"
    text = (
        f"In plain words: on new samples of their own, the models of {clients} were right {value.mean:.0f} times in 100"
    )
    alone = next((group for group in found if group.algorithm == "local"), None)
    before = alone.spread(alone.metric.name) if alone else None
    if alone is chosen:
        return f"{text}, each trained on its own device's data alone, with nothing sent."
    if before:
        text += f", where models that each device trained alone were right {before.mean:.0f} times"
    ratio = chosen.spread("ratio_to_fedavg")
    if ratio is None or not ratio.mean:
        return f"{text}."
    usual = "what FedAvg, the usual way of learning together, would send"
    if abs(ratio.mean - 1) < 0.05:
        return f"{text}. For that, devices and server sent each other {usual}."
    share = f"1/{1 / ratio.mean:.0f} of" if ratio.mean < 0.5 else f"{ratio.mean:.2g} times"
    return f"{text}. For that, devices and server sent each other {share} {usual}."


def _title(chosen: Group, ahead: Spread | None, found: Sequence[Group]) -> str:
    metric, value = chosen.metric, chosen.spread(chosen.metric.name)
    assert value is not None  # a record without it is refused
    if chosen.algorithm == "local" and len(found) > 1:
        above = f"more than {MARGIN} points above" if metric.percent else "ahead of"
        told = f"method's mean is {above}"
        if any(_farther(other, chosen) for other in found):
            told = "method is shown to be ahead of"
        return f"Training alone: no {told} it, and it sends nothing"
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
        return f"{text}; one seed has no interval.{_work(chosen, local)}"
    low, high = ahead.interval
    shown = " It holds 0: no difference is shown." if low <= 0 <= high else ""
    return f"{text}, 95 % interval {low:+.{digits}f} to {high:+.{digits}f}.{shown}{_work(chosen, local)}"


def _work(chosen: Group, local: Group) -> str:
    """What the two compute, where it differs: help of others is not all that a method has."""
    ours, alone = (group.spread("gradients") for group in (chosen, local))
    if ours is None or alone is None or ours.mean == alone.mean:
        return ""
    return f" A client computes {ours.mean:g} gradients a round, one that trains alone {alone.mean:g}."


def _chosen(chosen: Group, found: Sequence[Group], near: int) -> str:
    """How the method of the headline was chosen, and what is shown of its distance to the nearest other."""
    if len(found) == 1:
        return ""
    metric = chosen.metric
    first = "highest" if metric.better == "higher" else "lowest"
    others = [group for group in found if group is not chosen]
    other = max(others, key=worth)
    pairs = _paired(chosen, other)
    within = f"within {MARGIN} points of" if metric.percent else "as good as"
    apart = f", or by at most {MARGIN} points" if metric.percent else ""
    among = f"with a mean {within} the {first}" if pairs is None else f"above which no other is shown to be{apart}"
    why = (
        f"It was chosen for its mean, the {first} of {len(found)} in these runs"
        if near == 1
        else f"It was chosen as the one with the fewest bytes of {near} methods {among}"
    )
    if pairs is None:
        return f"{why}; one seed shows nothing of chance."
    low, high = pairs.interval()
    unit, digits = " points" if metric.percent else "", metric.digits
    shown = "no difference is shown" if low <= 0 <= high else "a difference is shown, though chosen after looking"
    return (
        f"{why}. Paired by seed, it is {pairs.mean:+.{digits}f}{unit} from {other.label}, 95 % interval "
        f"{low:+.{digits}f} to {high:+.{digits}f}: {shown}."
    )


def _idle(found: Sequence[Group]) -> str:
    """Which methods came to the very scores of training alone: a reader may think of a slip."""
    alone = [group for group in found if group.algorithm == "local"]
    if len(alone) != 1:
        return ""
    apart = paired(labelled([*found]), alone[0].label, alone[0].metric.name)
    same = [item.first for item in apart if item.values and not any(item.values)]
    if not same:
        return ""
    told = f"{' and '.join(same)} ended with the scores of training alone in every seed"
    return f"{told}, to the last digit: messages were sent and counted, and they changed no answer that was judged."


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
