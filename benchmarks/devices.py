"""Whether runs of one recipe on the processor and on the GPU end within the noise of their seeds.

    python benchmarks/devices.py --out results/devices.json
    python benchmarks/devices.py --devices cpu,cpu --recipe digits --rounds 3 --folder runs/devices-try
    python benchmarks/devices.py --files results/mnist-all-r.json results/mnist-mean.json --out results/devices-few.json

Every method runs with every seed on both devices by `pfed1bs compare`; finished runs of the folder are not repeated. A
row has the mean difference of the accuracies over the seeds, second device less first, with Student's 95 % interval,
and beside it how far the seeds themselves lie apart. Within noise: the interval holds 0. With --files nothing is run:
compared are the runs of two files of results that have the same options.
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
SAME = "label options dataset partition cap model seed gradients".split()
FACTS = (("devices", "device"), ("commits", "commit"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-2class")
    parser.add_argument("--algorithms", default="pfed1bs,pfed1bs-delta,fedavg")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--rounds", default="100")
    parser.add_argument("--devices", default="cpu,cuda", help="two, with a comma between")
    parser.add_argument("--folder", type=Path, default=Path("runs/devices"), help="where the runs are kept")
    parser.add_argument("--parallel", default="1", help="runs at a time, each with one CPU thread")
    parser.add_argument("--files", type=Path, nargs=2, help="of results that are there, instead of runs")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    facts = there(options.files) if options.files else run(options)
    if options.out:
        about = environment("auto") | {"command": shlex.join(["python", *sys.argv])}
        options.out.write_text(json.dumps(about | facts, indent=1) + "\n")


def run(options: argparse.Namespace) -> dict[str, object]:
    """Every method with every seed on both devices."""
    words = [options.recipe, "--algorithms", options.algorithms, "--seeds", options.seeds, "--rounds", options.rounds]
    words += ["--evaluate_every", options.rounds, "--parallel", options.parallel]
    asked = {*product(options.algorithms.split(","), map(int, options.seeds.split(",")), [int(options.rounds)])}
    places = [(device, options.folder / f"{i}-{device}") for i, device in enumerate(options.devices.split(","))]
    ended = [finished([*words, "--device", device], asked, folder) for device, folder in places]
    rows = [compared(name, [runs[name] for runs in ended]) for name in options.algorithms.split(",")]
    return {
        "devices": [told(folder, "device") for _, folder in places],
        "commits": [told(folder, "commit") for _, folder in places],
        "rows": rows,
    }


def there(files: Sequence[Path]) -> dict[str, object]:
    """Methods of two files that differ in device and commit, and so in the round where their models rest."""
    ours, theirs = (json.loads(path.read_text())["runs"] for path in files)
    pairs = [(a, b) for a, b in product(ours, theirs) if all(a.get(key) == b.get(key) for key in SAME)]
    rows = []
    for label in dict.fromkeys(a["label"] for a, _ in pairs):
        sides = zip(*(pair for pair in pairs if pair[0]["label"] == label), strict=True)
        rows.append(compared(label, [{item["seed"]: item["accuracy"] for item in side} for side in sides]))
    names, columns = [path.name for path in files], [*zip(*pairs, strict=True)]
    told = [{name: sorted({item[key] for item in side}) for name, key in FACTS} for side in columns]
    return {"files": [{"file": name, **facts} for name, facts in zip(names, told, strict=True)], "rows": rows}


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
        "largest": max(map(abs, apart.values)),
        "by_seed": apart.values,
    }


if __name__ == "__main__":
    main()
