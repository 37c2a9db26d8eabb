"""Runs read back from a saved table, where their folders are gone."""

import json
from pathlib import Path
from typing import cast

from pfed1bs.core.errors import UserError
from pfed1bs.report.records import Json, RunRecord, metric_of, table

MIB = 2**20
PARTS = ("up", "down", "catch_up", "broadcast")  # of the bytes, where a table has them
OTHERS = ("compare", "options", "algorithm", "seed")  # of a recipe: what is not one run's
DATA = {"dataset": "name", "partition": "partition"}  # of the summary, from the recipe's table
MACHINE = ("device", "threads", "torch", "commit")


def saved(path: Path) -> list[RunRecord]:
    """The runs of a table.json: their rounds that were judged and their bytes, without their clients."""
    whole = json.loads(path.read_text())
    return [_record(run, whole, path) for run in table(path)]


def _record(run: Json, whole: Json, path: Path) -> RunRecord:
    curve, metric = cast(list[list[float]], run.get("curve")), metric_of(run).name
    if not curve or metric not in run:
        raise UserError(f"{path} holds too little for a page: a run without its curve", "make it from run folders")
    recipe, rounds = cast(Json, whole.get("recipe") or {}), int(curve[-1][0])
    config = {key: value for key, value in recipe.items() if key not in OTHERS}
    config |= {"seed": run["seed"], "algorithm": {"name": run["algorithm"], **cast(Json, run.get("options", {}))}}
    for key, value in cast(Json, run.get("settings", {})).items():
        within, _, name = key.rpartition(".")
        config |= {within: {**cast(Json, config.get(within, {})), name: value}} if within else {name: value}
    told = {key: cast(Json, config.get("data", {})).get(inner) for key, inner in DATA.items()}
    told |= {"model": cast(Json, config.get("model", {})).get("name"), "clients": config.get("clients")}
    commands = whole.get("command") or " ; ".join(cast(list[str], whole.get("commands", [])))
    env = {key: value for key in MACHINE if (value := run.get(key, whole.get(key))) is not None}
    summary = {"rounds": rounds, "command": commands, **told, **run}
    summary = {key: value for key, value in summary.items() if key not in ("curve", "label", "options", "settings")}
    return RunRecord(path, config, env, _metrics(run, curve, metric, rounds), [], summary)


def _metrics(run: Json, curve: list[list[float]], metric: str, rounds: int) -> list[dict[str, float]]:
    """A line for every round; bytes stand at those that were judged, and parts of them are the mean of all rounds."""
    parts = {part: run.get(f"{part}_mib") for part in PARTS}
    means = {f"{part}_bytes": float(str(mib)) * MIB / rounds for part, mib in parts.items() if mib is not None}
    lines: list[dict[str, float]] = [{"round": number, "sent_bytes": 0, **means} for number in range(rounds)]
    before = 0.0
    for number, sent, value in curve:
        lines[int(number) - 1] |= {metric: value, "sent_bytes": sent - before}
        before = sent
    return lines
