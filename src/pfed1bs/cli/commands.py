"""What each command of the command line does."""

import sys
from pathlib import Path

from pfed1bs import report
from pfed1bs.cli import holdings, terminal
from pfed1bs.cli.afterwards import export_command as export_command
from pfed1bs.cli.afterwards import predict_command as predict_command
from pfed1bs.cli.benches import bench_command as bench_command
from pfed1bs.cli.bookkeeping import runs_command as runs_command
from pfed1bs.cli.machines import flower_command as flower_command
from pfed1bs.cli.reproducing import reproduce_command as reproduce_command
from pfed1bs.cli.several import compare_command as compare_command
from pfed1bs.cli.several import report_command as report_command
from pfed1bs.cli.several import tune_command as tune_command
from pfed1bs.cli.words import JSON, RESUME, arguments, ready, split
from pfed1bs.core import gpu
from pfed1bs.core.origin import commit
from pfed1bs.facts import capabilities, printed, steady, traffic
from pfed1bs.runs.config import load
from pfed1bs.runs.environment import argv, environment
from pfed1bs.runs.run import Run, federation
from pfed1bs.studies import comparison


def run_command(words: list[str]) -> None:
    """`pfed1bs run`."""
    own, recipe, rest = split(words, "run", RESUME | JSON)
    config = load(recipe, rest)
    ready(config, own.resume)
    run = Run.prepare(config)
    comparison.rehearse(config, run.data)
    terminal.watch(run, own.resume, f"{config.method} seed {config.seed}", report.go_on(run.folder))
    terminal.finish([run], run.folder, own.json)


def data_command(words: list[str]) -> None:
    """`pfed1bs data`: who holds what."""
    own, recipe, rest = split(words, "data", JSON, {"--picture": "an SVG file to draw it to"})
    config = load(recipe, rest)
    data = federation(config)
    if own.json:
        train, test = data.table()
        terminal.print_json({"train": train.tolist(), "test": test.tolist()})
    else:
        terminal.show(holdings.table(data))
    if own.picture:
        holdings.picture(data, Path(own.picture))
        print(own.picture, file=sys.stderr)


def list_command(words: list[str]) -> None:
    """`pfed1bs list`: methods, what they send for the model of a recipe, and what they can do."""
    own, recipe, rest = split(words, "list", JSON)
    rows = capabilities.table(load(recipe, rest))
    if own.json:
        terminal.print_json([row.facts() for row in rows])
        return
    for sheet in (capabilities.sent(rows), capabilities.capabilities(rows)):
        heads = [column.replace(" up", "\nup").replace(" down", "\ndown") for column in sheet.columns]
        right = [column.startswith("bits") for column in sheet.columns]
        terminal.show_table(sheet.title, heads, sheet.lines, right)


def costs_command(words: list[str]) -> None:
    """`pfed1bs costs`: the paper's cost column beside ours, and the bytes of every method."""
    own = arguments("costs", words)
    cells, rows, sent = printed.paper_table(), steady.table(), traffic.table()
    if own.json:
        about = {"command": argv(), "commit": commit(), "paper": [vars(cell) for cell in cells]}
        methods, late = [row.facts for row in sent], [row.facts for row in rows]
        terminal.print_json({**about, "methods": methods, "steady": late})
        return
    lines = [
        (cell.method, cell.dataset, cell.printed, f"{cell.ours:.2f}", cell.verdict + (cell.wrong and f": {cell.wrong}"))
        for cell in cells
    ]
    heads = ("method", "data", "printed", "ours", "verdict")
    terminal.show_table("MiB per round, 20 clients: the paper's table recomputed", heads, lines, [False] * 5)
    title = "Bytes of a client's messages without headers, and MiB of a round with 20 clients; ~: to expect"
    right = [False, *[True] * (len(traffic.COLUMNS) - 1)]
    terminal.show_table(title, traffic.COLUMNS, traffic.lines(sent), right)
    title = f"pfed1bs-delta, {rows[0].weights:,} weights: bytes of a client in a round, after many rounds"
    terminal.show_table(title, steady.COLUMNS, steady.lines(rows), [True] * len(steady.COLUMNS))


def env_command(words: list[str]) -> None:
    """`pfed1bs env`."""
    own = arguments("env", words)
    facts = environment() | {"gpu": gpu.described()}
    if own.json:
        terminal.print_json(facts)
        return
    terminal.show_facts(facts)
