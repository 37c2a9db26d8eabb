"""Many runs that may diverge, one after the other or side by side."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pfed1bs.engine.turns import Diverged
from pfed1bs.studies.comparison import Entry, complete, prepared, side_by_side


def performed(runs: Sequence[Entry], folder: Path, processes: int) -> Iterator[Entry]:
    """Do what is left of the runs, one after the other or side by side; one that diverges ends alone."""
    if processes > 1:
        yield from side_by_side(longest_first(runs, folder), folder, processes, borne=(Diverged,))
        return
    for entry, run in zip(runs, prepared(runs, folder), strict=True):
        with suppress(Diverged):
            complete(run)
        yield entry


def longest_first(runs: Sequence[Entry], folder: Path) -> list[Entry]:
    """The runs of slow methods before others, by the runs that have ended here: nobody waits for the last of them."""
    taken: dict[str, float] = {}
    for path in folder.glob("*/summary.json"):
        told = json.loads(path.read_text())
        taken[told["algorithm"]] = max(told["seconds"], taken.get(told["algorithm"], 0.0))
    return sorted(runs, key=lambda entry: -taken.get(entry.config.method, 0.0))
