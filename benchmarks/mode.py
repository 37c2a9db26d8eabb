"""What equal bits cost: the step benchmark on one thread, in and outside MKL's reproducible mode.

    python benchmarks/mode.py --rounds 3 --out results/mode.json

MKL keeps the mode it has at its first product, so every measurement is a process of its own, in turns; the process
"off" has it multiply before pfed1bs is imported. Times are the processor's, so that a busy machine disturbs them less.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from peers import record

from pfed1bs.core.reproducible import VARIABLE

MODES = {"off": "import torch; torch.ones(9, 9) @ torch.ones(9, 9)", "AUTO": "", "AUTO,STRICT": ""}
START = """
import runpy, sys, time
time.perf_counter = time.process_time
sys.path[0] = "benchmarks"
runpy.run_path("benchmarks/step.py", run_name="__main__")
"""


def measured(mode: str, repeats: int) -> dict[str, float]:
    """Milliseconds of a step in every way of the step benchmark, best of the repeats."""
    set_up = ["env", "-u", VARIABLE] if mode == "off" else ["env", f"{VARIABLE}={mode}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        words = [sys.executable, "-W", "ignore", "-c", MODES[mode] + START, "--threads", "1", "--steps", "4"]
        words += ["--repeats", str(repeats), "--out", str(path)]
        subprocess.run([*set_up, *words], check=True, stdout=subprocess.DEVNULL)
        return {row["way"]: row["ms_per_step"] for row in json.loads(path.read_text())["results"]["ways"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="processes for every mode, in turns")
    parser.add_argument("--repeats", type=int, default=10, help="of the step benchmark in every process")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    found = [{mode: measured(mode, options.repeats) for mode in MODES} for _ in range(options.rounds)]
    best = {mode: {way: min(turn[mode][way] for turn in found) for way in found[0][mode]} for mode in MODES}
    for way, base in best["off"].items():
        print(f"{way:20}" + "".join(f"{name:>13} {ms[way]:6.2f} ms {ms[way] / base:5.2f}" for name, ms in best.items()))
    record(options.out, " ".join(["python", *sys.argv]), {"ms_per_step_on_one_thread": best})


if __name__ == "__main__":
    main()
