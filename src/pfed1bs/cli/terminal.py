"""What runs and tables look like on a terminal: results on stdout, progress on stderr."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from pfed1bs import report
from pfed1bs.core.errors import Interrupted
from pfed1bs.core.extras import need
from pfed1bs.core.options import shown
from pfed1bs.engine.metrics import METRICS
from pfed1bs.report.drawn import ENDINGS
from pfed1bs.report.groups import groups
from pfed1bs.report.records import metric_of
from pfed1bs.report.results import CAPTION, labelled, plain, results
from pfed1bs.report.statistics import MOST, Against
from pfed1bs.runs.run import Run
from pfed1bs.studies.comparison import Entry
from pfed1bs.studies.sheets import Entered
from pfed1bs.studies.tuning import Study, table

RIGHT = [False, True, True, False, False]


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
    if run.algorithm.remark:
        print(f"{label}: {run.algorithm.remark}", file=sys.stderr)
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
        if run.summary.get("rested"):
            print(
                f"{label}: all models at rest after round {run.summary['rounds']}, the run ends here", file=sys.stderr
            )
    except KeyboardInterrupt as error:
        if not run.folder.exists():
            raise
        raise Interrupted(f"interrupted, {run.folder} holds what was done", f"go on with: {again}") from error


def watch_all(ended: Iterator[Entry], total: int, folder: Path, again: str, label: str = "") -> None:
    """Count runs that end side by side; `again` is how they go on."""
    progress = need("rich.progress", "cli")
    console = need("rich.console", "cli").Console(stderr=True)
    try:
        with progress.Progress(console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task(f"{label} {total} runs".strip(), total=total)
            for number, entry in enumerate(ended, 1):
                bar.update(task, completed=number)
                if not console.is_terminal:
                    print(f"{entry.name}: {number} of {total} runs{label and f', {label}'}", file=sys.stderr)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted, {folder} holds what was done", f"go on with: {again}") from error


def show_tuned(study: Study, folder: Path, as_json: bool) -> None:
    """Print what was found for every method, and the tables for a recipe."""
    if as_json:
        print_json(study.plain())
        return
    heads = ("method", "validation", "runs", "options", "best values")
    rows = [
        (
            *(item.method, f"{item.best:.{study.metric.digits}f}", str(sum(map(len, item.scores.values())))),
            " ".join(f"{key}={shown(value)}" for key, value in item.options.items()),
            ", ".join(f"{key} {edge}" for key, edge in item.edges.items() if edge != "inside") or "inside",
        )
        for item in study.methods
    ]
    told = "percent correct" if study.metric.name == "accuracy" else study.metric.words
    show_table(f"{study.config.data.name}: {told} on training samples held back", heads, rows, RIGHT)
    print("\n".join(table(item.method, item.options) for item in study.methods))
    ends = [item.method for item in study.methods if any(edge.endswith("end") for edge in item.edges.values())]
    if ends:
        print(f"best values at an open end: {', '.join(ends)}; go on with --resume and more --points, the same for all")
    print(f"folder  {folder}\nfile    {folder / 'tuning.json'}")


def show_cells(title: str, found: Sequence[Entered]) -> None:
    """Print a table of `reproduce`: every cell in a line."""
    lines = [(cell.part, cell.label, cell.ours, cell.verdict, f"{len(cell.rows)} of {cell.wanted}") for cell in found]
    show_table(
        title, ("setting", "method", "percent correct", "paper", "seeds"), lines, [False, False, True, False, True]
    )


def finish(runs: list[Run], folder: Path, as_json: bool, against: Against | None = None) -> None:
    """Write the pictures and the report, print the table, and the differences to a method that was named."""
    records = [report.read(run.folder) for run in runs]
    write(records, folder, against)
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
    if against:
        show_differences(against, labelled(groups(records)))
    print(f"folder  {folder}\nreport  {folder / 'report.html'}\npicture {folder / 'plots' / 'accuracy-bytes.svg'}")


def show_differences(against: Against, runs: Sequence[Mapping[str, object]]) -> None:
    """Print the paired differences to a method."""
    heads, *lines = against.sheet(runs)
    metric = metric_of(runs[0])
    which = "" if metric.better == "higher" else f" ({metric.better} is better)"
    title = f"{metric.words.removesuffix(' (%)')} minus that of {against.method}, seed by seed{which}"
    show_table(title, heads, lines, [False] + [True] * (len(heads) - 1))
    if not any(item.p is not None for item in against.verdicts(runs)) and len(lines) > MOST:
        print(f"nothing is tested: name at most {MOST} comparisons with --tested a,b")


def write(
    records: list[report.RunRecord], folder: Path, against: Against | None = None, endings: Sequence[str] = ENDINGS[:2]
) -> None:
    """The page, and where there are several runs the table as a file."""
    report.write(records, folder / "report.html", against, endings)
    if len(records) > 1:
        (folder / "table.json").write_text(json.dumps(plain(records, against)) + "\n")
