"""Run folders in a list, finished or not; which of them are meant; and what is different between two."""

import csv
import json
import operator
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO, cast

from pfed1bs.core.errors import UserError, close
from pfed1bs.core.options import shown
from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.report.groups import Spread, differing, flatten, labels, settings
from pfed1bs.report.records import Json

COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
UNTOLD = ("time", "command", "earlier", "from_round")  # differ between any two starts
AGES = (("s", 60), ("min", 60), ("h", 24), ("d", 10**6))
CAME_TO = ("rounds", "total_mib", "mib_per_round", "ratio_to_fedavg", "seconds")
OVER = ("method", "data", "seeds", "mean", "95 % interval")
COLUMNS = ("folder", "method", "data", "seed", "rounds", "value", "MiB", "age")


@dataclass(frozen=True)
class Kept:
    """What a run folder says without being read whole."""

    path: Path
    config: Json
    summary: Json  # empty: it is not finished

    @classmethod
    def read(cls, path: Path) -> "Kept":
        """Of a folder with a config.toml."""
        found = path / "summary.json"
        try:
            config = tomllib.loads((path / "config.toml").read_text())
            return cls(path, config, json.loads(found.read_text()) if found.exists() else {})
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}", "restore its files, or leave it out") from error

    @cached_property
    def rows(self) -> list[Json]:
        """The rounds, as they were written; a cut last line is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def metric(self) -> Metric:
        """What its models are judged by."""
        return METRICS[str(self.summary.get("metric", "accuracy"))]

    @cached_property
    def facts(self) -> Json:
        """What it is found by: keys of the configuration and of the summary, and short names for the usual ones."""
        flat, name = flatten(self.config), self.metric.name
        judged = [row[name] for row in self.rows if name in row]
        sent = sum(cast(int, row.get(f"{part}_bytes", 0)) for row in self.rows for part in ("up", "down", "once"))
        usual = {
            "folder": str(self.path), "method": flat.get("algorithm.name"), "data": flat.get("data.name"),
            "seed": flat.get("seed"), "rounds": len(self.rows), "asked": flat.get("rounds"),
            "value": judged[-1] if judged else None, "MiB": sent / 2**20, "finished": bool(self.summary),
            "age": time.time() - (self.path / "config.toml").stat().st_mtime,
        }  # fmt: skip
        return {**flat, **self.summary, **usual, name: usual["value"]}

    def line(self, above: Path) -> list[str]:
        """Its row in a table of COLUMNS, with its folder as it lies under another."""
        facts, value = self.facts, cast(float | None, self.facts["value"])
        done, asked = facts["rounds"], facts["asked"]
        rounds = str(done) if facts["finished"] else f"{done} of {asked}"
        told = "" if value is None else f"{value:.{self.metric.digits}f}"
        first = [os.path.relpath(self.path, above), *(str(facts[key]) for key in COLUMNS[1:4])]
        return [*first, rounds, told, f"{cast(float, facts['MiB']):.4g}", age(cast(float, facts["age"]))]


def kept(folders: Iterable[Path]) -> list[Kept]:
    """All runs in these folders, each once, in this order."""
    found: dict[Path, Kept] = {}
    for folder in folders:
        if not folder.is_dir():
            hint = "`pfed1bs run` makes one; or give run folders, or folders with run folders inside"
            raise UserError(f"there is no folder {folder} here", hint)
        for path in sorted(folder.glob("**/config.toml")):
            found.setdefault(path.parent.resolve(), Kept.read(path.parent))
    return list(found.values())


def chosen(runs: Sequence[Kept], where: Sequence[str]) -> list[Kept]:
    """Those for which all conditions hold: KEY=VALUE, also with != < > <= >=."""
    for text in where:
        parts = re.fullmatch(r"([\w.-]+)(>=|<=|!=|=|>|<)(.*)", text)
        if not parts:
            raise UserError(f"a condition must be KEY=VALUE, got {text}", "write --where method=pfed1bs 'accuracy>=90'")
        key, sign, value = parts.groups()
        known = dict.fromkeys(key for run in runs for key in run.facts)
        if runs and key not in known:
            near = close(key, known)
            raise UserError(f"no run has a {key}", f"did you mean {near}?" if near else "choose a key of config.toml")
        runs = [run for run in runs if _holds(run.facts.get(key), COMPARED[sign], value)]
    return list(runs)


def ordered(runs: Sequence[Kept], key: str) -> list[Kept]:
    """Sorted by a key, those without it last; ages from the oldest on."""
    known = dict.fromkeys(key for run in runs for key in run.facts)
    if runs and key not in known:
        raise UserError(f"no run has a {key} to sort by", f"choose of {', '.join(COLUMNS)}, or a key of config.toml")
    having = [run for run in runs if run.facts.get(key) is not None]
    numbers = all(isinstance(run.facts[key], int | float) for run in having)
    having.sort(key=lambda run: cast(Any, run.facts[key]) if numbers else str(run.facts[key]), reverse=key == "age")
    return having + [run for run in runs if run.facts.get(key) is None]


@dataclass(frozen=True)
class Alike:
    """Finished runs that differ in their seed alone, and what they came to."""

    method: str  # with the settings that tell it from others of the same method and data
    data: str
    metric: Metric
    value: Spread

    def line(self) -> list[str]:
        """Its row in a table of OVER."""
        low, high = (f"{end:.{self.metric.digits}f}" for end in self.value.interval or ())
        mean = f"{self.value.mean:.{self.metric.digits}f}"
        return [self.method, self.data, str(self.value.seeds), mean, f"{low}..{high}"]

    def plain(self) -> Json:
        """For a file."""
        about = {"label": self.method, "data": self.data, "metric": self.metric.name}
        value = self.value
        return {**about, "mean": value.mean, "std": value.deviation, "interval": value.interval, "seeds": value.seeds}


def over_seeds(runs: Sequence[Kept]) -> list[Alike]:
    """Those with at least two seeds, in the order in which they first occur."""
    found: dict[tuple[str, str], dict[str, list[Kept]]] = {}
    for run in runs:
        if run.facts["finished"] and run.facts["value"] is not None:
            same = found.setdefault((str(run.facts["method"]), str(run.facts["data"])), {})
            same.setdefault(repr(sorted(settings(run.config).items())), []).append(run)
    alike = []
    for (method, data), variants in found.items():
        parts = [*variants.values()]
        for told, part in zip(labels([settings(part[0].config) for part in parts]), parts, strict=True):
            if len({run.facts["seed"] for run in part}) == len(part) > 1:  # the same seed twice is no chance
                value = Spread.of([cast(float, run.facts["value"]) for run in part], part[0].metric.name)
                alike.append(Alike(f"{method} {told}".strip(), data, part[0].metric, value))
    return alike


def _holds(own: object, compare: Callable[[Any, Any], bool], value: str) -> bool:
    """Numbers are compared as numbers, other things as they are written in TOML."""
    if own is None:
        return False
    if isinstance(own, int | float) and not isinstance(own, bool):
        try:
            return compare(own, float(value))
        except ValueError:
            raise UserError(f"{value} is no number, and is compared with one", "write seed=0 or accuracy>90") from None
    return compare(shown(own), value)


def differences(first: Kept, second: Kept) -> list[list[str]]:
    """What differs: keys of the configuration and the environment, what they came to, and the first round."""
    pair, lines = (first, second), []
    for kind, facts in (
        ("config", [flatten(run.config) for run in pair]),
        ("environment", [_env(run) for run in pair]),
    ):
        lines += [[kind, key, *(_told(own, key) for own in facts)] for key in differing(facts)]
    keys = [key for key in first.summary if key in CAME_TO or key.startswith(first.metric.name)]
    for key in keys:
        if first.summary[key] != second.summary.get(key):
            lines.append(["result", key, *(_told(run.summary, key) for run in pair)])
    return [*lines, ["rounds", *_first(first.rows, second.rows)]]


def _told(facts: Json, key: str) -> str:
    return "none" if facts.get(key) is None else shown(facts[key])


def _env(run: Kept) -> Json:
    path = run.path / "env.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return {key: value for key, value in found.items() if key not in UNTOLD}


def _first(one: Sequence[Json], other: Sequence[Json]) -> list[str]:
    """The first number of metrics.jsonl that differs, apart from times."""
    for number, (a, b) in enumerate(zip_longest(one, other, fillvalue=cast(Json, {})), 1):
        keys = [key for key in {**a, **b} if key != "seconds" and a.get(key) != b.get(key)]
        if keys:
            return [f"{keys[0]}, round {number}", _told(a, keys[0]), _told(b, keys[0])]
    return ["all but seconds", "the same", "the same"]


def write_rounds(runs: Sequence[Kept], file: TextIO) -> None:
    """A line for every round of every run, from 1 on, as CSV; empty where a run does not log a number."""
    logged = dict.fromkeys(key for run in runs for row in run.rows for key in row)
    writer = csv.DictWriter(file, ["folder", "method", "data", "seed", *logged], lineterminator="\n")
    writer.writeheader()
    for run in runs:
        own: Mapping[str, object] = {key: run.facts[key] for key in ("folder", "method", "data", "seed")}
        writer.writerows({**own, **row, "round": cast(int, row["round"]) + 1} for row in run.rows)


def age(seconds: float) -> str:
    """A time in one unit: 40 s, 12 min, 3 h, 8 d."""
    for unit, most in AGES:
        if seconds < most or unit == "d":
            return f"{seconds:.0f} {unit}"
        seconds /= most
    raise AssertionError
