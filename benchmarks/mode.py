"""What equal bits cost: the step benchmark in and outside MKL's reproducible mode, and one client on one thread.

    python benchmarks/mode.py --rounds 3 --out results/mode.json

MKL keeps the mode it has at its first product, so every measurement is a process of its own, in turns; the process
"off" has it multiply before pfed1bs is imported. Then one client's gradient on one thread, as `simulate` has it, and on
all.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from peers import race, record

from pfed1bs.models import build
from pfed1bs.reproducible import VARIABLE
from pfed1bs.rng import stream
from pfed1bs.task import Task

MODES = {"off": "import torch; torch.ones(9, 9) @ torch.ones(9, 9)", "AUTO": "", "AUTO,STRICT": ""}
START = "; import runpy, sys; sys.path[0] = 'benchmarks'; runpy.run_path('benchmarks/step.py', run_name='__main__')"


def measured(mode: str, repeats: int) -> dict[str, float]:
    """Milliseconds of a step in every way of the step benchmark, best of the repeats."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        words = [sys.executable, "-W", "ignore", "-c", f"{MODES[mode] or 'pass'}{START}", "--repeats", str(repeats)]
        set_up = ["env", "-u", VARIABLE] if mode == "off" else ["env", f"{VARIABLE}={mode}"]
        subprocess.run([*set_up, *words, "--out", str(path)], check=True, stdout=subprocess.DEVNULL)
        return {row["way"]: row["ms_per_step"] for row in json.loads(path.read_text())["results"]["ways"]}


def single(name: str, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Seconds of one client's gradient, batch 64, on one thread and on all that torch has."""
    task, threads = Task(build(name, shape, 10)), torch.get_num_threads()
    x, y = torch.randn(1, 64, *shape, generator=stream(0, "x")), torch.arange(64).remainder(10).unsqueeze(0)
    w, buffers = task.init(0).unsqueeze(0), task.buffers(1)

    def on(number: int) -> None:
        torch.set_num_threads(number)
        task.gradient(w, x, y, buffers)

    seconds = race({"one thread": lambda: on(1), f"{threads} threads": lambda: on(threads)}, repeats)
    return {way: min(values) for way, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes for every mode, in turns")
    parser.add_argument("--repeats", type=int, default=10, help="of the step benchmark, and of one client's gradient")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    found = [{mode: measured(mode, options.repeats) for mode in MODES} for _ in range(options.rounds)]
    best = {mode: {way: min(turn[mode][way] for turn in found) for way in found[0][mode]} for mode in MODES}
    for way, base in best["off"].items():
        print(
            f"{way:20}"
            + "".join(f"{mode:>13} {best[mode][way]:6.2f} ms {best[mode][way] / base:5.2f}" for mode in MODES)
        )
    clients = {
        name: single(name, shape, options.repeats) for name, shape in {"mlp": (784,), "vgg8": (3, 32, 32)}.items()
    }
    for name, seconds in clients.items():
        print(f"one client, {name}: " + ", ".join(f"{way} {1e3 * value:.1f} ms" for way, value in seconds.items()))
    record(options.out, " ".join(["python", *sys.argv]), {"ms_per_step": best, "one_client_seconds": clients})


if __name__ == "__main__":
    main()
