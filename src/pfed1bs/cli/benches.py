"""`pfed1bs bench`: what this machine can do."""

import json
import sys
from pathlib import Path

from pfed1bs.cli import terminal
from pfed1bs.cli.help import ASKED, PARTS, parts
from pfed1bs.cli.words import arguments
from pfed1bs.core.errors import UserError, nearest
from pfed1bs.runs.environment import environment


def bench_command(words: list[str]) -> None:
    """`pfed1bs bench kernels`, `pfed1bs bench gpu`."""
    if not words or words[0] in ASKED:
        print(parts("bench"))
        return
    if words[0] not in PARTS["bench"]:
        raise UserError(f"unknown benchmark {words[0]}", nearest(words[0], PARTS["bench"]))
    job = _bench_gpu if words[0] == "gpu" else _bench_kernels
    job(words[1:])


def _bench_kernels(words: list[str]) -> None:
    own = arguments("bench kernels", words, "folder for kernels-PROCESSOR.json")
    from pfed1bs.facts import bench

    rows = bench.kernels()
    found = {**environment(), "rows": rows}
    if own.json:
        terminal.print_json(found)
    else:
        title = f"kernels: {found['kernel']}; best times, ratios within one run"
        terminal.show_table(
            title, bench.COLUMNS, bench.lines(rows), [column != "operation" for column in bench.COLUMNS]
        )
    if own.out:
        print(bench.keep(found, Path(own.out)), file=sys.stderr)


def _bench_gpu(words: list[str]) -> None:
    own = arguments("bench gpu", words, "JSON file for the results", switches={"--vgg16": "measure VGG16 too"})
    from pfed1bs.facts import bench_gpu

    measured, facts = bench_gpu.measured(own.vgg16), environment("cuda") | {"python_ms": bench_gpu.python_ms()}
    rows: dict[str, list[bench_gpu.Row]] = {kind: [] for kind in bench_gpu.COLUMNS}
    for kind, row in measured:
        rows[kind].append(row)
        print(kind, *bench_gpu.lines(kind, [row])[0], file=sys.stderr, flush=True)
        if own.out:  # row by row: what is cut off keeps what it has
            Path(own.out).write_text(json.dumps(facts | rows, indent=1) + "\n")
    if own.json:
        terminal.print_json(facts | rows)
    for kind, columns in bench_gpu.COLUMNS.items() if not own.json else ():
        right = [column not in ("operation", "shape", "model", "algorithm", "recipe") for column in columns]
        terminal.show_table(f"{kind}: {facts['device']}", columns, bench_gpu.lines(kind, rows[kind]), right)
    if own.out:
        print(own.out, file=sys.stderr)
