"""`pfed1bs runs`: what lies in run folders, without looking into each."""

import os
import sys
from pathlib import Path

from pfed1bs.cli import terminal
from pfed1bs.cli.words import parser_of
from pfed1bs.core.errors import UserError
from pfed1bs.report import events, listing

RIGHT = [False, False, False, True, True, True, True, True]


def runs_command(words: list[str]) -> None:
    """`pfed1bs runs [FOLDER...]`: a list, filtered and sorted; two compared; rounds as CSV or for TensorBoard."""
    parser = parser_of("runs")
    parser.add_argument("-h", "--help", action="help", help="show this")
    parser.add_argument(
        "folders", nargs="*", metavar="FOLDER", default=["runs"], help="run folders, or folders of them"
    )
    parser.add_argument("--where", nargs="+", default=[], metavar="KEY=VALUE",
                        help="only runs for which this holds, also with != < > <= >=: method, data, seed, rounds, "
                        "value, MiB, finished, keys of config.toml or summary.json")  # fmt: skip
    parser.add_argument("--sort", default="age", metavar="KEY", help="what the list is sorted by (default: age)")
    parser.add_argument("--differ", action="store_true", default=False, help="what differs between two runs")
    parser.add_argument("--csv", default=None, metavar="FILE", help="write all rounds as CSV; - prints them")
    parser.add_argument("--tensorboard", default=None, metavar="DIR", help="write event files, a folder for each run")
    parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    own = parser.parse_args(words)
    found = listing.chosen(listing.kept(map(Path, own.folders)), own.where)
    if own.differ:
        _differ(found, own.json)
    elif own.csv is not None:
        _rounds(found, own.csv)
    elif own.tensorboard is not None:
        for run in found:
            print(events.export(run.path, Path(own.tensorboard), own.folders))
    else:
        _listed(listing.ordered(found, own.sort), own.json)


def _listed(found: list[listing.Kept], as_json: bool) -> None:
    """The runs, and below them what seeds came to together."""
    above = _above(found)
    alike = listing.over_seeds(found)
    if as_json:
        over = [item.plain() for item in alike]
        terminal.print_json(terminal.told(above, [run.facts for run in found], over_seeds=over))
        return
    lines = [run.line(above) for run in found]
    terminal.show_table(f"{len(lines)} runs in {above}", listing.COLUMNS, lines, RIGHT)
    if alike:
        lines = [item.line() for item in alike]
        terminal.show_table("runs that differ in the seed alone", listing.OVER, lines, [False, False, *[True] * 3])


def _above(found: list[listing.Kept]) -> Path:
    """The folder that all of them lie in."""
    return Path(os.path.commonpath([run.path.parent for run in found])) if found else Path()


def _differ(found: list[listing.Kept], as_json: bool) -> None:
    if len(found) != 2:
        raise UserError(f"--differ takes two runs, got {len(found)}", "name two run folders, or fewer with --where")
    lines = listing.differences(*found)
    if as_json:
        apart = [dict(zip(("what", "key", "first", "second"), line, strict=True)) for line in lines]
        terminal.print_json(terminal.told(_above(found), [run.facts for run in found], differences=apart))
        return
    terminal.show_table("what differs", ("what", "key", "first", "second"), lines, [False] * 4)
    print(f"first   {found[0].path}\nsecond  {found[1].path}")


def _rounds(found: list[listing.Kept], place: str) -> None:
    if place == "-":
        listing.write_rounds(found, sys.stdout)
        return
    with Path(place).open("w", newline="") as file:
        listing.write_rounds(found, file)
    print(place)
