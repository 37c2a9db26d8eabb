"""What was done with every target, and where that is written down."""

import json
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch


@dataclass
class Record:
    """What was done with a target; processor time without that of imports."""

    cpu_minutes: float = 0.0
    inputs: int = 0
    processes: int = 0
    peak_mib: int = 0
    edges: int = 0
    corpus: int = 0
    found: list[str] = field(default_factory=list)

    def add(self, log: str, seconds: float) -> None:
        """Count a process in: what it wrote, and its processor time."""

        def last(pattern: str) -> int:
            return int(([0, *re.findall(pattern, log, re.MULTILINE)])[-1])

        begun = float((re.findall(r"set_up: ([\d.]+)", log) or [seconds])[0])
        self.cpu_minutes = round(self.cpu_minutes + max(0.0, seconds - begun) / 60, 3)
        self.inputs += last(r"(?:^#|number_of_executed_units: )(\d+)")
        self.processes += 1
        self.peak_mib = max(self.peak_mib, last(r"peak_rss_mb: +(\d+)"))
        self.edges = max(self.edges, last(r"cov: (\d+) ft:"))
        self.corpus = max(self.corpus, last(r"corp: (\d+)"))


def write(path: Path, records: dict[str, Record]) -> None:
    """Put the records beside those of other targets."""
    content = json.loads(path.read_text()) if path.exists() else {"targets": {}}
    content |= {key: about()[key] for key in ("command", "commit")}
    content["targets"] |= {name: {**about(), **asdict(record)} for name, record in records.items() if record.processes}
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    draft.replace(path)


@cache  # before anything is written, which would make it another state of the code
def about() -> dict[str, object]:
    """What a record depends on."""
    # Here and not above: a process that fuzzes imports the package with counters in it.
    from pfed1bs.core.origin import commit
    from pfed1bs.runs.environment import processor

    versions = {"commit": commit(), "python": platform.python_version(), "torch": torch.__version__}
    return {"command": " ".join(["python", *sys.argv]), **versions, "processor": processor(), "cores": os.cpu_count()}


def earlier(path: Path | None, names: list[str]) -> dict[str, Record]:
    """What the same code has done before, by --out."""
    known = json.loads(path.read_text())["targets"] if path and path.exists() else {}
    now = str(about()["commit"]).strip("+")
    same = [name for name in names if str(known.get(name, {}).get("commit")).strip("+") == now]
    return {name: Record(**{key: known[name][key] for key in Record.__dataclass_fields__}) for name in same}
