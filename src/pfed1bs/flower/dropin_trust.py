"""What the server of a drop-in believes of records beside the updates: one that differs ends Flower's strategies."""

from collections import Counter
from logging import getLogger
from math import inf, isfinite

import torch
from flwr.app import ConfigRecord, Message, MetricRecord

log = getLogger("flwr")  # Flower's own
Opened = list[tuple[Message, ConfigRecord]]


def believed(replies: Opened, key: str, most: float | None) -> Opened:
    """The replies with records as most have them; what they weigh, under `key`, is at most `most` times the median."""
    usual = Counter(_form(reply) for reply, _ in replies).most_common(1)
    found = [(reply, own) for reply, own in replies if _fits(reply, usual[0][0], key)]
    weighing = [one for reply, _ in found for one in reply.content.metric_records.values() if key in one]
    weights = torch.tensor([_number(one, key) for one in weighing], dtype=torch.float64)
    bound = inf if most is None or not weighing else most * float(weights.median())
    for metrics, weight in zip(weighing, weights.tolist(), strict=True):
        if weight > bound:
            metrics[key] = bound
    return found


def averaged(replies: Opened, key: str, before: bool) -> Opened:
    """The replies that Flower's strategies can average; all, if there are none and never were: its error says why."""
    sound = [(reply, own) for reply, own in replies if _sound(reply, key)]
    if not sound and not before:
        return replies
    for reply, _ in replies:
        if not _sound(reply, key):
            reason = f"its answer must have one MetricRecord with {key}, and no arrays"
            log.warning("node %d is not counted: %s", reply.metadata.src_node_id, reason)
    return sound


def _sound(reply: Message, key: str) -> bool:
    metrics = [*reply.content.metric_records.values()]
    return len(metrics) == 1 and key in metrics[0] and not reply.content.array_records


def _fits(reply: Message, usual: frozenset[object], key: str) -> bool:
    reason = "" if _form(reply) == usual else "its records are not like those of the others"
    for metrics in reply.content.metric_records.values():
        numbers = [number for value in metrics.values() for number in (value if isinstance(value, list) else [value])]
        if not all(map(isfinite, numbers)):
            reason = "its metrics are not finite"
        elif not _number(metrics, key) > 0:
            reason = f"its {key} must be a positive number"
    if reason:
        log.warning("node %d is not counted: %s", reply.metadata.src_node_id, reason)
    return not reason


def _number(metrics: MetricRecord, key: str) -> float:
    """One number under a key, 1 if there is none, 0 for a list."""
    value = metrics.get(key, 1)
    return 0.0 if isinstance(value, list) else float(value)


def _form(reply: Message) -> frozenset[object]:
    """Names and kinds of its records, and of its metrics with their lengths."""
    return frozenset(
        (name, type(record).__name__, _metrics(record) if isinstance(record, MetricRecord) else None)
        for name, record in reply.content.items()
    )


def _metrics(record: MetricRecord) -> frozenset[object]:
    return frozenset((key, len(value) if isinstance(value, list) else None) for key, value in record.items())
