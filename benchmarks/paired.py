"""The table of a comparison with paired differences.

    python benchmarks/paired.py results/mnist-all-ten.json pfed1bs-delta

The file is the table.json of `pfed1bs compare`. Differences are those of the named method to each other one over the
seeds of both, with Student's 95 % interval.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

from pfed1bs.studies.statistics import paired, scores


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("method", help="whose differences are shown")
    own = parser.parse_args()
    runs = json.loads(Path(own.file).read_text())["runs"]
    differences = {item.second: item for item in paired(runs, own.method)}
    kinds = [scores(runs, key) for key in ("accuracy", "accuracy_global", "accuracy_tuned")]
    print("| method | personal | shared | tuned | of FedAvg's bytes | behind " + own.method + " by |")
    print("|---|---|---|---|---|---|")
    for name in sorted(kinds[0], key=lambda name: -fmean(kinds[0][name].values())):
        values = kinds[0][name].values()
        cells = [f"{fmean(values):.2f} \u00b1 {stdev(values):.2f}"]
        cells += [f"{fmean(kind[name].values()):.2f}" if name in kind else "" for kind in kinds[1:]]
        ratio = fmean(run["ratio_to_fedavg"] for run in runs if run["label"] == name)
        cells.append("0" if not ratio else f"1/{1 / ratio:.0f}" if ratio < 0.4 else f"{ratio:.2f}")
        if name in differences:
            low, high = differences[name].interval()
            cells.append(f"{differences[name].mean:.2f} ({low:.2f} to {high:.2f})")
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    main()
