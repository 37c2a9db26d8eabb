"""What each command of the command line does."""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, stdev

from pfed1bs import costs, methods, report
from pfed1bs.algorithms import REGISTRY
from pfed1bs.cli import HELP, shown
from pfed1bs.config import UserError, flag_parser, load
from pfed1bs.data import show
from pfed1bs.environment import environment
from pfed1bs.extras import need
from pfed1bs.runs import Run, federation, folder_of

CAPTION = "personal: each client's own model; global: the shared one; tuned: the shared one after local steps"


def run_command(words: list[str]) -> None:
    """`pfed1bs run`."""
    own, recipe, flags = _split(words, "run", ("--resume", "--json"))
    config = load(recipe, flags)
    if own.resume and not config.out:
        raise UserError("--resume needs to know the run folder", "add --out and the folder of the run")
    run = Run.prepare(config)
    _watch(run, own.resume)
    _finished([run], run.folder, own.json)


def compare_command(words: list[str]) -> None:
    """`pfed1bs compare`: every method with every seed, one table; --resume leaves finished runs as they are."""
    own, recipe, flags = _split(words, "compare", ("--json", "--resume"), ("--algorithms", "--seeds"))
    config = load(recipe, flags, "compare")
    names = own.algorithms.split(",") if own.algorithms else config.compare.algorithms
    names = list(REGISTRY) if names == ["all"] else names
    try:
        seeds = [int(seed) for seed in own.seeds.split(",")] if own.seeds else config.compare.seeds
    except ValueError:
        raise UserError(f"--seeds must be whole numbers, got {own.seeds}", "write --seeds 0,1,2") from None
    plans = [config.with_method(name, seed) for seed in seeds for name in names]
    folder = folder_of(config, "compare")
    if folder.exists() and not own.resume:
        raise UserError(f"the folder {folder} exists", "add --resume to go on with it, or choose another --out")
    runs: list[Run] = []
    data = None
    for plan in plans:
        data = data if runs and runs[-1].config.seed == plan.seed else federation(plan)
        run = Run.prepare(plan, folder / f"{plan.method}-s{plan.seed}", data)
        if not (own.resume and (run.folder / "summary.json").exists()):
            _watch(run, own.resume and (run.folder / "checkpoint.safetensors").exists())
        runs.append(run)
    (folder / "compare.json").write_text(json.dumps([run.summary for run in runs], indent=2) + "\n")
    _finished(runs, folder, own.json)


def report_command(words: list[str]) -> None:
    """`pfed1bs report RUN...`: report.html from files only, in the folder all runs share."""
    own = _arguments("report", words, folders=True)
    path = Path(own.folders[0]) / "report.html"
    report.write(report.collect([Path(name) for name in own.folders]), path)
    print(path)


def data_command(words: list[str]) -> None:
    """`pfed1bs data`: who holds what."""
    own, recipe, flags = _split(words, "data", ("--json",), ("--picture",))
    config = load(recipe, flags, "data")
    data = federation(config)
    if own.json:
        train, test = data.table()
        shown({"train": train.tolist(), "test": test.tolist()})
    else:
        _print(show.table(data))
    if own.picture:
        show.picture(data, Path(own.picture))
        print(own.picture, file=sys.stderr)


def list_command(words: list[str]) -> None:
    """`pfed1bs list`: methods, what they send for the model of a recipe, and what they can do."""
    own, recipe, flags = _split(words, "list", ("--json",))
    rows = methods.table(load(recipe, flags, "list"))
    if own.json:
        shown([row.facts() for row in rows])
        return
    for sheet in (methods.sent(rows), methods.capabilities(rows)):
        table = need("rich.table", "cli").Table(title=sheet.title, box=need("rich.box", "cli").SIMPLE_HEAD)
        for column in sheet.columns:
            short = column.replace(" up", "\nup").replace(" down", "\ndown")
            table.add_column(short, justify="right" if column.startswith("bits") else "left")
        for line in sheet.lines:
            table.add_row(*line)
        _print(table)


def costs_command(words: list[str]) -> None:
    """`pfed1bs costs`: the paper's cost column beside ours."""
    own = _arguments("costs", words)
    cells = costs.paper_table()
    if own.json:
        shown([vars(cell) for cell in cells])
        return
    table = need("rich.table", "cli").Table(title="MiB per round, 20 clients: the paper's table recomputed")
    for column in ("method", "data", "printed", "ours", "verdict"):
        table.add_column(column)
    for cell in cells:
        table.add_row(cell.method, cell.dataset, cell.printed, f"{cell.ours:.2f}", cell.wrong or "as printed")
    _print(table)


def flower_command(words: list[str]) -> None:
    """`pfed1bs flower init DIR`, `pfed1bs flower certificates DIR`, `pfed1bs flower gate DIR`."""
    from pfed1bs.flower import app_folder

    if len(words) < 2 or words[0] not in ("init", "certificates", "gate") or words[1].startswith("-"):
        raise UserError("what to do, and in which folder?", "pfed1bs flower init, certificates or gate, and a folder")
    folder, rest = Path(words[1]), words[2:]
    if words[0] == "init":
        _, recipe, flags = _split(rest, "flower", ())
        path = app_folder.write_app(folder, load(recipe, flags, "flower init"))
        print(f"{path}\nrun it with: flwr run {folder} SUPERLINK --stream")
        return
    if words[0] == "gate":
        need("uvicorn", "flower")
        from pfed1bs.flower import gate

        gate.command(folder, rest)
        return
    parser = argparse.ArgumentParser(prog="pfed1bs flower certificates", description=HELP["flower"])
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
    own = _arguments("bench", words[1:])
    from pfed1bs import bench

    rows = bench.kernels()
    shown({**environment(), "rows": rows}) if own.json else bench.show(rows)


def env_command(words: list[str]) -> None:
    """`pfed1bs env`."""
    own = _arguments("env", words)
    facts = environment()
    if own.json:
        shown(facts)
        return
    for key, value in facts.items():
        print(f"{key:10} {value}")


def _arguments(command: str, words: list[str], folders: bool = False) -> argparse.Namespace:
    """The flags of a command that takes no configuration."""
    parser = argparse.ArgumentParser(prog=f"pfed1bs {command}", description=HELP[command])
    parser.add_argument("--json", action="store_true", help="print JSON")
    if folders:
        parser.add_argument("folders", nargs="+", metavar="RUN", help="run folders, or folders of run folders")
    return parser.parse_args(words)


def _split(
    words: list[str], command: str, switches: tuple[str, ...], values: tuple[str, ...] = ()
) -> tuple[argparse.Namespace, str | None, list[str]]:
    """The command's own flags, the recipe, and the flags of the configuration."""
    parser = argparse.ArgumentParser(
        prog=f"pfed1bs {command}", description=HELP[command], add_help=False, allow_abbrev=False
    )
    for switch in switches:
        parser.add_argument(switch, action="store_true")
    for value in values:
        parser.add_argument(value)
    recipe = words[0] if words and not words[0].startswith("-") else None
    own, flags = parser.parse_known_args(words[1:] if recipe else words)
    if "-h" in flags or "--help" in flags:
        parser.print_help()
        print("\nkeys of the configuration, the same in TOML files:")
        name = flags[flags.index("--algorithm.name") + 1] if "--algorithm.name" in flags[:-1] else "pfed1bs"
        print(flag_parser(name, command).format_help())
        raise SystemExit(0)
    return own, recipe, flags


def _print(table: object) -> None:
    need("rich.console", "cli").Console().print(table)


def _watch(run: Run, resume: bool) -> None:
    """Do the rounds with a bar on a terminal, one line per evaluation otherwise, on stderr."""
    progress = need("rich.progress", "cli")
    console = need("rich.console", "cli").Console(stderr=True)
    label = f"{run.config.method} seed {run.config.seed}"
    columns = (*progress.Progress.get_default_columns(), progress.TextColumn("{task.fields[news]}"))
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=run.config.rounds, news="")
        for record in run.rounds(resume):
            accuracy = f"accuracy {record['accuracy']:.2f}" if "accuracy" in record else None
            bar.update(task, completed=record["round"] + 1, **({"news": accuracy} if accuracy else {}))
            if accuracy and not console.is_terminal:
                print(f"{label}: round {record['round'] + 1} of {run.config.rounds}, {accuracy}", file=sys.stderr)


def _finished(runs: list[Run], folder: Path, as_json: bool) -> None:
    """Write the pictures and the report, print the table."""
    records = [report.read(run.folder) for run in runs]
    report.write(records, folder / "report.html")
    summaries = [run.summary for run in runs]
    if as_json:
        shown(summaries[0] if len(runs) == 1 else summaries)
        return
    first = runs[0].config
    title = f"{first.data.name}, {first.data.partition}, {first.clients} clients, round {first.rounds}: percent correct"
    table = need("rich.table", "cli").Table(title=title, caption=CAPTION, box=need("rich.box", "cli").SIMPLE_HEAD)
    for column in ("method", "personal", "global", "tuned", "MiB/round", "of FedAvg"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for name in dict.fromkeys(run.config.method for run in runs):
        own = [summary for summary in summaries if summary["algorithm"] == name]
        table.add_row(name, *_cells(own))
    _print(table)
    print(f"folder  {folder}\nreport  {folder / 'report.html'}\npicture {folder / 'plots' / 'accuracy-bytes.svg'}")


def _cells(own: list[dict[str, object]]) -> list[str]:
    def spread(key: str) -> str:
        values = [float(str(summary[key])) for summary in own if key in summary]
        if not values:
            return ""
        return f"{mean(values):.2f}" + (f"\u00b1{stdev(values):.2f}" if len(values) > 1 else "")

    ratio = mean(float(str(summary["ratio_to_fedavg"])) for summary in own)
    share = (
        "0" if ratio == 0 else "1" if 0.99 < ratio < 1.01 else f"1/{1 / ratio:.0f}" if ratio < 0.5 else f"{ratio:.2f}"
    )
    mib = mean(float(str(summary["mib_per_round"])) for summary in own)
    accuracies = [spread(key) for key in ("accuracy", "accuracy_global", "accuracy_tuned")]
    return [*accuracies, f"{mib:.4f}", share]
