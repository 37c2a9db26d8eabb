"""Several methods, variants and seeds in one folder, all checked before the first one starts."""

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from traceback import format_exception
from typing import cast

import torch

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core import gpu
from pfed1bs.core.errors import Failure, UserError
from pfed1bs.core.options import shown
from pfed1bs.data import Federation
from pfed1bs.engine.rounds import Schedule, simulate
from pfed1bs.engine.turns import Diverged
from pfed1bs.report.groups import differing, flatten
from pfed1bs.runs.config import Config, DataConfig, Options, as_tables, free, load
from pfed1bs.runs.folder import earlier
from pfed1bs.runs.method_options import typed_option
from pfed1bs.runs.own import unchanged
from pfed1bs.runs.recording import terminable
from pfed1bs.runs.run import Run, federation, method
from pfed1bs.studies.design import PLAIN, Design


@dataclass(frozen=True)
class Variant:
    """A method with options of its own."""

    name: str
    options: Options

    @property
    def label(self) -> str:
        """As it is written after --runs."""
        told = {key: repr(value) if isinstance(value, float) else shown(value) for key, value in self.options.items()}
        return " ".join([self.name, *(f"{key}={value}" for key, value in told.items())])


@dataclass(frozen=True)
class Entry:
    """One run of a comparison."""

    name: str  # of its folder
    config: Config


def variant(text: str) -> Variant:
    """A method and its options from 'NAME key=value ...'."""
    name, *pairs = text.split() or [""]
    algorithm_class(name)
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"an option of a run must be key=value, got {pair}", "write 'pfed1bs-delta step=0.3'")
        options[key] = typed_option(name, key, value, "algorithm")
    return Variant(name, options)


def methods(names: Sequence[str]) -> list[Variant]:
    """Methods without options of their own; "all" are all that there are."""
    return [variant(name) for name in (REGISTRY if list(names) == ["all"] else names)]


def entries(config: Config, variants: Sequence[Variant], seeds: Sequence[int], design: Design = PLAIN) -> list[Entry]:
    """Every variant with every seed; what would be run twice is refused."""
    if not variants or not seeds:
        raise UserError("there is nothing to compare", "name methods with --algorithms or --runs, seeds with --seeds")
    found: dict[str, tuple[str, Entry]] = {}
    for seed in seeds:
        for item in variants:
            own = design.applied(config.with_method(item.name, seed, item.options))
            told = f"{item.label} with seed {seed}"
            same = repr((seed, sorted(own.algorithm.items())))
            if same in found:
                first = found[same][0]
                words = f"{told} stands twice in the comparison" if told == first else f"{told} is the same as {first}"
                raise UserError(words, "leave one of them out")
            found[same] = told, Entry(f"{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', item.label)}-s{seed}", own)
    runs = [entry for _, entry in found.values()]
    if len({entry.name for entry in runs}) < len(runs):
        raise UserError("two of the runs would share a folder", "run them apart, each with an --out of its own")
    return runs


def rehearse_all(runs: Sequence[Entry]) -> None:
    """Refuse now what would stop a run later: samples of every seed, and every other setting once."""
    samples, known = kept(), set()
    for entry in runs:
        data, setting = samples(entry.config), repr(replace(entry.config, seed=0))
        if setting not in known:
            rehearse(entry.config, data)
        known.add(setting)


def rehearse(config: Config, data: Federation) -> None:
    """Do a round of two clients with tiny batches and forget it: mistakes show before anything is written."""
    few = replace(data, train=data.train[:2], test=data.test[:2])
    algorithm = method(config, data.shape, data.num_classes)
    steps = min(config.steps, 2)
    with suppress(Diverged):  # a result, not a mistake
        size = Schedule(rounds=1, steps=steps, batch=2, seed=config.seed_of("batches"))
        next(simulate(algorithm, few, size, device=config.device))


def agree(runs: Sequence[Entry], folder: Path, flag: str = "--out") -> None:
    """Refuse runs that a folder, named with this flag, holds with other settings or more rounds."""
    for entry in runs:
        path = folder / entry.name / "config.toml"
        if not path.is_file():
            continue
        unchanged(path.parent, earlier(path.with_name("env.json")), entry.config)
        old, new = flatten(as_tables(load(str(path)))), flatten(as_tables(entry.config))
        aside = tuple(f"{key}." for key in free())
        keys = [key for key in differing([old, new]) if not f"{key}.".startswith(aside)]
        if keys:
            told = ", ".join(f"{key} was {shown(old.get(key))}, now {shown(new.get(key))}" for key in keys)
            raise UserError(f"{path.parent} was run with other settings: {told}", f"use those, or another {flag}")
        if (done := _done(path.parent)) > entry.config.rounds:
            raise UserError(
                f"{path.parent} has {done} rounds, {entry.config.rounds} were asked for",
                f"ask for more rounds, or choose another {flag}",
            )


def prepared(runs: Sequence[Entry], folder: Path) -> Iterator[Run]:
    """The runs, those of one seed with the same data in memory, which are loaded if a run is not finished."""
    samples = kept()
    for entry in runs:
        yield Run.prepare(entry.config, folder / entry.name, samples)


def kept() -> Callable[[Config], Federation]:
    """`federation` that keeps what it gave last: runs of one seed follow each other and have the same samples."""

    @lru_cache(maxsize=1)
    def dealt(part: DataConfig, clients: int, seed: int) -> Federation:
        return federation(Config(data=part, clients=clients, seed=seed))

    return lambda config: dealt(config.data, config.clients, config.seed_of("partition"))


def complete(run: Run) -> None:
    """Do what is left of a run."""
    if not finished(run):
        with closing(run.rounds(resume=run.folder.exists())) as rounds:  # type: ignore[type-var]  # a generator
            for _ in rounds:
                pass


def side_by_side(
    runs: Sequence[Entry], folder: Path, processes: int, borne: tuple[type[Exception], ...] = ()
) -> Iterator[Entry]:
    """Do what is left of the runs in so many processes, which share the CPU's cores; yields every run that has ended.

    Processes are new ones, not copies of this one, whose GPU they could not use. An error, Ctrl-C or SIGTERM here ends
    all of them: those at work leave a checkpoint behind, and nothing that waits is begun. Errors that are `borne` end
    their own run alone.
    """
    over = {entry.name for entry in runs if finished(Run.prepare(entry.config, folder / entry.name))}
    yield from (entry for entry in runs if entry.name in over)  # no process is begun to find that out
    context, waiting = get_context("spawn"), [entry for entry in reversed(runs) if entry.name not in over]
    working: dict[Connection, tuple[Entry, SpawnProcess]] = {}
    with terminable():
        try:
            for _ in range(min(processes, len(waiting))):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, folder, processes), daemon=True)
                process.start()
                theirs.close()
                working[ours] = _handed(ours, waiting), process
            while working:
                for ours in cast(list[Connection], wait(list(working))):
                    entry, process = working[ours]
                    _taken(ours, entry, borne)
                    if waiting:
                        working[ours] = _handed(ours, waiting), process
                    else:
                        working.pop(ours)
                        ours.close()
                    yield entry
        finally:
            for _, process in working.values():
                process.terminate()
            for _, process in working.values():
                process.join()


def _handed(ours: Connection, waiting: list[Entry]) -> Entry:
    ours.send(waiting[-1])
    return waiting.pop()


def _taken(ours: Connection, entry: Entry, borne: tuple[type[Exception], ...]) -> None:
    """Wait for the end of a run; its error is raised here, unless it is borne."""
    try:
        error = ours.recv()
    except EOFError:
        raise Failure(f"the process of {entry.name} has died", "try a smaller --parallel") from None
    if error is not None and not isinstance(error, borne):
        raise error


def _work(theirs: Connection, folder: Path, processes: int) -> None:
    """Do one run after the other until there are no more; what stops one of them is sent back."""
    gpu.sharers, share = processes, max(1, torch.get_num_threads() // processes)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process says what is to be done
    samples = kept()
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            entry = theirs.recv()
            try:
                config = replace(entry.config, threads=entry.config.threads or share)
                complete(Run.prepare(config, folder / entry.name, samples))
            except Exception as error:
                error.add_note("".join(format_exception(error)))
                theirs.send(error)
            else:
                theirs.send(None)


def finished(run: Run) -> bool:
    """Whether nothing is left to do."""
    if not (run.folder / "summary.json").exists():
        return False
    return bool(run.summary.get("rested")) or int(str(run.summary["rounds"])) >= run.config.rounds


def _done(folder: Path) -> int:
    """The rounds that would be lost; those without a checkpoint are begun again."""
    kept = any((folder / name).exists() for name in ("checkpoint.safetensors", "summary.json"))
    return len((folder / "metrics.jsonl").read_text().splitlines()) if kept else 0
