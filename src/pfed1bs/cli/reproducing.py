"""`pfed1bs reproduce`: the tables and figures of the paper, and ours."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree

from pfed1bs.cli import terminal
from pfed1bs.cli.board import Board
from pfed1bs.cli.words import parser_of, seeds, whole
from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.origin import pasted
from pfed1bs.engine.rounds import choose
from pfed1bs.runs.config import Config
from pfed1bs.runs.recipes import FOLDER
from pfed1bs.studies import plan, sheets
from pfed1bs.studies.comparison import Entry, agree
from pfed1bs.studies.finished import Finished, elsewhere, row_of
from pfed1bs.studies.performing import performed
from pfed1bs.studies.plan import Planned

VALUES = {
    "--only": "data sets with commas between (default: all)",
    "--seeds": "those of the recipes' seeds that are run, with commas between (default: all)",
    "--parallel": "runs at a time, each in a process of its own with one CPU thread (default: 1)",
    "--device": "auto (default), cpu, cuda, cuda:1",
    "--out": "folder for NAME/runs.jsonl, tables and pictures (default: results, quick ones: runs/quick)",
    "--work": "folder for runs that are not finished (default: runs/reproduce)",
    "--recipes": "folder of the recipes (default: those that come along)",
}
SWITCHES = {
    "--quick": "a small version of everything on embedded data",
    "--resume": "go on: runs whose rows are there, or in a folder of --join, are not repeated",
    "--draw": "no runs: only the tables and pictures of the rows there are",
}


def reproduce_command(words: list[str]) -> None:
    """`pfed1bs reproduce NAME|all`: what is missing of a table or figure is run, then it is written and drawn."""
    parser = parser_of("reproduce")
    parser.add_argument("-h", "--help", action="help", help="show this")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or some of {', '.join(plan.NAMES)}")
    for name, text in VALUES.items():
        parser.add_argument(name, default=None, help=text)
    parser.add_argument("--join", action="extend", nargs="+", default=[], help="folders with rows made elsewhere")
    for name, text in SWITCHES.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    own = parser.parse_args(words)
    choose(own.device or "auto")
    recipes, out = Path(own.recipes or FOLDER), Path(own.out or ("runs/quick" if own.quick else "results"))
    targets = [plan.read(name, recipes) for name in (plan.NAMES if "all" in own.names else own.names)]
    plans = {target.name: target.planned(recipes, own.quick, own.device or "auto") for target in targets}
    runs = plan.in_order(plans.values())
    rows = joined(runs, out, [Path(name) for name in own.join])
    if own.draw and runs and not any(known.rows for known in rows.values()):
        raise UserError(
            f"there are no rows in {out}", "call it in a checkout, name their folder with --out, or --join it"
        )
    chosen = wanted(runs, own)
    pending = [run for run in chosen if not own.draw and not rows[run.target].find(run)]
    if pending and not own.resume and any(known.rows for known in rows.values()):
        raise UserError(f"{out} has finished runs", "add --resume to go on, or --draw for tables and pictures alone")
    if len(pending) < len(chosen) and not own.draw:
        print(there(out, len(chosen), len(pending), len(runs)), file=sys.stderr)
    if pending:
        again = pasted(["reproduce", *words, *([] if own.resume else ["--resume"])])
        work, processes = Path(own.work or "runs/reproduce"), whole(own, "parallel", 1)
        with Board(work) as board:
            board.add([run.entry for run in pending])
            terminal.watch_all(ended(pending, rows, work, processes), board, again)
    for target in targets:
        known = rows.get(target.of or target.name, Finished(out))
        found = sheets.write(target, plans[target.name], known, out / target.name)
        if target.ticks:
            print((out / target.name / "table.md").read_text())
        if found:
            terminal.show_cells(target.title, found)
        print(f"folder  {out / target.name}" + ("" if (out / target.name).is_dir() else ": no runs, nothing drawn"))


def there(out: Path, chosen: int, missing: int, every: int) -> str:
    """How many of the chosen rows are there: a table that was not made now is not to pass for one that was."""
    told = f"rows in {out}: {chosen - missing} of {chosen}"
    if missing:
        return f"{told}, left to run: {missing}"
    beside = "; the table has those that were not chosen too" if chosen < every else ""
    return f"{told}, so no run is made; --out DIR with an empty folder makes them anew{beside}"


def joined(runs: Sequence[Planned], out: Path, places: Sequence[Path]) -> dict[str, Finished]:
    """The rows of every table and figure, with those of the others and of other places that fit."""
    rows = {name: Finished.of(out / name) for name in dict.fromkeys(run.target for run in runs)}
    own = {name: [run for run in runs if run.target == name] for name in rows}
    for place in places:
        there = elsewhere(place)
        taken = sum(known.join(there, own[name]) for name, known in rows.items())
        print(f"joined {place}: {taken} of its {len(there)} rows were missing in {out}", file=sys.stderr)
    others = [row for name in plan.NAMES for row in Finished.of(out / name).rows]
    for name, known in rows.items():
        known.join(others, own[name])
    return rows


def wanted(runs: Sequence[Planned], own: Namespace) -> list[Planned]:
    """The runs that --only and --seeds leave; a data set or a seed that no run has is a typing error."""
    data = own.only.split(",") if own.only else [run.entry.config.data.name for run in runs]
    chosen = seeds(own.seeds, [run.entry.config.seed for run in runs], [], Config())
    found = [run for run in runs if run.entry.config.data.name in data and run.entry.config.seed in chosen]
    names, numbers = {run.entry.config.data.name for run in runs}, {run.entry.config.seed for run in runs}
    if runs and not (found and {*data} <= names and {*chosen} <= numbers):
        there = f"data sets {', '.join(sorted(names))}, seeds {', '.join(map(str, sorted(numbers)))}"
        small = "; --quick has small versions on embedded data" if own.quick else ""
        hint = next((nearest(name, sorted(names)) for name in data if name not in names), "--only and --seeds choose")
        raise UserError(f"{'no run is left' if not found else 'not all are known'}: there are {there}{small}", hint)
    return found


def ended(runs: Sequence[Planned], rows: dict[str, Finished], work: Path, processes: int) -> Iterator[Entry]:
    """Do the runs; each becomes a row as soon as it ends, and its folder goes."""
    agree([run.entry for run in runs], work)
    planned = {run.entry.name: run for run in runs}
    for entry in performed([run.entry for run in runs], work, processes):
        run = planned[entry.name]
        rows[run.target].add(row_of(run, work / entry.name))
        yield entry  # whoever follows it has its last lines to read
        rmtree(work / entry.name)
