"""Finished runs of tables and figures, one line each: what was run, on what, and what came out.

A line has all that tables and pictures need, so that runs of many days and machines come together as lines alone.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import cast

from pfed1bs.core.errors import UserError
from pfed1bs.report.groups import flatten
from pfed1bs.report.plots import LOGGED
from pfed1bs.report.records import Json, RunRecord, read
from pfed1bs.runs.config import Config, as_tables, known_keys, load, with_role
from pfed1bs.runs.environment import starts
from pfed1bs.runs.locking import claimed
from pfed1bs.runs.own import own_files
from pfed1bs.studies import amounts
from pfed1bs.studies.comparison import Entry
from pfed1bs.studies.lines import line_of, parsed, whole
from pfed1bs.studies.plan import Planned

Curve = dict[str, list[float | None]]  # None: nothing was logged
FILE = "runs.jsonl"
MACHINE = ("command", "commit", "device", "processor", "tf32", "threads", "torch", "python", "time", "files")
COLUMNS = (
    "part label algorithm dataset partition cap model options seed rounds rested diverged accuracy accuracy_late "
    "accuracy_global accuracy_tuned mib_per_round total_mib seconds tf32 device torch commit time command"
).split()
ASIDE = {*with_role("machine", "simulator", "others")} - {"tf32", "evaluate_every"}  # what a row may have had otherwise
DIGITS = 6
PATIENCE = 60  # seconds until another process has added its row


@dataclass
class Finished:
    """The rows of a table or figure, in a file to which finished runs are added."""

    folder: Path
    rows: list[Json] = field(default_factory=list)
    cut: bool = False  # whether a last line was cut off

    @classmethod
    def of(cls, folder: Path) -> "Finished":
        """What a folder holds; a last line that was cut off is left out."""
        path = folder / FILE
        there = path.read_bytes() if path.exists() else b""
        kept = whole(there)
        lines = kept.split(b"\n")[:-1]
        rows = [parsed(line, f"{path}, line {number},") for number, line in enumerate(lines, 1)]
        first: dict[str, int] = {}
        for number, row in enumerate(rows, 1):
            told = {key: value for key, value in flatten(cast(Json, row["config"])).items() if key not in ASIDE}
            own = [row["part"], row["label"], told, cast(Json, row["env"]).get("files"), "diverged" in row]
            before = first.setdefault(json.dumps(own, sort_keys=True), number)
            if _end(rows[before - 1]) != _end(row):
                twice = f"{path}, line {number}, is the run of line {before} with another result"
                raise UserError(twice, "delete the one that is not to count")
        return cls(folder, rows, cut=len(kept) < len(there))

    def find(self, run: Planned) -> Json | None:
        """The row of a run with these very settings."""
        wanted = (run.part, run.label, run.entry.config.seed)
        rows = [row for row in self.rows if (row["part"], row["label"], cast(Json, row["config"])["seed"]) == wanted]
        return next((row for row in rows if same(row, run.entry.config)), None)

    def add(self, row: Json) -> None:
        """Keep a row, on disk too, behind those that other processes have added since."""
        amounts.agree([*self.rows, row])
        self.rows.append(row)
        line = line_of(row)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / FILE).open("a+b") as file:
            if not claimed(file, PATIENCE):
                raise UserError(f"another process holds {file.name}", "wait until it ends, or end it")
            file.seek(0)
            there = whole(file.read())
            file.truncate(there.rfind(b"\n", 0, -1) + 1)
            file.write(there[there.rfind(b"\n", 0, -1) + 1 :] + line)
            file.flush()
            os.fsync(file.fileno())  # the run's folder goes next

    def beside(self, others: Iterable[Json], runs: Sequence[Planned]) -> list[float]:
        """How far rows here end above those that were made elsewhere, at another time, with the same settings."""
        pairs = [(row, fitting) for run, fitting in _fitting(others, runs) if (row := self.find(run))]
        apart = [(row, other) for row, own in pairs if all(it["env"] != row["env"] for it in own) for other in own[:1]]
        ends = [tuple(_end(row) for row in pair) for pair in apart]
        return [here - there for here, there in ends if here is not None and there is not None]

    def join(self, others: Iterable[Json], runs: Sequence[Planned]) -> int:
        """Take over rows that are missing here, whichever table or figure they were made for; how many there were."""
        taken: list[Json] = []
        for run, fitting in _fitting(others, runs):
            if not self.find(run):
                row = max(fitting, key=lambda row: len(cast(Curve, row.get("curve", {}))))  # that logged the most
                told = {"sampled": run.entry.config.sampled} if run.entry.config.sampled else {}  # all, said or not
                plain = {key: value for key, value in cast(Json, row["config"]).items() if key != "sampled"}
                taken.append({**row, "part": run.part, "label": run.label, "config": {**plain, **told}})
        amounts.agree([*self.rows, *taken])
        for row in taken:
            self.add(row)
        return len(taken)


def _fitting(others: Iterable[Json], runs: Sequence[Planned]) -> Iterator[tuple[Planned, list[Json]]]:
    """Runs with the rows that were made with their settings, of those that have any."""
    found: dict[tuple[object, ...], list[Json]] = {}
    for row in others:
        found.setdefault(_kind(cast(Json, row["config"])), []).append(row)
    for run in runs:
        alike = found.get(_kind(settings(run.entry.config)), [])
        if fitting := [row for row in alike if same(row, run.entry.config)]:
            yield run, fitting


def _end(row: Json) -> float | None:
    return cast(float | None, cast(Json, row.get("summary", {})).get("accuracy"))


def elsewhere(folder: Path) -> list[Json]:
    """The rows below a folder, and those of finished runs whose folders lie there."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to join", "give one with rows or run folders below it")
    rows = [row for path in sorted(folder.glob(f"**/{FILE}")) for row in Finished.of(path.parent).rows]
    runs = [path.parent for path in sorted(folder.glob("**/summary.json")) if (path.parent / "config.toml").exists()]
    return rows + [row_of(Planned("", "", "", Entry("", load(str(run / "config.toml")))), run) for run in runs]


def row_of(run: Planned, folder: Path) -> Json:
    """The row of a run that has ended; one without a summary diverged."""
    told: Json = {"part": run.part, "label": run.label, "config": settings(run.entry.config)}
    begun = starts(json.loads((folder / "env.json").read_text()))
    *before, last = ({key: start[key] for key in MACHINE if key in start} for start in begun)
    told["env"] = {**last, "earlier": before} if before else last
    if not (folder / "summary.json").exists():
        return {**told, "diverged": True}
    record = read(folder)
    clients = {key: [_short(row[key]) for row in record.clients] for key in record.clients[0]}
    return {**told, "summary": record.summary, "clients": clients, "curve": _curve(record)}


def _curve(record: RunRecord) -> Curve:
    """What was measured at every evaluation, and the bytes sent until then."""
    metric, sent = record.metric.name, record.sent()
    judged = [line for line in record.metrics if metric in line]
    kept = [key for key in (metric, f"{metric}_global", "loss", *LOGGED) if any(key in line for line in judged)]
    curve: Curve = {key: [_short(line.get(key)) for line in judged] for key in kept}
    rounds = [int(line["round"]) for line in judged]
    return {"round": [*rounds], "sent": [sent[number] for number in rounds], **curve}


def record_of(row: Json) -> RunRecord:
    """The run of a row as the report knows it, with the rounds that were judged; bytes stand at those."""
    curve, clients = cast(Curve, row["curve"]), cast(dict[str, list[float]], row["clients"])
    config, env, summary = (cast(Json, row[key]) for key in ("config", "env", "summary"))
    rounds = range(int(str(summary["rounds"])))
    lines: list[dict[str, float]] = [{"round": number, "sent_bytes": 0} for number in rounds]
    before = 0.0
    for number, *values in zip(*curve.values(), strict=True):
        told = {key: value for key, value in zip([*curve][1:], values, strict=True) if value is not None}
        sent = told.pop("sent")
        lines[int(number or 0)] |= {**told, "sent_bytes": sent - before}
        before = sent
    people = [dict(zip(clients, values, strict=True)) for values in zip(*clients.values(), strict=True)]
    return RunRecord(Path(str(row["label"])), config, env, lines, people, summary)


def settings(config: Config) -> Json:
    """All that a run was told of itself."""
    return {key: value for key, value in as_tables(config).items() if key not in with_role("others")}


def same(row: Json, config: Config) -> bool:
    """Whether a row was made with these settings and own files; what it says nothing of had its default."""
    defaults = {name: key.default for name, key in known_keys(config.method).items()}
    old, new = ({**defaults, **flatten(cast(Json, plain))} for plain in (row["config"], settings(config)))
    for flat in (old, new):
        flat["sampled"] = flat.get("sampled") or flat["clients"]
    told = all(old.get(key) == new.get(key) for key in {*old, *new} if key not in ASIDE)
    return told and cast(Json, row.get("env", {})).get("files", {}) == own_files(config)


def table(rows: Sequence[Json]) -> str:
    """The rows as CSV."""
    text = StringIO()
    lines = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    lines.writeheader()
    for row in rows:
        config = cast(Json, row["config"])
        own = {"options": json.dumps(_options(config)), "seed": config["seed"], "tf32": config["tf32"]}
        lines.writerow({**cast(Json, row["env"]), **cast(Json, row.get("summary", {})), **row, **own})
    return text.getvalue()


def _options(config: Json) -> Json:
    """The options of a method that are not its defaults."""
    options = cast(Json, config["algorithm"])
    known = known_keys(str(options["name"]))
    return {key: value for key, value in options.items() if value != known[f"algorithm.{key}"].default}


def _kind(config: Json) -> tuple[object, ...]:
    """What rows are sorted by before they are compared."""
    return cast(Json, config["algorithm"])["name"], cast(Json, config["data"])["name"], config["seed"], config["rounds"]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
