"""Whether runs of one recipe on the processor and on the GPU end within the noise of their seeds.

    python benchmarks/devices.py --out results/devices.json
    python benchmarks/devices.py --devices cpu,cpu --recipe digits --rounds 3 --folder runs/devices-try

Every method runs with every seed on both devices by `pfed1bs compare`; finished runs of the folder are not repeated. A
row has the mean difference of the accuracies over the seeds, second device less first, with Student's 95 % interval,
and beside it how far the seeds themselves lie apart. Within noise: the interval holds 0.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence, Set
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from pfed1bs.report.statistics import Difference
from pfed1bs.runs.environment import environment

Run = tuple[str, int, int]  # method, seed, rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-2class")
    parser.add_argument("--algorithms", default="pfed1bs,pfed1bs-delta,fedavg")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--rounds", default="100")
    parser.add_argument("--devices", default="cpu,cuda", help="two, with a comma between")
    parser.add_argument("--folder", type=Path, default=Path("runs/devices"), help="where the runs are kept")
    parser.add_argument("--parallel", default="1", help="runs at a time, each with one CPU thread")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    words = [options.recipe, "--algorithms", options.algorithms, "--seeds", options.seeds, "--rounds", options.rounds]
    words += ["--evaluate_every", options.rounds, "--parallel", options.parallel]
    asked = {*product(options.algorithms.split(","), map(int, options.seeds.split(",")), [int(options.rounds)])}
    places = [(device, options.folder / f"{i}-{device}") for i, device in enumerate(options.devices.split(","))]
    ended = [finished([*words, "--device", device], asked, folder) for device, folder in places]
    rows = [compared(name, [runs[name] for runs in ended]) for name in options.algorithms.split(",")]
    facts = environment("auto") | {
        "command": shlex.join(["python", *sys.argv]),
        "devices": [told(folder, "device") for _, folder in places],
        "commits": [told(folder, "commit") for _, folder in places],
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


def finished(words: Sequence[str], asked: Set[Run], folder: Path) -> dict[str, dict[int, float]]:
    """Accuracies by method and seed of a comparison, run where its folder has not all runs that are asked for."""
    if {*accuracies(folder)} != asked:
        more = ["--resume"] if folder.exists() else []
        command = [sys.executable, "-m", "pfed1bs", "compare", *words, "--out", str(folder), *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, dict[int, float]] = {}
    for (name, seed, _), accuracy in accuracies(folder).items():
        found.setdefault(name, {})[seed] = accuracy
    return found


def accuracies(folder: Path) -> dict[Run, float]:
    """Those of the runs that have ended."""
    path = folder / "compare.json"
    runs = json.loads(path.read_text()) if path.exists() else []
    return {(run["algorithm"], run["seed"], run["rounds"]): run["accuracy"] for run in runs}


def told(folder: Path, key: str) -> str:
    """What the runs of a folder say of their environment; they may have been made on another machine."""
    found = {json.loads(path.read_text())[key] for path in folder.glob("*/env.json")}
    return ", ".join(sorted(found))


def compared(name: str, runs: Sequence[dict[int, float]]) -> dict[str, object]:
    """One method on both devices, seed by seed."""
    first, second = runs
    apart = Difference("second", "first", tuple(second[seed] - first[seed] for seed in sorted(first)))
    low, high = apart.interval()
    means, spreads = [fmean(one.values()) for one in runs], [stdev(one.values()) for one in runs]
    print(f"{name:16} {means[0]:.2f}, {means[1]:.2f}: {apart.mean:+.3f} ({low:+.3f} to {high:+.3f})", flush=True)
    return {
        "algorithm": name,
        "accuracy": means,
        "std_over_seeds": spreads,
        "difference": apart.mean,
        "interval": [low, high],
        "within_noise": low <= 0 <= high,
        "by_seed": apart.values,
    }


if __name__ == "__main__":
    main()
