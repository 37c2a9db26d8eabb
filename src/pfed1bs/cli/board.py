"""The progress of many runs: how far all of them are, and the last score of each, read from their folders."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Self

from pfed1bs.core.extras import need
from pfed1bs.runs.run import judged_by
from pfed1bs.studies.comparison import Entry

FEW = 5  # seeds that still have a column each
EDGE = 6  # lines of the terminal that are not for the table


class Followed:
    """A run as its metrics tell of it, read on from where they ended last."""

    def __init__(self, entry: Entry, folder: Path) -> None:
        self.name, self.seed, self.wanted = entry.name, entry.config.seed, entry.config.rounds
        self.path = folder / entry.name
        self.metric = judged_by(entry.config)
        self.done, self.ended = 0, False
        self.score: float | None = None
        self._read, self._last = 0, b""  # how far, and the last line of it

    def read(self) -> None:
        """Take in what was written since; a line that is not whole waits, and one of a run begun again starts anew."""
        path = self.path / "metrics.jsonl"
        if self.ended or not path.exists():
            return
        self.ended = (self.path / "summary.json").exists()
        with path.open("rb") as file:
            file.seek(self._read - len(self._last))
            if file.read(len(self._last)) != self._last:
                self._read, self._last, self.done = file.seek(0), b"", 0
            lines = [line for line in file if line.endswith(b"\n")]
        self._read += sum(map(len, lines))
        self._last = lines[-1] if lines else self._last
        for line in lines:
            record = json.loads(line)
            self.done, self.score = record["round"] + 1, record.get(self.metric.name, self.score)

    def told(self) -> str:
        """Its last score, with the round where it goes on."""
        score = "" if self.score is None else f"{self.score:.{self.metric.digits}f}"
        return f"{score} @{self.done}".lstrip() if self.done and not self.ended else score


class Board:
    """One line about all runs and a table of their last scores, on a terminal; elsewhere a line for every run."""

    def __init__(self, folder: Path, total: int = 0) -> None:
        self.folder, self.total, self.runs = folder, total, list[Followed]()
        self.began, self.before = monotonic(), 0
        self.console = need("rich.console", "cli").Console(stderr=True)
        self.live = need("rich.live", "cli").Live(
            get_renderable=self.drawn, console=self.console, refresh_per_second=2, transient=True
        )

    @property
    def shown(self) -> bool:
        """Whether somebody looks at it."""
        return bool(self.console.is_terminal)

    def __enter__(self) -> Self:
        if self.shown:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.live.stop()

    def add(self, runs: Sequence[Entry]) -> None:
        """More runs; what is done of them already does not count for the speed."""
        more = [Followed(entry, self.folder) for entry in runs]
        for run in more:
            run.read()
        self.before += sum(run.done for run in more)
        self.runs += more

    def ended(self, name: str) -> None:
        """Say that a run has ended, and how far all of them are."""
        run = next(run for run in self.runs if run.name == name)
        run.read()
        run.ended = True
        if not self.shown:
            told = run.told()
            print(f"{name}: ended{told and f' with {told}'}; {self.told()}", file=sys.stderr)

    def counted(self) -> tuple[int, int]:
        """Rounds done and rounds left; runs that are not known yet have as many as the others."""
        for run in self.runs:
            run.read()
        later = max(0, self.total - len(self.runs)) * (self.runs[0].wanted if self.runs else 0)
        left = sum(run.wanted - run.done for run in self.runs if not run.ended)
        return sum(run.done for run in self.runs), left + later

    def told(self) -> str:
        """Runs and rounds done, rounds a second, time spent and left."""
        done, left = self.counted()
        spent = monotonic() - self.began
        rate = (done - self.before) / spent if spent else 0.0
        total, ended = max(self.total, len(self.runs)), sum(run.ended for run in self.runs)
        runs = f"{ended} of {total} runs" if total > 1 else f"{done} of {done + left} rounds"
        remaining = f", {clock(left / rate)} left" if rate else ""
        return f"{runs}, {rate:.1f} rounds/s, {clock(spent)} elapsed{remaining}"

    def drawn(self) -> object:
        """All of it."""
        done, left = self.counted()
        scores = [self._table()] if len(self.runs) > 1 else [f"{run.name} {run.told()}" for run in self.runs]
        bar = need("rich.progress_bar", "cli").ProgressBar(done + left, done)
        return need("rich.console", "cli").Group(self.told(), bar, *scores)

    def _table(self) -> object:
        """The last scores of the runs that have begun, those that began last if there are too many."""
        seeds = sorted({run.seed for run in self.runs})
        rows: dict[str, list[Followed]] = {}
        for run in self.runs:
            rows.setdefault(run.name.removesuffix(f"-s{run.seed}"), []).append(run)
        heads = [f"seed {seed}" for seed in seeds] if len(seeds) <= FEW else ["mean", "seeds"]
        table = need("rich.table", "cli").Table(box=need("rich.box", "cli").SIMPLE_HEAD, pad_edge=False)
        for head in ("method", *heads):
            table.add_column(head, justify="left" if head == "method" else "right", no_wrap=head != "method")
        begun = [(name, found) for name, found in rows.items() if any(run.done for run in found)]
        for name, found in begun[-max(1, self.console.height - EDGE) :]:
            table.add_row(name, *(_cells(found, seeds) if len(seeds) <= FEW else _mean(found)))
        return table


def _cells(found: Sequence[Followed], seeds: Sequence[int]) -> list[str]:
    by_seed = {run.seed: run.told() for run in found}
    return [by_seed.get(seed, "") for seed in seeds]


def _mean(found: Sequence[Followed]) -> list[str]:
    scores = [run.score for run in found if run.score is not None]
    return [f"{fmean(scores):.{found[0].metric.digits}f}" if scores else "", str(len(scores))]


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
