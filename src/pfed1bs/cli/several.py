"""Commands that do many runs, or read them back."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pfed1bs import report
from pfed1bs.cli import terminal
from pfed1bs.cli.board import Board
from pfed1bs.cli.words import JSON, RESUME, arguments, ready, seeds, split, whole
from pfed1bs.core.errors import UserError
from pfed1bs.core.origin import pasted
from pfed1bs.report.drawn import ENDINGS
from pfed1bs.report.groups import groups
from pfed1bs.report.results import labelled
from pfed1bs.report.saved import saved
from pfed1bs.report.statistics import Against
from pfed1bs.runs import flags
from pfed1bs.runs.config import Config, DataConfig, as_tables, load, of_tables
from pfed1bs.runs.folder import written
from pfed1bs.runs.recipes import read
from pfed1bs.runs.run import folder_of
from pfed1bs.studies import chosen, comparison, finished, performing, sweeping, tuning
from pfed1bs.studies.design import Design, varied

AGAINST = {
    "--against": "a method whose row the others are compared with, seed by seed: intervals, tests, equivalence",
    "--tested": "at most ten of them that are tested, with commas between (default: all, if there are so few)",
}
COMPARED = {
    "--algorithms": "names with commas between, or all; '' for none but --runs (default: those of the recipe); "
    "--algorithm.X goes to each that has X, --options.NAME.X to NAME alone",
    "--seeds": "whole numbers with commas between (default: those of the recipe)",
    "--vary": "what the seeds change: partition, init, batches with commas between, or all (default); the rest is as "
    "with seed 0",
    "--gradients": "gradients that a client computes in a round: sets the steps of every method (default: --steps)",
    **AGAINST,
    "--parallel": "runs at a time, each in a process of its own with one CPU thread (default: 1)",
}

LISTED = {
    "--runs": "variants: 'NAME key=value ...'",
    "--sweep": "KEY=V1,V2,...: every value of a key of the configuration; of several, every combination",
}
TUNED = {
    "--algorithms": "names with commas between, or all (default: those of the recipe)",
    "--seeds": "whole numbers with commas between, none of the recipe's tables (default: 100,101)",
    "--points": "sets of options that are tried for every method, with all seeds each (default: 9)",
    "--from": "where the search begins: recipe, its [options.NAME] tables (default), or defaults, as if it had none",
    "--searched": "options with commas between (default: lr, server_lr, step and the method's own knob)",
    "--gradients": COMPARED["--gradients"],
    "--parallel": COMPARED["--parallel"],
    "--write": "a recipe whose [options.NAME] tables become those that were found",
}


def compare_command(words: list[str]) -> None:
    """`pfed1bs compare`: every variant with every seed, one table; --resume leaves finished runs as they are."""
    own, recipe, rest = split(words, "compare", RESUME | JSON, COMPARED, LISTED)
    named = load(recipe).compare
    names = named.algorithms if own.algorithms is None else [name for name in own.algorithms.split(",") if name]
    variants = [*comparison.methods(names), *(comparison.variant(text) for text in own.runs)]
    config = load(recipe, rest, [item.name for item in variants])
    given = seeds(own.seeds, named.seeds, rest, config)
    runs = sweeping.swept(recipe, rest, variants, given, own.sweep, designed(own, rest))
    against = compared_with(own, runs)
    ready(config, own.resume)
    folder = empty(config, "compare", own.resume)
    comparison.agree(runs, folder)
    comparison.rehearse_all(runs)
    again = pasted(["compare", *flags.without(words, "out", "resume"), "--out", str(folder), "--resume"])
    processes = whole(own, "parallel", 1)
    done = []
    with Board(folder) as board:
        board.add(runs)
        if processes > 1:
            terminal.watch_all(comparison.side_by_side(runs, folder, processes), board, again)
        for entry, run in zip(runs, comparison.prepared(runs, folder), strict=True):
            if not comparison.finished(run):
                terminal.watch(run, own.resume and run.folder.exists(), entry.name, again, board)
                board.ended(entry.name)
            done.append(run)
    (folder / "compare.json").write_text(json.dumps([run.summary for run in done], indent=2) + "\n")
    terminal.finish(done, folder, own.json, against)


def tune_command(words: list[str]) -> None:
    """`pfed1bs tune`: the same number of points for every method; finished runs are kept, --resume goes on."""
    own, recipe, rest = split(words, "tune", RESUME | JSON, TUNED)
    if own.write and not Path(own.write).is_file():
        raise UserError(f"there is no recipe {own.write} to write to", "give the path of a .toml file")
    told = own.algorithms.split(",") if own.algorithms else load(recipe).compare.algorithms
    names = [item.name for item in comparison.methods(told)]
    config = load(recipe, rest, names)
    judged = tuple(seeds(own.seeds or "100,101", [], rest, config))
    ready(config, own.resume)
    folder = empty(config, "tune", own.resume)
    design, points = designed(own, rest), whole(own, "points", 9)
    among, start = tuple(own.searched.split(",")) if own.searched else (), begun(vars(own)["from"], recipe, rest, names)
    study = tuning.Study(config, tuple(names), judged, points, folder, design, among, start)
    no_less(study)
    again = pasted(["tune", *flags.without(words, "out", "resume"), "--out", str(folder), "--resume"])
    with Board(folder, points * len(names) * len(judged)) as board:
        for wave in study.waves():
            board.add(wave)
            terminal.watch_all(performing.performed(wave, folder, whole(own, "parallel", 1)), board, again)
            written(folder / "tuning.json", json.dumps(study.plain(), indent=1) + "\n")
    written(folder / "tuning.json", json.dumps(study.plain(), indent=1) + "\n")
    if own.write:
        written(Path(own.write), chosen.rewritten(Path(own.write).read_text(), study.methods))
    terminal.show_tuned(study, folder, own.json)


def no_less(study: tuning.Study) -> None:
    """Refuse to go on with less than the search of a folder had: its file would lose what was found."""
    if not (path := study.folder / "tuning.json").is_file():
        return
    before = json.loads(path.read_text())
    lost = [("seeds", seed) for seed in before["seeds"] if seed not in study.seeds]
    lost += [("algorithms", item["algorithm"]) for item in before["methods"] if item["algorithm"] not in study.names]
    lost += [("points", before["points"])] if before["points"] > study.points else []
    if lost:
        flag, value = lost[0]
        raise UserError(
            f"{path} has more than was asked for: {flag} {value}", f"go on with it in --{flag}, or take another --out"
        )


def begun(word: str | None, recipe: str | None, rest: list[str], names: list[str]) -> Config | None:
    """The configuration with whose values a search begins, if --from names another than the recipe's."""
    if word not in (None, "recipe", "defaults"):
        raise UserError(f"--from must be recipe or defaults, got {word}", "leave it out for the values of the recipe")
    tables = read(recipe) if recipe and word == "defaults" else {}
    return of_tables({**tables, "options": {}}, rest, names) if tables else None


def empty(config: Config, label: str, resume: bool) -> Path:
    """The folder of many runs, which is a new one or gone on with."""
    folder = folder_of(config, label)
    if folder.exists() and not resume:
        raise UserError(f"the folder {folder} exists", "add --resume to go on with it, or choose another --out")
    return folder


def designed(own: Namespace, rest: list[str]) -> Design:
    """What --vary and --gradients say."""
    gradients = whole(own, "gradients", 0) or None
    if gradients and flags.one(rest, "steps") is not None:
        raise UserError("work is given by --steps or by --gradients, not by both", f"write --gradients {gradients}")
    return Design(varied(getattr(own, "vary", None) or "all"), gradients)


def compared_with(own: Namespace, runs: Sequence[comparison.Entry]) -> Against | None:
    """What --against and --tested say; rows that no run will make are refused before the first begins."""
    against = Against.asked(own.against, own.tested)
    if against:
        tables = [(as_tables(run.config), {"algorithm": run.config.method, "seed": run.config.seed}) for run in runs]
        rows = [report.RunRecord(Path(), table, {}, [], [], summary) for table, summary in tables]
        there = [group.label for group in groups(rows)]
        for label in (against.method, *(against.tested or ())):
            if label not in there:
                raise UserError(f"{label} is not among the methods that are run", f"there are {', '.join(there)}")
    return against


def report_command(words: list[str]) -> None:
    """`pfed1bs report RUN...`: a page from files only; that of one folder in it, that of several in a new one.

    A saved table, table.json of `compare` or runs.jsonl of `reproduce`, gives a page without its clients' part.
    """
    own = arguments("report", words, "folder for the page (default: that of the runs, or a new one)", AGAINST)
    places, against = [Path(name) for name in own.folders], Against.asked(own.against, own.tested)
    records = [record for place in places for record in _read(place)]
    one = places[0] if len(places) == 1 and places[0].is_dir() else None
    folder = Path(own.out) if own.out else one or _new(records)
    if (folder / "config.toml").exists() and places != [folder]:
        raise UserError(f"{folder} is a run folder with a report of its own", "choose another --out")
    if against and places[0].is_file():
        terminal.show_differences(against, labelled(groups(records)))
    terminal.write(records, folder, against, ENDINGS)
    print(folder / "report.html")


def _read(place: Path) -> list[report.RunRecord]:
    """The runs of a folder, or of a saved table."""
    if place.is_file() and place.suffix == ".jsonl":
        return [finished.record_of(row) for row in finished.Finished.of(place.parent).rows if "summary" in row]
    return saved(place) if place.is_file() else report.collect([place])


def _new(records: list[report.RunRecord]) -> Path:
    """A folder for the page of several folders."""
    return folder_of(Config(data=DataConfig(name=str(records[0].summary.get("dataset", "runs")))), "report")
