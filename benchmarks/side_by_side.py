"""How many runs a minute one device does, by how many go side by side, with NVIDIA's MPS and without it.

    python benchmarks/side_by_side.py --out results/side-by-side.json
    python benchmarks/side_by_side.py --algorithm fedavg --parallel 1,4,6,12
    python benchmarks/side_by_side.py --recipe digits --device cpu --parallel 1,2 --window 1

Processes such as those of `pfed1bs compare --parallel`, one CPU thread each, record run after run. They are begun once,
and once more for MPS, whose daemon is started and stopped here where there is one; then so many of them work for some
seconds while the others stand still. Counted are rounds, with the evaluations, checkpoints and beginnings of runs that
fall among them, over the rounds of a run. What is not done within the limit is left out, and said.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from pfed1bs.core import gpu
from pfed1bs.runs.config import Config, load
from pfed1bs.runs.environment import environment
from pfed1bs.runs.run import Run
from pfed1bs.studies.comparison import kept

MPS = "nvidia-cuda-mps-control"
END = 5.0  # seconds in which what is asked to end has to
WARM = 12  # rounds before anything is timed: works are recorded, kernels compiled
Row = dict[str, object]


def recorded(config: Config, folder: Path) -> Iterator[None]:
    """One round after the other, run after run."""
    samples = kept()
    for number in count():
        for _ in Run.prepare(config, folder / str(number), samples).rounds():
            yield


def work(ours: Connection, config: Config, folder: Path, processes: int) -> None:
    """Make ready, then do rounds for as many seconds as are asked for and say how many a second, until it is ended."""
    gpu.sharers = processes
    with suppress(EOFError, KeyboardInterrupt), closing(recorded(config, folder)) as rounds:
        for _ in range(WARM):
            next(rounds)
        ours.send(environment(config.device))  # ready
        while True:
            seconds = ours.recv()
            began, done = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                next(rounds)
                done += 1
            ours.send(done / (time.perf_counter() - began))


@contextmanager
def daemon(wanted: bool, folder: Path) -> Iterator[None]:
    """NVIDIA's MPS for processes that are begun meanwhile, or none, also where another one is running."""
    folder.mkdir()
    before = {name: os.environ.get(name) for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
    os.environ.update(dict.fromkeys(before, str(folder)))
    try:
        if wanted:
            subprocess.run([MPS, "-d"], check=True, timeout=END)
        yield
    finally:
        if wanted:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([MPS], input="quit\n", text=True, timeout=END, stdout=subprocess.DEVNULL)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def measured(
    config: Config, counts: Sequence[int], window: float, mps: bool, until: float
) -> Iterator[tuple[Row, Row]]:
    """What the processes run on, and a row for every number of them, as long as there is time."""
    context, workers = get_context("spawn"), []
    with TemporaryDirectory() as folder, daemon(mps, Path(folder) / "mps"):
        try:
            for i in range(max(counts)):
                ours, theirs = context.Pipe()
                given = (theirs, config, Path(folder) / str(i), max(counts))
                process = context.Process(target=work, args=given, daemon=True)
                process.start()
                theirs.close()
                workers.append((ours, process))
            facts = [_heard(ours, until) for ours, _ in workers][0]
            for parallel in counts:
                if time.perf_counter() + window > until:
                    raise TimeoutError
                row = _together([ours for ours, _ in workers[:parallel]], config, window, until)
                yield facts, row | {"mps": mps}
        finally:
            for _, process in workers:
                process.terminate()
            for _, process in workers:
                process.join(END / len(workers))
                process.kill()  # one that waits for the driver hears nothing else


def _together(workers: Sequence[Connection], config: Config, window: float, until: float) -> Row:
    for ours in workers:
        ours.send(window)
    rate = sum(float(_heard(ours, until + window)) for ours in workers)
    runs = round(60 * rate / config.rounds, 2)
    return {"parallel": len(workers), "runs_a_minute": runs, "rounds_a_second": round(rate, 2)}


def _heard(ours: Connection, until: float) -> object:
    if not ours.poll(max(0.0, until - time.perf_counter())):
        raise TimeoutError
    return ours.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-2class")
    parser.add_argument("--algorithm", default="pfed1bs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parallel", default="1,2,4,8", help="numbers of processes, with commas between")
    parser.add_argument("--window", type=float, default=2.0, help="seconds for each of them")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    began, rows, missing = time.perf_counter(), list[Row](), list[str]()
    config = load(options.recipe, ["--device", options.device]).with_method(options.algorithm, 0, {})
    config, counts = replace(config, threads=1), [int(word) for word in options.parallel.split(",")]
    found = {
        "command": shlex.join(["python", "benchmarks/side_by_side.py", *sys.argv[1:]]),
        "recipe": options.recipe,
        "algorithm": options.algorithm,
        "rounds": config.rounds,
        "window": options.window,
        "left_out": missing,
        "rows": rows,
    }
    for mps in (False, True) if options.device != "cpu" else (False,):
        way = f"with{'' if mps else 'out'} MPS"
        if mps and shutil.which(MPS) is None:
            missing.append(f"{way}: there is no {MPS} here")
            continue
        try:
            for facts, row in measured(config, counts, options.window, mps, began + options.limit):
                rows.append(row)
                print(f"{row['parallel']:3} side by side {way}: {row['runs_a_minute']} runs a minute", flush=True)
                found = facts | found  # this process is no guest of the device, so others say what it is
                _keep(found, options.out)  # row by row: it may be cut off
        except (TimeoutError, subprocess.TimeoutExpired):
            missing.append(f"{way}: not done after {options.limit:.0f} s")
    print(*missing, sep="\n", file=sys.stderr)
    _keep(found, options.out)


def _keep(found: Row, out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
