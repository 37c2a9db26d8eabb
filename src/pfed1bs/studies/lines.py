"""Rows of finished runs as they stand in a file: one line of JSON each, checked when it is read."""

import json
from contextlib import suppress
from math import inf, isclose, isfinite
from typing import cast

from pfed1bs.core.errors import UserError
from pfed1bs.report.groups import flatten
from pfed1bs.report.records import Json

ROW = (
    "part label env.commit env.device env.torch config.algorithm.name config.data.name config.seed config.rounds"
).split()
MEND = "delete that line, or restore the file from a copy; `pfed1bs reproduce NAME --resume` makes what is missing"
MOST = 1e308  # floats end there
CLOSE = 1e-4  # to the same number with six digits
MEASURED = "mib_per_round total_mib ratio_to_fedavg seconds rounds seed".split()  # numbers of a summary


def parsed(line: bytes, place: str) -> Json:
    """The row in a line; one that was damaged is refused, as leaving it out would have its run made again unseen."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is damaged ({error})", MEND) from error
    if not isinstance(row, dict):
        raise UserError(f"{place} is no row: it holds no object", MEND)
    if missing := [key for key in ROW if key not in flatten(row)]:
        raise UserError(f"{place} is no row: it has no {', '.join(missing)}", MEND)
    if wrong := _wrong(row):
        raise UserError(f"{place} is damaged: {wrong}", MEND)
    config = cast(dict[str, Json], row["config"])
    config["algorithm"] = {key: inf if value == "inf" else value for key, value in config["algorithm"].items()}
    return row


def line_of(row: Json) -> bytes:
    """The line of a row."""
    plain = {key: _plain(value, key == "config") for key, value in row.items()}
    return f"{json.dumps(plain, allow_nan=False)}\n".encode()


def whole(content: bytes) -> bytes:
    """Lines without a last one that was cut off; one that lacks nothing but its end gets it."""
    _, _, last = content.rpartition(b"\n")
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(last), dict):
            return content + b"\n"
    return content[: len(content) - len(last)]


def _wrong(row: Json) -> str:
    """What cannot be so in a row; tables and pictures read all of this."""
    config, summary = (row.get(key) for key in ("config", "summary"))
    name, seed = (flatten(cast(Json, config)).get(key) for key in ("algorithm.name", "seed"))
    if not isinstance(name, str) or type(seed) is not int:
        return "its method is no name, or its seed no number"
    if "diverged" in row:
        return ""
    if not isinstance(summary, dict) or (summary.get("algorithm"), summary.get("seed")) != (name, seed):
        return f"its summary is not that of {name} with seed {seed}"
    for key, value in summary.items():
        if (key.startswith("accuracy") or key in MEASURED) and not (value is None or _possible(key, value)):
            return f"its {key} is no such number"
    metric = str(summary.get("metric", "accuracy"))
    if any(summary.get(key) is None for key in ("rounds", metric)):
        return "its summary has no rounds, or no result"
    if not _possible(metric, summary[metric]):
        return f"its {metric} is no such number"
    for part in ("clients", "curve"):
        if not _even(row.get(part)):
            return f"its {part} are no table of numbers"
    at = cast(dict[str, list[object]], row["curve"])
    if not {"round", "sent"} <= {*at} or not all(number in range(int(summary["rounds"])) for number in at["round"]):
        return "its curve has no bytes, or rounds that it did not run"
    last = cast(dict[str, list[float | None]], row["curve"]).get(metric, [None])[-1]
    if last is None or not isclose(last, cast(float, summary[metric]), rel_tol=CLOSE, abs_tol=CLOSE):
        return f"its {metric} is not that of its last evaluation"
    return ""


def _possible(key: str, value: object) -> bool:
    """Whether a number can be this: what is measured of a run is not negative, and a share is at most 100."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST < value < MOST:
        return False
    share = key.startswith("accuracy")
    return not (share and value > 100) and not ((share or key in MEASURED) and value < 0)


def _even(columns: object) -> bool:
    """Whether these are columns of numbers of one length, at least one long."""
    if not isinstance(columns, dict) or not all(isinstance(own, list) for own in columns.values()):
        return False
    lengths = {len(own) for own in columns.values()}
    told = [(key, value) for key, own in columns.items() for value in own if value is not None]
    return len(lengths) == 1 and 0 not in lengths and all(_possible(*pair) for pair in told)


def _plain(value: object, option: bool) -> object:
    """For JSON, which has no infinity: nothing stands for a result that is none, a word for an option."""
    if isinstance(value, dict):
        return {key: _plain(inner, option) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, option) for inner in value]
    return (str(value) if option else None) if isinstance(value, float) and not isfinite(value) else value
