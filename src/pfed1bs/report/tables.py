"""What the page says besides the results, without its markup."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pfed1bs.report.groups import UNTOLD, Group, differing, flatten
from pfed1bs.report.records import RunRecord
from pfed1bs.report.results import partition, seeds
from pfed1bs.runs.config import Drawn
from pfed1bs.runs.environment import starts

SUMMARY = {  # facts of the summary, and of the configuration
    "dataset": "data",
    "partition": "partition",
    "model": "model",
    "parameters": "parameters",
    "clients": "clients",
    "sampled": "in each round",
    "rounds": "rounds",
}
LISTED = 200  # clients up to which each has a line
SHARES = (0, 5, 25, 50, 75, 95, 100)  # of the clients, in percent, where there are more
CONFIG = {"steps": "local steps", "batch": "batch"}
MODELS = {"": "", "_global": " global", "_tuned": " tuned"}  # what follows the name of the metric, and the method's


@dataclass(frozen=True)
class Clients:
    """The clients of one partition, and how each method did there."""

    title: str
    heads: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Settings:
    """The configuration: what all groups share, and what is a group's own."""

    shared: dict[str, str]
    own: list[tuple[str, str]]  # label, "key=value" of all that is not shared


def facts(records: Sequence[RunRecord]) -> dict[str, str]:
    """What all runs have in common, or the values it takes."""
    found = {label: [record.summary.get(key) for record in records] for key, label in SUMMARY.items()}
    found |= {label: [record.config.get(key) for record in records] for key, label in CONFIG.items()}
    return {
        label: " / ".join(dict.fromkeys(f"{value:,}" if isinstance(value, int) else str(value) for value in values))
        for label, values in found.items()
        if None not in values
    }


def notes(found: Sequence[Group]) -> list[str]:
    """What a reader has to know about these runs in particular."""
    told = []
    if all(len(group.records) == 1 for group in found):
        told.append("One seed only: differences of a fraction of a point may be chance. Repeat with --seeds 0,1,2.")
    for group in found:
        if group.silent:
            told.append(f"{group.label} sends nothing: 0 bytes, and a horizontal line in the picture.")
        for record in group.records:
            known, rounds = len(record.metrics), int(record.number("rounds"))
            if known < rounds:
                told.append(
                    f"metrics.jsonl of {record.path.name} ends after round {known} of {rounds}; its curves stop there."
                )
    fixed = [part for part in get_args(Drawn) if any(f"{part}_seed" in group.settings for group in found)]
    if fixed:
        changed = [part for part in get_args(Drawn) if part not in fixed]
        words = f"Seeds change {', '.join(changed) or 'nothing'} alone (--vary)"
        told.append(f"{words}: \u00b1 says nothing about {', '.join(fixed)}.")
    for key in differing([group.settings for group in found]):
        if not key.startswith("algorithm."):
            values = dict.fromkeys(str(group.settings.get(key, "none")) for group in found)
            told.append(f"These runs differ in {key} ({', '.join(values)}), not only in the method.")
    return told


def clients(found: Sequence[Group]) -> list[Clients]:
    """One table per seed and partition, a column per method and kind of model."""
    parts: dict[tuple[int, tuple[tuple[float | str, ...], ...]], list[tuple[Group, RunRecord]]] = {}
    for group in found:
        for record in group.records:
            if record.clients:
                parts.setdefault((record.seed, partition(record)), []).append((group, record))
    tables = []
    for (seed, held), runs in sorted(parts.items(), key=lambda part: part[0][0]):
        kinds = [(group, record, kind) for group, record in runs for kind in MODELS]
        columns = [(group, record, kind) for group, record, kind in kinds if _key(record, kind) in record.clients[0]]
        heads = [f"{group.label}{MODELS[kind]}" for group, _, kind in columns]
        rows = [
            [*(f"{count:.0f}" for count in counts), *(_told(record, at, kind) for _, record, kind in columns)]
            for at, counts in enumerate(held)
        ]
        title = f"{len(held):,} clients, seed {seed}: {runs[0][0].metric.heading}"
        names = ["train samples", "test samples", *heads]
        if len(rows) <= LISTED:
            tables.append(Clients(title, ["client", *names], rows))
        else:
            tables.append(Clients(title, ["share of clients below", *names], _quantiles(rows)))
    return tables


def _quantiles(rows: list[list[str]]) -> list[list[str]]:
    """What stands at some shares of the clients, every column but the first sorted by itself."""
    columns = [sorted(column, key=float) for column in zip(*(row[1:] for row in rows), strict=True)]
    return [[f"{share} %", *(column[(len(rows) - 1) * share // 100] for column in columns)] for share in SHARES]


def _key(record: RunRecord, kind: str) -> str:
    return f"{record.metric.name}{kind}"


def _told(record: RunRecord, client: int, kind: str) -> str:
    return f"{record.clients[client][_key(record, kind)]:.{record.metric.digits}f}"


def settings(found: Sequence[Group]) -> Settings:
    """The configuration, key by key; the seeds are a group's own where groups have others."""
    flat = [flatten(group.records[0].config) for group in found]
    for config, group in zip(flat, found, strict=True):
        config["seed"] = seeds([record.seed for record in group.records])
        config.pop("algorithm.name", None)
    keys = [key for key in dict.fromkeys(key for config in flat for key in config) if not key.startswith(UNTOLD)]
    apart = {*differing(flat), *(key for key in keys if key.startswith("algorithm.") and len(found) > 1)}
    own = [
        " ".join(f"{key.removeprefix('algorithm.')}={_text(config[key])}" for key in keys if key in apart & {*config})
        for config in flat
    ]
    shared = {key: _text(flat[0][key]) for key in keys if key not in apart}
    return Settings(shared, list(zip((group.label for group in found), own, strict=True)) if any(own) else [])


def environment(records: Sequence[RunRecord]) -> list[tuple[str, str, bool]]:
    """What the runs were computed with, key by key, and whether it differs; then with the number of starts of each."""
    begun = [start for record in records for start in starts(record.env)]
    lines = []
    for key in dict.fromkeys(key for start in begun for key in start if key != "command"):
        counted = Counter(_text(start.get(key)) or "none" for start in begun)
        if key == "time":
            ends = dict.fromkeys((min(counted), max(counted)))
            lines.append((key, " to ".join(ends), False))
        elif len(counted) == 1:
            lines.append((key, next(iter(counted)), False))
        else:
            lines.append((key, ", ".join(f"{value} ({count}\u00d7)" for value, count in counted.items()), True))
    return lines


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
