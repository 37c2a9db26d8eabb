"""What runs and tables look like on a terminal: results on stdout, progress on stderr."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pfed1bs import report
from pfed1bs.core.errors import Interrupted
from pfed1bs.core.extras import need
from pfed1bs.engine.metrics import METRICS
from pfed1bs.report.groups import groups
from pfed1bs.report.results import CAPTION, plain, results
from pfed1bs.runs.run import Run
from pfed1bs.studies.comparison import Entry


def print_json(value: object) -> None:
    """Print an object as JSON."""
    print(json.dumps(value, indent=2))


def show_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Print a table of texts; numbers are never cut."""
    table = need("rich.table", "cli").Table(title=title, box=need("rich.box", "cli").SIMPLE_HEAD, pad_edge=False)
    for head, aligned in zip(heads, right, strict=True):
        table.add_column(head, justify="right" if aligned else "left", no_wrap=aligned, overflow="fold")
    for line in lines:
        table.add_row(*line)
    show(table)


def show(table: object) -> None:
    """Print anything that rich can draw; rich itself would end the program where nobody reads it."""
    console = need("rich.console", "cli").Console()
    with console.capture() as drawn:
        console.print(table)
    print(drawn.get(), end="")


def watch(run: Run, resume: bool, label: str, again: str) -> None:
    """Do the rounds with a bar on a terminal, one line per evaluation otherwise; `again` is how they go on."""
    progress = need("rich.progress", "cli")
    console = need("rich.console", "cli").Console(stderr=True)
    columns = (*progress.Progress.get_default_columns(), progress.TextColumn("{task.fields[news]}"))
    try:
        with (
            closing(run.rounds(resume)) as rounds,  # type: ignore[type-var]  # a generator
            progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ):
            task = bar.add_task(label, total=run.config.rounds, news="")
            for record in rounds:
                metric = METRICS[run.algorithm.task.loss.metrics[0]]
                news = metric.told(record[metric.name]) if metric.name in record else None
                bar.update(task, completed=record["round"] + 1, **({"news": news} if news else {}))
                if news and not console.is_terminal:
                    print(f"{label}: round {record['round'] + 1} of {run.config.rounds}, {news}", file=sys.stderr)
    except KeyboardInterrupt as error:
        if not run.folder.exists():
            raise
        raise Interrupted(f"interrupted, {run.folder} holds what was done", f"go on with: {again}") from error


def watch_all(ended: Iterator[Entry], total: int, folder: Path, again: str) -> None:
    """Count runs that end side by side; `again` is how they go on."""
    progress = need("rich.progress", "cli")
    console = need("rich.console", "cli").Console(stderr=True)
    try:
        with progress.Progress(console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task(f"{total} runs", total=total)
            for number, entry in enumerate(ended, 1):
                bar.update(task, completed=number)
                if not console.is_terminal:
                    print(f"{entry.name}: {number} of {total} runs", file=sys.stderr)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted, {folder} holds what was done", f"go on with: {again}") from error


def finish(runs: list[Run], folder: Path, as_json: bool) -> None:
    """Write the pictures and the report, print the table."""
    records = [report.read(run.folder) for run in runs]
    write(records, folder)
    if as_json:
        summaries = [run.summary for run in runs]
        print_json(summaries[0] if len(runs) == 1 else summaries)
        return
    first = runs[0].config
    metric = records[0].metric
    told = "percent correct" if metric.name == "accuracy" else f"{metric.words}, {metric.better} is better"
    title = f"{first.data.name}, {first.data.partition}, {first.clients} clients, round {first.rounds}: {told}"
    heads, *lines = results(groups(records)).brief()
    show_table(title, heads, lines, [False] + [True] * (len(heads) - 1))
    if "global" in heads or "tuned" in heads:
        print(CAPTION)
    print(f"folder  {folder}\nreport  {folder / 'report.html'}\npicture {folder / 'plots' / 'accuracy-bytes.svg'}")


def write(records: list[report.RunRecord], folder: Path) -> None:
    """The page, and where there are several runs the table as a file."""
    report.write(records, folder / "report.html")
    if len(records) > 1:
        (folder / "table.json").write_text(json.dumps(plain(records)) + "\n")
