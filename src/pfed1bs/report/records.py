"""Run folders, read back and checked."""

import csv
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeVar, cast

import numpy as np

from pfed1bs.core.errors import UserError
from pfed1bs.core.options import shown
from pfed1bs.core.origin import pasted
from pfed1bs.engine.metrics import METRICS, Metric
from pfed1bs.runs.late import LATE

Json = dict[str, object]
T = TypeVar("T")

NUMBERS = ("total_mib", "mib_per_round", "rounds", "seconds", "seed")  # and the metric
COUNTERS = ("round", "up_bytes", "down_bytes")
COLUMNS = ("client", "train_samples", "test_samples", "loss")  # and the metric


@dataclass(frozen=True)
class RunRecord:
    """What one run left behind; accuracies in percent."""

    path: Path
    config: Json
    env: Json
    metrics: list[dict[str, float]]  # one per round, from round 0 without gaps; logs that are no number are left out
    clients: list[dict[str, float]]  # the last evaluation, one per client; none where a table alone was kept
    summary: Json
    labels: np.ndarray | None = None  # training samples of every client by label, (K, C), where that is known

    @property
    def algorithm(self) -> str:
        """Name of the method."""
        return str(self.summary["algorithm"])

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return int(self.number("seed"))

    @property
    def rested(self) -> bool:
        """Whether it ended before its last round, because all clients' models were at rest."""
        return self.summary.get("rested") is True

    @property
    def metric(self) -> Metric:
        """What models are judged by."""
        return metric_of(self.summary)

    def number(self, key: str) -> float:
        """A number of the summary; NaN where it has none."""
        value = self.summary.get(key)
        return float(value) if isinstance(value, int | float) else float("nan")

    def sent(self) -> list[int]:
        """Bytes sent up to and including each round: up, down to every receiver, and one-off."""
        total, result = 0, []
        for row in self.metrics:  # those of a saved table know the sum alone
            total += int(
                row.get("sent_bytes", row.get("up_bytes", 0) + row.get("down_bytes", 0) + row.get("once_bytes", 0))
            )
            result.append(total)
        return result


def read(folder: str | Path) -> RunRecord:
    """The record of a finished run; a last line of metrics.jsonl that was cut off is left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run folder", "give the folder that `pfed1bs run` printed")
    summary = _read(folder / "summary.json", _summary)
    return RunRecord(
        path=folder,
        config=_read(folder / "config.toml", lambda data: tomllib.loads(data.decode())),
        env=_read(folder / "env.json", _object),
        metrics=_read(folder / "metrics.jsonl", _metrics),
        clients=_read(folder / "clients.csv", lambda data: _clients(data, metric_of(summary).name)),
        summary=summary,
        labels=_read(folder / "labels.csv", _labels) if (folder / "labels.csv").exists() else None,
    )


def metric_of(summary: Mapping[str, object]) -> Metric:
    """What the models of a run are judged by."""
    name = str(summary.get("metric", "accuracy"))
    if name not in METRICS:
        raise ValueError(f"its metric must be one of {', '.join(METRICS)}, got {name}")
    return METRICS[name]


def collect(folders: Iterable[str | Path]) -> list[RunRecord]:
    """The records of run folders, and of all runs inside other folders; each once."""
    found: dict[Path, RunRecord] = {}
    for folder in map(Path, folders):
        own = (folder / "config.toml").is_file()
        inside = [] if own else sorted(path.parent for path in folder.glob("**/config.toml"))
        for run in inside or [folder]:
            found.setdefault(run.resolve(), read(run))
    return list(found.values())


def _read(path: Path, parse: Callable[[bytes], T]) -> T:
    if not path.is_file():
        raise UserError(
            f"{path.name} is missing in {path.parent}",
            f"if the run was interrupted, finish it with `{go_on(path.parent)}`",
        )
    try:
        return parse(path.read_bytes())
    except ValueError as error:  # the parsers' own errors and bad UTF-8 are ValueErrors too
        raise UserError(f"{path} is damaged: {error}", "restore the file or repeat the run") from error


def table(path: Path) -> list[Json]:
    """The runs of a table.json, or of an older file in results/, with what `compare` writes now."""
    runs = _read(path, _object).get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) and {"algorithm", "seed"} <= {*run} for run in runs):
        raise UserError(
            f"{path} is no table of runs", "give the table.json of `pfed1bs compare`, or runs.jsonl of `reproduce`"
        )
    shared = [item for item in runs[0].get("options", {}).items() if all(item in _options(run) for run in runs)]
    return [_older(run, shared) | run for run in runs]


def _options(run: Json) -> list[tuple[str, object]]:
    return [*cast(Json, run.get("options", {})).items()]


def _older(run: Json, shared: list[tuple[str, object]]) -> Json:
    """What can be read off the rest: the label, and the accuracies of the last round and of the last evaluations."""
    told = [f"{key}={shown(value)}" for key, value in _options(run) if (key, value) not in shared]
    label, curve = " ".join([str(run["algorithm"]), *told]), cast(list[list[float]], run.get("curve", []))
    late = {f"{metric_of(run).name}_late": fmean(point[-1] for point in curve[-LATE:])} if curve else {}
    last = {"accuracy": run["accuracy_personal"]} if "accuracy_personal" in run else {}
    return {"label": label, **last, **late}


def go_on(folder: Path) -> str:
    """The command that goes on with an interrupted run."""
    if (folder / "federation.json").is_file():
        return f"flwr run APP SUPERLINK --stream -c \"out='{folder.resolve()}' resume=true\""
    return pasted(["run", str(folder / "config.toml"), "--out", str(folder), "--resume"])


def _object(data: bytes) -> Json:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"expected one object, got a {type(found).__name__}")
    return found


def _summary(data: bytes) -> Json:
    summary = _object(data)
    if "algorithm" not in summary:
        raise ValueError("it names no algorithm")
    for key in (metric_of(summary).name, *NUMBERS):
        if not isinstance(summary.get(key), int | float):
            raise ValueError(f"{key} must be a number, got {summary.get(key)!r}")
    return summary


def _metrics(data: bytes) -> list[dict[str, float]]:
    *lines, last = data.split(b"\n")
    rows = [_row(line, number) for number, line in enumerate(lines)]
    if last.rstrip().endswith(b"}"):  # whole, only its line end is missing
        rows.append(_row(last, len(rows)))
    if not rows:
        raise ValueError("it holds no whole round")
    return rows


def _row(line: bytes, number: int) -> dict[str, float]:
    try:
        found = _object(line)
    except ValueError as error:
        raise ValueError(f"line {number + 1}: {error}") from error
    row = {key: value for key, value in found.items() if isinstance(value, int | float)}
    for key in COUNTERS:
        if key not in row:
            raise ValueError(f"line {number + 1}: {key} is missing")
    if row["round"] != number:
        raise ValueError(f"line {number + 1} must hold round {number}, got round {row['round']}")
    return row


def _labels(data: bytes) -> np.ndarray:
    _, *lines = csv.reader(data.decode().splitlines())
    return np.array([[int(cell) for cell in line[1:]] for line in lines])


def _clients(data: bytes, metric: str) -> list[dict[str, float]]:
    lines = csv.DictReader(data.decode().splitlines(), strict=True)
    missing = [column for column in (*COLUMNS, metric) if column not in (lines.fieldnames or ())]
    if missing:
        raise ValueError(f"the header lacks {', '.join(missing)}")
    rows = []
    for line in lines:
        if None in line or None in line.values():
            raise ValueError(f"line {lines.line_num} does not have {len(lines.fieldnames or ())} columns")
        rows.append({key: float(value) for key, value in line.items()})
    if not rows:
        raise ValueError("it holds no client")
    return rows
