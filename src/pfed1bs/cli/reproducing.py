"""`pfed1bs reproduce`: the tables and figures of the paper, and ours."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import contains
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from tempfile import TemporaryFile
from typing import cast

from pfed1bs.cli import terminal
from pfed1bs.cli.board import Board
from pfed1bs.cli.words import parser_of, seeds, whole
from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.origin import pasted
from pfed1bs.data import load
from pfed1bs.data.synthetic import is_synthetic
from pfed1bs.engine.rounds import choose
from pfed1bs.report.records import Json
from pfed1bs.runs.config import Config
from pfed1bs.runs.recipes import FOLDER
from pfed1bs.studies import plan, sheets
from pfed1bs.studies.comparison import Entry, agree
from pfed1bs.studies.finished import FILE, Finished, elsewhere, row_of
from pfed1bs.studies.performing import performed
from pfed1bs.studies.plan import Planned

VALUES = {
    "--only": "data sets with commas between (default: all)",
    "--methods": "those that are run, with commas between (default: all)",
    "--seeds": "those of the recipes' seeds that are run, with commas between (default: all)",
    "--parallel": "runs at a time, each in a process of its own with one CPU thread (default: 1)",
    "--device": "auto (default), cpu, cuda, cuda:1",
    "--out": "folder for NAME/runs.jsonl, tables and pictures (default: results, quick ones: runs/quick)",
    "--work": "folder for runs that are not finished (default: runs/reproduce)",
    "--recipes": "folder of the recipes (default: those that come along)",
}
CHOICES = ("only", "methods", "seeds")
SMALL = "a small version, a few steps on embedded data at one seed, which says nothing of any method"
SWITCHES = {
    "--quick": "a small version of everything on embedded data",
    "--resume": "go on: runs whose rows are there, or in a folder of --join, are not repeated",
    "--draw": "no runs: only the tables and pictures of the rows there are",
}


def reproduce_command(words: list[str]) -> None:
    """`pfed1bs reproduce NAME|all`: what is missing of a table or figure is run, then it is written and drawn."""
    parser = parser_of("reproduce")
    parser.add_argument("-h", "--help", action="help", help="show this")
    told = f"all, or some of {', '.join(plan.NAMES)}, or a recipe of your own in the folder reproduce of --recipes"
    parser.add_argument("names", nargs="+", metavar="NAME", help=told)
    for name, text in VALUES.items():
        parser.add_argument(name, default=None, help=text)
    parser.add_argument("--join", action="extend", nargs="+", default=[], help="folders with rows made elsewhere")
    for name, text in SWITCHES.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    own = parser.parse_args(words)
    if own.draw and (aside := [name for name in CHOICES if getattr(own, name) is not None]):
        raise UserError(f"--draw takes all rows there are, and --{aside[0]} chooses runs", "leave one of them out")
    choose(own.device or "auto")
    processes = whole(own, "parallel", 1)
    recipes, out = Path(own.recipes or FOLDER), Path(own.out or ("runs/quick" if own.quick else "results"))
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", "name a folder with --out")
    every = [name for word in own.names for name in (plan.NAMES if word == "all" else [word])]
    targets = [plan.read(name, recipes) for name in dict.fromkeys(every)]
    if own.quick:
        small(out, targets)
        targets = [replace(target, title=f"{target.title}; {SMALL}") for target in targets]
    plans = {target.name: target.planned(recipes, own.quick, own.device or "auto") for target in targets}
    runs = plan.in_order(plans.values())
    begun = any((out / run.target / FILE).exists() for run in runs)
    rows = joined(runs, out, [Path(name) for name in own.join])
    if own.draw and runs and not any(known.rows for known in rows.values()):
        raise UserError(
            f"there are no rows in {out}", "call it in a checkout, name their folder with --out, or --join it"
        )
    chosen = wanted(runs, own)
    pending = [run for run in chosen if not own.draw and not rows[run.target].find(run)]
    if pending and not own.resume and begun:
        raise UserError(f"{out} has finished runs", "add --resume to go on, or --draw for tables and pictures alone")
    if len(pending) < len(chosen) and not own.draw:
        print(there(out, len(chosen), len(pending), len(runs)), file=sys.stderr)
    if pending:
        again = pasted(["reproduce", *words, *([] if own.resume else ["--resume"])])
        work = Path(own.work or "runs/reproduce")
        with Board(work) as board:
            board.add([run.entry for run in pending])
            tables = {out / name for target in targets for name in (target.name, target.of) if name}
            terminal.watch_all(ended(pending, rows, work, tables, processes), board, again, f" and {out}")
    drawn = [show(target, plans[target.name], rows, out, own) for target in targets]
    if not any(drawn):
        raise UserError("there is nothing to draw", "name the folder of rows with --out or --join, or leave --draw out")


def show(target: plan.Target, runs: Sequence[Planned], rows: dict[str, Finished], out: Path, own: Namespace) -> bool:
    """Write and draw a table or figure of its rows; whether there was anything to draw."""
    known = rows.get(target.of or target.name, Finished(out))
    if own.draw and known.rows and not any(map(known.find, runs)):
        told = f"of the {len(known.rows)} rows in {known.folder} none has the settings of {target.name}"
        print(f"{told}; what was drawn there of others stays as it is", file=sys.stderr)
        return False
    found = sheets.write(target, runs, known, out / target.name, own.quick)
    if target.ticks:
        print((out / target.name / "table.md").read_text())
    if found:
        terminal.show_cells(target.title, found)
    print(f"folder  {out / target.name}" + ("" if (out / target.name).is_dir() else ": no runs, nothing drawn"))
    return True


def writable(folder: Path, flag: str) -> None:
    """Refuse a folder that cannot be written now, and not when the first run has ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror})", f"name another folder with {flag}") from error


def small(out: Path, targets: Sequence[plan.Target]) -> None:
    """Refuse a folder whose tables are no small versions: they would be written over."""
    for name in dict.fromkeys(target.of or target.name for target in targets):
        names = {str(cast(Json, cast(Json, row["config"])["data"])["name"]) for row in Finished.of(out / name).rows}
        if names - {plan.QUICK["data.name"]}:
            raise UserError(f"{out / name} has rows of {', '.join(sorted(names))}", "give --quick another --out")


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
    for known in rows.values():
        if known.cut:
            print(f"{known.folder / FILE}: the last line was cut off and is left out", file=sys.stderr)
    for place in places:
        there = elsewhere(place)
        apart = [value for name, known in rows.items() for value in known.beside(there, own[name])]
        taken = sum(known.join(there, own[name]) for name, known in rows.items())
        both = f"; {told(apart)}" if apart else ""
        print(f"joined {place}: {taken} of its {len(there)} rows were missing in {out}{both}", file=sys.stderr)
    others = [row for name in plan.NAMES for row in Finished.of(out / name).rows]
    for name, known in rows.items():
        known.join(others, own[name])
    return rows


def told(apart: Sequence[float]) -> str:
    """How far runs that were made in two places with the same settings are apart."""
    return (
        f"{len(apart)} were made in both places and end {max(map(abs, apart)):.2f} points apart at most, these minus "
        f"those {fmean(apart):+.2f} on average"
    )


def wanted(runs: Sequence[Planned], own: Namespace) -> list[Planned]:
    """The runs that --only, --methods and --seeds leave; what no run has is a typing error."""
    marks = [(run.entry.config.data.name, run.entry.config.method, run.entry.config.seed) for run in runs]
    names, methods, numbers = ({*column} for column in zip(*marks, strict=True)) if marks else (set(), set(), set())
    data, asked = (
        {*given.split(",")} if given is not None else all for given, all in ((own.only, names), (own.methods, methods))
    )
    chosen = {*seeds(own.seeds, [*numbers], [], Config())}
    found = [run for run, mark in zip(runs, marks, strict=True) if all(map(contains, (data, asked, chosen), mark))]
    if runs and not (found and data <= names and asked <= methods and chosen <= numbers):
        there = [f"data sets {', '.join(sorted(names))}", f"methods {', '.join(sorted(methods))}"]
        there += [f"seeds {', '.join(map(str, sorted(numbers)))}"]
        small = "; --quick has small versions on embedded data" if own.quick else ""
        wrong = [(name, there) for given, there in ((data, names), (asked, methods)) for name in given - there]
        hint = nearest(wrong[0][0], sorted(wrong[0][1])) if wrong else "--only, --methods and --seeds choose"
        less = "no run is left" if not found else "not all are known"
        raise UserError(f"{less}: there are {'; '.join(there)}{small}", hint)
    return found


def ended(
    runs: Sequence[Planned], rows: dict[str, Finished], work: Path, tables: set[Path], processes: int
) -> Iterator[Entry]:
    """Do the runs; each becomes a row as soon as it ends, and its folder goes."""
    agree([run.entry for run in runs], work, "--work")
    sets = {(part.name, part.root) for run in runs if not is_synthetic((part := run.entry.config.data).name)}
    for name, root in sets if len(sets) > 1 else ():  # what is not there shows now, and not when its turn comes
        load(name, root)
    writable(work, "--work")
    for folder in sorted(tables):
        writable(folder, "--out")
    planned = {run.entry.name: run for run in runs}
    for entry in performed([run.entry for run in runs], work, processes):
        run = planned[entry.name]
        rows[run.target].add(row_of(run, work / entry.name))
        yield entry  # whoever follows it has its last lines to read
        rmtree(work / entry.name)
