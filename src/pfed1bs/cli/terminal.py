"""What runs and tables look like on a terminal: results on stdout, progress on stderr."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill, wrap

from pfed1bs import report
from pfed1bs.cli.board import Board
from pfed1bs.core.errors import Interrupted
from pfed1bs.core.extras import need
from pfed1bs.core.options import shown
from pfed1bs.engine.metrics import METRICS
from pfed1bs.engine.rest import able
from pfed1bs.report.drawn import ENDINGS
from pfed1bs.report.groups import groups
from pfed1bs.report.headline import headline
from pfed1bs.report.records import metric_of
from pfed1bs.report.results import CAPTION, labelled, plain, results
from pfed1bs.report.statistics import MOST, Against, ranged
from pfed1bs.runs.config import Config, Options
from pfed1bs.runs.run import Run
from pfed1bs.studies.cells import Entered
from pfed1bs.studies.chosen import table
from pfed1bs.studies.comparison import Entry
from pfed1bs.studies.tuning import Study

RIGHT = [False, True, True, True, False, False]
EMPTY = ("", "\u2013")  # cells in which nothing stands


def print_json(value: object) -> None:
    """Print an object as JSON."""
    print(json.dumps(value, indent=2))


def show_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Print a table of texts; where it is too wide, without empty columns and in parts; numbers are never cut."""
    texts = [[head, *(line[at] for line in lines)] for at, head in enumerate(heads)]
    full = [max(len(piece) for text in column for piece in text.split("\n")) for column in texts]
    words = [max((len(word) for text in column for word in text.split()), default=0) for column in texts]
    least = [full[at] if right[at] else words[at] for at in range(len(heads))]
    width = need("rich.console", "cli").Console().width
    wide = sum(least) + 3 * len(heads) + 1 <= width
    told = [at for at in range(len(heads)) if wide or any(line[at] not in EMPTY for line in lines)]
    gap, style = (3, {}) if wide else (2, {"padding": (0, 1, 0, 0), "show_edge": False})
    for number, part in enumerate([told] if wide else parts(told, least, width)):
        box = need("rich.box", "cli").SIMPLE_HEAD
        table = need("rich.table", "cli").Table(title=None if number else title, box=box, pad_edge=False, **style)
        spare = width - 1 - sum(least[at] + gap for at in part)
        for at in part:
            own = least[at] + max(0, min(full[at] - least[at], spare))
            spare -= own - least[at]
            table.add_column(heads[at], justify="right" if right[at] else "left", overflow="fold", width=own)
        for line in lines:
            table.add_row(*(line[at] for at in part))
        show(table)
        print(end="" if wide else "\n")


def parts(columns: Sequence[int], least: Sequence[int], width: int) -> list[list[int]]:
    """The columns in as many tables as they need, two places between them, each with the first before the others."""
    found = [[columns[0]]]
    for at in columns[1:]:
        if sum(least[i] for i in (*found[-1], at)) + 2 * len(found[-1]) > width and len(found[-1]) > 1:
            found.append([columns[0]])
        found[-1].append(at)
    return found


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, long ones below each other."""
    room = max(20, get_terminal_size().columns - 11)
    for key, value in facts.items():
        print(f"{key:10} " + f"\n{'':11}".join(wrap(str(value), room) or [""]))


def show(table: object) -> None:
    """Print anything that rich can draw; rich itself would end the program where nobody reads it."""
    console = need("rich.console", "cli").Console()
    with console.capture() as drawn:
        console.print(table)
    print(drawn.get(), end="")


def watch(run: Run, resume: bool, label: str, again: str, board: Board | None = None) -> None:
    """Do the rounds, with a board on a terminal, one line per evaluation otherwise; `again` is how they go on."""
    for remark in filter(None, (run.algorithm.remark, tireless(run))):
        print(f"{label}: {remark}", file=sys.stderr)
    own = board or alone(run)
    try:
        with (
            closing(run.rounds(resume)) as rounds,  # type: ignore[type-var]  # a generator
            nullcontext() if board else own,
        ):
            for record in rounds:
                metric = METRICS[run.algorithm.task.loss.metrics[0]]
                if metric.name in record and not own.shown:
                    news = metric.told(record[metric.name])
                    print(f"{label}: round {record['round'] + 1} of {run.config.rounds}, {news}", file=sys.stderr)
        if run.summary.get("rested"):
            told = f"{label}: all models at rest after round {run.summary['rounds']}, the run ends here"
            print(told, file=sys.stderr)
        elif run.config.rest and able(run.algorithm) and not board:
            told = f"{label}: some models still learn; with more --rounds the run ends by itself when all rest"
            print(told, file=sys.stderr)
    except KeyboardInterrupt as error:
        if not run.folder.exists():
            raise
        raise Interrupted(f"interrupted, {run.folder} holds what was done", f"go on with: {again}") from error


def tireless(run: Run) -> str:
    """That a level of rest was given where nobody rests."""
    given = run.config.rest not in (0, Config().rest) and not able(run.algorithm)
    return "rest changes nothing: there is no shared model to rest from, or the loss is no entropy" if given else ""


def alone(run: Run) -> Board:
    """The board of one run."""
    board = Board(run.folder.parent)
    board.add([Entry(run.folder.name, run.config)])
    return board


def watch_all(ended: Iterator[Entry], board: Board, again: str, kept: str = "") -> None:
    """Wait for runs to end; `again` is how they go on, `kept` where else something of them is."""
    try:
        for entry in ended:
            board.ended(entry.name)
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted; what was done is in {board.folder}{kept}", f"go on with: {again}") from error


def show_tuned(study: Study, folder: Path, as_json: bool) -> None:
    """Print what was found for every method, and the tables for a recipe."""
    if as_json:
        print_json(told(folder, study.runs(), tuning=study.plain()))
        return
    heads = ("method", "validation", "95 %\ninterval", "runs", "options", "best\nis inside, or open")
    digits = study.metric.digits
    rows = [
        (
            *(item.method, f"{item.best:.{digits}f}", ranged(item.interval, digits)),
            str(sum(map(len, item.scores.values()))),
            " ".join(f"{key}={shown(value)}" for key, value in item.options.items()),
            ", ".join(f"{key} {_open(edge)}" for key, edge in item.edges.items() if edge != "inside") or "inside",
        )
        for item in study.methods
    ]
    unit = "percent correct" if study.metric.name == "accuracy" else study.metric.words
    show_table(f"{study.config.data.name}: {unit} on training samples held back", heads, rows, RIGHT)
    print("\n".join(table(item.method, item.options) for item in study.methods))
    ends = [item.method for item in study.methods if any(edge.endswith("end") for edge in item.edges.values())]
    if ends:
        print(f"best values at an open end: {', '.join(ends)}; go on with --resume and more --points, the same for all")
    print(f"folder  {folder}\nfile    {folder / 'tuning.json'}")


def _open(edge: str) -> str:
    """Where better values may be, in a word or two."""
    ends = [word for end, word in (("upper end", "above"), ("lower end", "below")) if end in edge]
    return "both sides" if len(ends) == 2 else ends[0] if ends else "limit" if "limit" in edge else "with others"


def show_cells(title: str, found: Sequence[Entered]) -> None:
    """Print a table of `reproduce`: every cell in a line."""
    heads = ("setting", "method", "percent\ncorrect", "95 %\ninterval", "paper", "seeds")
    begun = {cell.part for cell in found if cell.rows}
    found = [cell for cell in found if cell.part in begun]
    values = [cell.spread("accuracy") for cell in found]
    lines = [
        (*(cell.part, cell.label, cell.ours, ranged(value.interval if value else None, 2)), cell.verdict,
         f"{len(cell.rows)} of {cell.wanted}")
        for cell, value in zip(found, values, strict=True)
    ]  # fmt: skip
    show_table(title, heads, lines, [False, False, True, True, False, True])


def finish(runs: list[Run], folder: Path, as_json: bool, against: Against | None = None) -> None:
    """Write the pictures and the report, print the table, and the differences to a method that was named."""
    records = [report.read(run.folder) for run in runs]
    write(records, folder, against)
    if as_json:
        print_json(outcome(records, folder, against))
        return
    first = runs[0].config
    metric = records[0].metric
    told = "percent correct" if metric.name == "accuracy" else f"{metric.words}, {metric.better} is better"
    title = f"{first.data.name}, {first.data.partition}, {first.clients} clients, round {first.rounds}: {told}"
    heads, *lines = results(groups(records)).brief()
    show_table(title, heads, lines, [False] + [True] * (len(heads) - 1))
    if "global" in heads or "tuned" in heads:
        print(fill(CAPTION, get_terminal_size().columns))
    if against:
        show_differences(against, labelled(groups(records)))
    found = headline(groups(records))
    for sentence in (f"{found.title}.", *found.told) if len(records) > 1 else ():
        print(fill(sentence, get_terminal_size().columns))
    print(f"folder  {folder}\nreport  {folder / 'report.html'}\npicture {folder / 'plots' / 'accuracy-bytes.svg'}")


def outcome(records: Sequence[report.RunRecord], folder: Path, against: Against | None = None) -> Options:
    """What --json prints of finished runs, one or many: the summary of each, and paired differences."""
    runs = [{**record.summary, "folder": str(record.path)} for record in records]
    paired = {"paired": against.plain(labelled(groups(records)))} if against else {}
    return told(folder, runs, folder / "report.html", **paired)


def told(folder: Path, runs: Sequence[Mapping[str, object]], page: Path | None = None, **more: object) -> Options:
    """What --json prints of runs, whatever the command: their folder, the page if one was made, the runs, and more."""
    return {"folder": str(folder), "report": str(page) if page else None, "runs": [*runs], **more}


def show_differences(against: Against, runs: Sequence[Mapping[str, object]]) -> None:
    """Print the paired differences to a method."""
    heads, *lines = against.sheet(runs)
    metric = metric_of(runs[0])
    which = "" if metric.better == "higher" else f" ({metric.better} is better)"
    title = f"{metric.words.removesuffix(' (%)')} minus that of {against.method}, seed by seed{which}"
    show_table(title, heads, lines, [False] + [True] * (len(heads) - 1))
    if words := against.explained(runs):
        print(fill(words, get_terminal_size().columns))
    if not any(item.p is not None for item in against.verdicts(runs)) and len(lines) > MOST:
        print(f"nothing is tested: name at most {MOST} comparisons with --tested a,b")


def write(
    records: list[report.RunRecord], folder: Path, against: Against | None = None, endings: Sequence[str] = ENDINGS[:2]
) -> None:
    """The page, and where there are several runs the table as a file."""
    report.write(records, folder / "report.html", against, endings)
    if len(records) > 1:
        (folder / "table.json").write_text(json.dumps(plain(records, against)) + "\n")
