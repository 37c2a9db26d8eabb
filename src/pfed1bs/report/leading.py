"""Which of many methods stand out in pictures, and what a page says first."""

from collections.abc import Sequence

from pfed1bs.report.groups import Group

FEW = 8  # methods that all stand out
MOST = 6  # of more
BESIDE = ("local", "fedavg")  # what others are measured against
OWN = "pfed1bs-delta"  # what a reader of these pictures looks for, also where it loses


def leading(found: Sequence[Group]) -> list[bool]:
    """Whether each group stands out: training alone, FedAvg, ours, those that none beats with fewer bytes, the best."""
    if len(found) <= FEW:
        return [True] * len(found)
    beside = [next((i for i, group in enumerate(found) if group.algorithm == name), None) for name in (*BESIDE, OWN)]
    order = sorted(range(len(found)), key=lambda i: -worth(found[i]))
    chosen = dict.fromkeys([i for i in beside if i is not None] + from_both_ends(front(found)) + order)
    return [i in list(chosen)[:MOST] for i in range(len(found))]


def from_both_ends(places: list[int]) -> list[int]:
    """The last, the first, the last but one, the second and so on: the most accurate ones and those that send least."""
    return [i for pair in zip(places[::-1], places, strict=True) for i in pair][: len(places)]


def ordered(found: list[Group]) -> list[Group]:
    """Few groups as they come, many with the best first."""
    return found if len(found) <= FEW else sorted(found, key=worth, reverse=True)


def front(found: Sequence[Group]) -> list[int]:
    """Those that none beats with as few bytes, by ascending bytes."""
    best, kept = float("-inf"), []
    for i in sorted(range(len(found)), key=lambda i: (sent(found[i]), -worth(found[i]))):
        if worth(found[i]) > best:
            best = worth(found[i])
            kept.append(i)
    return kept


def worth(group: Group) -> float:
    """The mean of its metric over seeds, with the sign that makes more of it better."""
    value = group.spread(group.metric.name)
    mean = value.mean if value else float("-inf")
    return mean if group.metric.better == "higher" or not value else -mean


def sent(group: Group) -> float:
    """MiB in all, on average over seeds."""
    value = group.spread("total_mib")
    return value.mean if value else float("inf")
