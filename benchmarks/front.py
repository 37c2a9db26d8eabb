"""Draws personalised accuracy against total bytes from result files: lines for runs, dots for methods at their end.

python benchmarks/front.py results/mnist-delta-dirichlet.json results/mnist-all.json --out results/accuracy-bytes.svg
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib import rcParams
from matplotlib.figure import Figure

OWN = "#0072b2"
SHOWN = {  # curve: its name in the picture
    "local": "",
    "fedavg-ft": "fedavg-ft",
    "ditto": "ditto",
    "pfed1bs-delta": "pfed1bs-delta\nm/n = 0.1",
    "pfed1bs-delta ratio=0.03": "0.03",
    "pfed1bs-delta ratio=0.01": "0.01",
    "pfed1bs-delta ratio=0.003": "0.003",
}
CROWD = (
    "fedavg",
    "fedavg-ft",
    "fedprox",
    "eden",
    "fedpaq",
    "zsign",
    "ditto",
    "apfl",
    "pfed1bs-delta",
)  # without a name
ABOVE = ("ef-sign", "pfedme")  # names above their dots


def label(run):
    options = [f"{key}={value}" for key, value in run["options"].items() if key in ("ratio", "keep", "bits")]
    return " ".join([run["algorithm"], *options])


def grouped(path):
    runs = defaultdict(list)
    for run in json.loads(Path(path).read_text())["runs"]:
        runs[label(run)].append(run)
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", help="file whose curves are drawn")
    parser.add_argument("dots", help="file whose last rounds are drawn")
    parser.add_argument("--out", required=True)
    own = parser.parse_args()
    rcParams["svg.hashsalt"] = "pfed1bs"
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for name, runs in grouped(own.lines).items():
        if name not in SHOWN:
            continue
        points = list(zip(*(run["curve"] for run in runs), strict=True))
        y = [mean(point[2] for point in at) for at in points]
        ours = name.startswith("pfed1bs-delta")
        if not points[-1][0][1]:
            axes.axhline(y[-1], color="gray", linestyle="--", linewidth=1)
            axes.annotate(
                "local: sends nothing", (0.99, y[-1]), xycoords=("axes fraction", "data"), ha="right", va="bottom"
            )
            continue
        x = [mean(point[1] for point in at) / 2**20 for at in points]
        axes.plot(x, y, color=OWN if ours else "#d55e00", linewidth=2 if ours else 1.2, alpha=0.9)
        place = {"xytext": (0, 5), "ha": "center"} if ours else {"xytext": (4, -3), "ha": "left"}
        axes.annotate(SHOWN[name], (x[-1], y[-1]), textcoords="offset points", fontsize=9, **place)
    for name, runs in grouped(own.dots).items():
        sent = mean(run["total_mib"] for run in runs)
        if sent:
            y = mean(run.get("accuracy_personal", run.get("accuracy")) for run in runs)
            ours = name.startswith("pfed1bs-delta")
            axes.plot([sent], [y], "o", markersize=4, color=OWN if ours else "black")
            if name not in CROWD:
                offset = (4, 4) if name in ABOVE else (4, -10)
                axes.annotate(name, (sent, y), fontsize=8, xytext=offset, textcoords="offset points")
    axes.set_xscale("log")
    axes.set_ylim(84, 95.5)
    axes.set_xlim(right=2e4)
    axes.set_xlabel("total traffic of 20 clients, MiB, headers included (log scale)")
    axes.set_ylabel("personalised accuracy, percent")
    axes.set_title(
        "MNIST, Dirichlet 0.3, 100 samples a client. Lines: 200 rounds, lr 0.05; dots: 100 rounds, tuned", fontsize=9
    )
    axes.grid(alpha=0.3)
    figure.savefig(own.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
