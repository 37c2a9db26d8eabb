"""What each command of the command line does."""

import argparse
import json
import sys
from pathlib import Path

from pfed1bs import report
from pfed1bs.cli import holdings, terminal
from pfed1bs.cli.help import HELP
from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.core.origin import pasted
from pfed1bs.engine.rounds import choose
from pfed1bs.facts import capabilities, costs, steady
from pfed1bs.runs import flags
from pfed1bs.runs.config import Config, DataConfig, known_keys, load
from pfed1bs.runs.environment import environment
from pfed1bs.runs.run import Run, federation, folder_of
from pfed1bs.studies import comparison

NEEDED = {"rich": "cli", "safetensors": "cli", "tomli_w": "cli", "matplotlib": "report", "jinja2": "report"}

RESUME = {"--resume": "go on with the folder of --out"}
JSON = {"--json": "print JSON"}
COMPARED = {
    "--algorithms": "names with commas between, or all; '' for none but --runs (default: those of the recipe); "
    "--algorithm.X goes to each that has X, --options.NAME.X to NAME alone",
    "--seeds": "whole numbers with commas between (default: those of the recipe)",
    "--parallel": "runs at a time, each in a process of its own with one CPU thread (default: 1)",
}


def run_command(words: list[str]) -> None:
    """`pfed1bs run`."""
    own, recipe, rest = _split(words, "run", RESUME | JSON)
    config = load(recipe, rest)
    _ready(config, own.resume)
    run = Run.prepare(config)
    comparison.rehearse(config, run.data)
    terminal.watch(run, own.resume, f"{config.method} seed {config.seed}", report.go_on(run.folder))
    terminal.finish([run], run.folder, own.json)


def compare_command(words: list[str]) -> None:
    """`pfed1bs compare`: every variant with every seed, one table; --resume leaves finished runs as they are."""
    own, recipe, rest = _split(words, "compare", RESUME | JSON, COMPARED, {"--runs": "variants: 'NAME key=value ...'"})
    named = load(recipe).compare
    names = named.algorithms if own.algorithms is None else [name for name in own.algorithms.split(",") if name]
    variants = [*comparison.methods(names), *(comparison.variant(text) for text in own.runs)]
    config = load(recipe, rest, [item.name for item in variants])
    runs = comparison.entries(config, variants, _seeds(own.seeds, named.seeds, rest, config))
    _ready(config, own.resume)
    folder = folder_of(config, "compare")
    if folder.exists() and not own.resume:
        raise UserError(f"the folder {folder} exists", "add --resume to go on with it, or choose another --out")
    comparison.agree(runs, folder)
    comparison.rehearse_all(runs)
    again = pasted(["compare", *flags.without(words, "out", "resume"), "--out", str(folder), "--resume"])
    processes = _count(own.parallel)
    if processes > 1:
        terminal.watch_all(comparison.side_by_side(runs, folder, processes), len(runs), folder, again)
    done = []
    for entry, run in zip(runs, comparison.prepared(runs, folder), strict=True):
        if not comparison.finished(run):
            terminal.watch(run, own.resume and run.folder.exists(), entry.name, again)
        done.append(run)
    (folder / "compare.json").write_text(json.dumps([run.summary for run in done], indent=2) + "\n")
    terminal.finish(done, folder, own.json)


def _count(text: str | None) -> int:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"--parallel must be a whole number from 1 on, got {text}", "write --parallel 6")
    return int(text or 1)


def report_command(words: list[str]) -> None:
    """`pfed1bs report RUN...`: a page from files only; that of one folder in it, that of several in a new one."""
    own = _arguments("report", words, "folder for the page (default: that of the runs, or a new one)", folders=True)
    folders = [Path(name) for name in own.folders]
    records = report.collect(folders)
    folder = Path(own.out) if own.out else folders[0] if len(folders) == 1 else _new(records)
    if (folder / "config.toml").exists() and folders != [folder]:
        raise UserError(f"{folder} is a run folder with a report of its own", "choose another --out")
    terminal.write(records, folder)
    print(folder / "report.html")


def data_command(words: list[str]) -> None:
    """`pfed1bs data`: who holds what."""
    own, recipe, rest = _split(words, "data", JSON, {"--picture": "an SVG file to draw it to"})
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
    own, recipe, rest = _split(words, "list", JSON)
    rows = capabilities.table(load(recipe, rest))
    if own.json:
        terminal.print_json([row.facts() for row in rows])
        return
    for sheet in (capabilities.sent(rows), capabilities.capabilities(rows)):
        heads = [column.replace(" up", "\nup").replace(" down", "\ndown") for column in sheet.columns]
        right = [column.startswith("bits") for column in sheet.columns]
        terminal.show_table(sheet.title, heads, sheet.lines, right)


def costs_command(words: list[str]) -> None:
    """`pfed1bs costs`: the paper's cost column beside ours."""
    own = _arguments("costs", words)
    cells, rows = costs.paper_table(), steady.table()
    if own.json:
        terminal.print_json({"paper": [vars(cell) for cell in cells], "steady": [row.facts for row in rows]})
        return
    lines = [
        (cell.method, cell.dataset, cell.printed, f"{cell.ours:.2f}", cell.wrong or "as printed") for cell in cells
    ]
    heads = ("method", "data", "printed", "ours", "verdict")
    terminal.show_table("MiB per round, 20 clients: the paper's table recomputed", heads, lines, [False] * 5)
    title = f"pfed1bs-delta, {rows[0].weights:,} weights: bytes of a client in a round, after many rounds"
    terminal.show_table(title, steady.COLUMNS, steady.lines(rows), [True] * len(steady.COLUMNS))


def flower_command(words: list[str]) -> None:
    """`pfed1bs flower init DIR`, `pfed1bs flower certificates DIR`, `pfed1bs flower gate DIR`."""
    from pfed1bs.flower import app_folder

    if len(words) < 2 or words[0] not in ("init", "certificates", "gate") or words[1].startswith("-"):
        raise UserError("what to do, and in which folder?", "pfed1bs flower init, certificates or gate, and a folder")
    folder, rest = Path(words[1]), words[2:]
    if words[0] == "init":
        _, recipe, rest = _split(rest, "flower", {})
        path = app_folder.write_app(folder, load(recipe, rest))
        print(f"{path}\nrun it with: flwr run {folder} SUPERLINK --stream")
        return
    if words[0] == "gate":
        need("uvicorn", "flower")
        from pfed1bs.flower import gate

        gate.command(folder, rest)
        return
    parser = flags.Flags(prog="pfed1bs flower certificates", description=HELP["flower"])
    parser.add_argument("-h", "--help", action="help", help="show this")
    parser.add_argument("--hosts", default="127.0.0.1,localhost", help="names and addresses of the server")
    parser.add_argument("--nodes", type=int, default=3, help="key pairs to make")
    own = parser.parse_args(rest)
    for path in app_folder.write_certificates(folder, own.hosts.split(","), own.nodes):
        print(path)
    print(f"a network may only see the gate: pfed1bs flower gate {folder} --host ADDRESS (docs/flower.md, section 2)")


def bench_command(words: list[str]) -> None:
    """`pfed1bs bench kernels`."""
    if not words or words[0] != "kernels":
        raise UserError(f"unknown benchmark {words[0] if words else ''}", "there is `pfed1bs bench kernels`")
    own = _arguments("bench", words[1:], "folder for kernels-PROCESSOR.json")
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


def env_command(words: list[str]) -> None:
    """`pfed1bs env`."""
    own = _arguments("env", words)
    facts = environment()
    if own.json:
        terminal.print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key:10} {value}")


def _arguments(command: str, words: list[str], out: str = "", folders: bool = False) -> argparse.Namespace:
    """The flags of a command that takes no configuration; `out` says what --out is for."""
    parser = flags.Flags(prog=f"pfed1bs {command}", description=HELP[command])
    parser.add_argument("-h", "--help", action="help", help="show this")
    if folders:
        parser.add_argument("folders", nargs="+", metavar="RUN", help="run folders, or folders of run folders")
    else:
        parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    if out:
        parser.add_argument("--out", default="", help=out)
    return parser.parse_args(words)


def _split(
    words: list[str],
    command: str,
    switches: dict[str, str],
    values: dict[str, str] | None = None,
    lists: dict[str, str] | None = None,
) -> tuple[argparse.Namespace, str | None, list[str]]:
    """The command's own flags, the recipe, and the flags of the configuration."""
    parser = flags.Flags(prog=f"pfed1bs {command}", description=HELP[command])
    parser.add_argument("-h", "--help", action="store_true", default=False, help="show this")
    for name, text in switches.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    for name, text in (values or {}).items():
        parser.add_argument(name, default=None, help=text)
    for name, text in (lists or {}).items():
        parser.add_argument(name, action="extend", nargs="+", default=[], help=text)
    recipe = words[0] if words and not words[0].startswith("-") else None
    own, rest = parser.parse_known_args(words[1:] if recipe else words)
    if own.help:
        first = (getattr(own, "algorithms", None) or "").split(",")[0]
        print(parser.format_help())
        print(flags.told(known_keys(flags.named(rest, first or load(recipe).method))))
        raise SystemExit(0)
    return own, recipe, rest


def _seeds(given: str | None, named: list[int], rest: list[str], config: Config) -> list[int]:
    """The seeds of a comparison: --seeds, or --seed, or those of the recipe."""
    one = flags.one(rest, "seed") is not None
    if given is None:
        return [config.seed] if one else named
    if one:
        raise UserError("a comparison takes --seed or --seeds, not both", f"write --seeds {given}")
    try:
        return [int(seed) for seed in given.split(",")]
    except ValueError:
        raise UserError(f"--seeds must be whole numbers, got {given}", "write --seeds 0,1,2") from None


def _ready(config: Config, resume: bool) -> None:
    """Refuse what would fail after training: a folder that nobody named, packages and devices that are not there."""
    if resume and not config.out:
        raise UserError("--resume needs to know the run folder", "add --out and the folder of the run")
    for module, extra in NEEDED.items():
        need(module, extra)
    choose(config.device)


def _new(records: list[report.RunRecord]) -> Path:
    """A folder for the page of several folders."""
    return folder_of(Config(data=DataConfig(name=str(records[0].summary.get("dataset", "runs")))), "report")
