"""Whether figures of the processor got worse since another commit: step.py and simulator.py of both trees, in turns.

    python benchmarks/since.py BASE --turns 7 --out results/since.json

Each tree runs its own scripts on its own kernels, one process after the other. What others would write runs in turns
with our ways in the same processes and is the same code in both trees: a figure is the time of one of our ways, in
those of the other way, here over the same at BASE. The median over the turns, and for the mean of the logarithms the
interval of two standard errors; beside it the ratio of best times alone. On a busy machine `--busy --threads 1` counts
the time of the processor.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from peers import record

HERE = Path(__file__).resolve().parents[1]
Times = dict[tuple[str, str], float]  # by script and way
OURS = {"step.py": ("local", "pfed1bs", "pfed1bs, simulated"), "simulator.py": ("task_steps", "simulate")}
BUSY = """import runpy, sys, time
time.perf_counter, sys.argv[:] = time.process_time, sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")"""
OTHER = {"step.py": "by hand", "simulator.py": "plain_loop"}  # what our ways are measured against


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="count the processor's time; for one thread")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        subprocess.run(["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", base, options.base], check=True)
        try:
            build(base)
            turns: list[tuple[Times, Times]] = []
            for number in range(options.turns):
                here, there = (seconds(tree, options.threads, options.busy) for tree in (HERE, base))
                turns.append((here, there))
                print(f"after turn {number + 1}")
                rows = [compared(script, way, turns) for script, ways in OURS.items() for way in ways]
                record(options.out, " ".join(["python", *sys.argv]), {"base": options.base, "rows": rows})
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", base], check=True)


def build(tree: Path) -> None:
    """The native kernels of a tree, beside their source."""
    (source,) = tree.glob("src/**/_fht.c")
    target = source.with_name(f"_fht{sysconfig.get_config_var('EXT_SUFFIX')}")
    flags = ["-O3", "-std=gnu11", "-shared", "-fPIC", "-pthread", f"-I{sysconfig.get_paths()['include']}"]
    subprocess.run(["cc", *flags, source, "-o", target], check=True)


def seconds(tree: Path, threads: int, busy: bool) -> Times:
    """The best time of every way of a tree, by script and name."""
    found: Times = {}
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    for script, more in (("step.py", ["--repeats", "5"]), ("simulator.py", ["--repeats", "2", "--batch", "64"])):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            words = [tree / "benchmarks" / script, *more, "--threads", str(threads), "--out", out.name]
            command = [sys.executable, *(["-c", BUSY] if busy else []), *words]
            subprocess.run(command, env=environment, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            results = json.loads(Path(out.name).read_text())["results"]
        for row in results["ways"] if script == "step.py" else results:
            found[script, row["way"]] = row.get("ms_per_step") or 1e3 / row["client_steps_per_second"]
    return found


def compared(script: str, way: str, turns: list[tuple[Times, Times]]) -> dict[str, object]:
    """One of our ways in both trees: its time, and its time in those of the other way beside it."""
    times = [[tree[script, way] for tree in turn] for turn in turns]
    yard = [[tree[script, OTHER[script]] for tree in turn] for turn in turns]
    best = min(here for here, _ in times) / min(base for _, base in times)
    even = [here / base for here, base in yard]
    ratios = [here / base / other for (here, base), other in zip(times, even, strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    half = 2 * statistics.stdev(logs) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    low, high = (math.exp(statistics.mean(logs) + side * half) for side in (-1, 1))
    middle = statistics.median(ratios)
    print(f"{script:13} {way:20} {middle:6.3f} times ({low:.3f} to {high:.3f}); best times {best:.3f}", flush=True)
    figure = {"script": script, "way": way, "median": middle, "low": low, "high": high, "best": best}
    return {**figure, "ratios": ratios, "machine": even}


if __name__ == "__main__":
    main()
