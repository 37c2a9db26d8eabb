"""How many samples rows were made from: different files are not put together, and a part is called a subset."""

from collections.abc import Sequence
from statistics import fmean
from typing import cast

from pfed1bs.core.errors import UserError
from pfed1bs.report.records import Json

WHOLE = {"cifar100": 60_000, "svhn": 99_289}  # pictures, of those data sets of which subsets go round
SHARE = 0.25  # of them that are for tests
LESS = 0.95  # of the whole; with fewer it is a subset


def agree(rows: Sequence[Json]) -> None:
    """Refuse rows of one data set whose test samples are not as many: means over them would be of nothing."""
    found: dict[tuple[object, ...], list[Json]] = {}
    for row in rows:
        if "clients" in row:
            found.setdefault(_kind(cast(Json, cast(Json, row["config"])["data"])), []).append(row)
    for (name, *_), own in found.items():
        least, most = min(own, key=tests), max(own, key=tests)
        if tests(most) - tests(least) > max(map(_clients, own)):  # each client's share is rounded
            raise UserError(
                f"rows of {name} were made from different files: {_said(most)}, {_said(least)}",
                "keep those of other files in a folder of their own, with --out and without --join",
            )


def subset(data: str, rows: Sequence[Json]) -> str:
    """What a table says of a data set of which its rows have seen a part."""
    counts = [tests(row) for row in rows if "clients" in row]
    about = round(fmean(counts) / SHARE, -3) if counts else 0
    return f"a subset: {about:,.0f} of {WHOLE[data]:,} pictures" if 0 < about < LESS * WHOLE.get(data, 0) else ""


def tests(row: Json) -> float:
    """Test samples of all clients."""
    return sum(cast(dict[str, list[float]], row["clients"])["test_samples"])


def _kind(data: Json) -> tuple[object, ...]:
    """What decides how many of a data set's samples are for tests."""
    held = (data.get("cap"), data["partition"]) if data.get("validate") else ()
    return data["name"], data.get("split"), data.get("newcomers"), *held


def _clients(row: Json) -> int:
    return len(cast(dict[str, list[float]], row["clients"])["test_samples"])


def _said(row: Json) -> str:
    env = cast(Json, row["env"])
    return (
        f"{row['label']} of {env.get('time', 'some time')} on {env.get('device')} with {tests(row):,.0f} test samples"
    )
