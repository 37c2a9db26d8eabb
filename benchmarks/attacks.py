"""What clients that lie do to the others: accuracy of the honest against the share of liars, MNIST, 20 clients.

    python benchmarks/attacks.py measure --seeds 0,1,2,3,4 --device cuda --parallel 6 --out results/attacks.json
    python benchmarks/attacks.py figure results/attacks.json --out results/attacks.svg

100 samples a client, Dirichlet 0.3, 100 rounds, the options of recipes/mnist-attacks.toml, the server's bounds as in a
generated Flower app. `measure` takes over what is in its file already and writes it after every run. Flipped signs come
at four shares, the other attacks at 0.1 and 0.3, with `--all` at 0.45 too. Where an attack cannot differ from flipped
signs (no real numbers, no weights), it is not run: the figure shows those. `figure` needs the file alone.
"""

import argparse
import json
import shlex
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev

METHODS = {  # line of the figure: method and options beside those of the recipe
    "pfed1bs": ("pfed1bs", {}),
    "pfed1bs-delta": ("pfed1bs-delta", {}),
    "pfed1bs-delta robust": ("pfed1bs-delta", {"robust": "trimmed"}),
    "fedavg": ("fedavg", {}),
    "eden": ("eden", {}),
    "obda": ("obda", {}),
    "signsgd": ("signsgd", {}),
}
KINDS = ("sign-flip", "scale", "counts", "label-flip", "random", "constant", "collude", "replay")
AS_FLIPPED = {"scale": ("pfed1bs", "obda", "signsgd"), "counts": ("obda", "signsgd")}
SHARES, FEW, MOST = (0.1, 0.2, 0.3, 0.45), (0.1, 0.3), 0.45
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # 95 % interval of a mean over so many seeds, in standard errors
COLOURS = dict(zip(METHODS, ("#0072b2", "#d55e00", "#d55e00", "#009e73", "#d14af0", "#524027", "#6b7480"), strict=True))


def planned(own):
    """Every run: line, attack, share and seed; runs without an attack and the bars of small shares first."""
    cells = [(line, "none", 0.0) for line in METHODS]
    cells += [(line, "sign-flip", share) for share in SHARES for line in METHODS]
    for share in (*FEW, *((MOST,) if own.all else ())):
        others = product(KINDS[1:], METHODS)
        cells += [(line, kind, share) for kind, line in others if line not in AS_FLIPPED.get(kind, ())]
    return [(*cell, seed) for cell in cells for seed in own.seeds if own.line in (None, cell[0])]


def run(own, job):
    """One run: right answers and test samples of every client, by kind of model."""
    import torch

    from pfed1bs import evaluate, simulate
    from pfed1bs.algorithms.base import robust
    from pfed1bs.engine.turns import Diverged
    from pfed1bs.flower.settings import BELIEVED
    from pfed1bs.runs.config import Config, DataConfig
    from pfed1bs.runs.run import Simulator, federation, method

    torch.set_num_threads(1)
    robust.MEMORY = own.memory or robust.MEMORY
    line, kind, share, seed = job
    name, extra = METHODS[line]
    options = tomllib.loads(Path("recipes/mnist-attacks.toml").read_text())["options"]
    data = DataConfig("mnist", "dirichlet:0.3", cap=100)
    attack = f"{kind}:{share}" if share else None
    config = Config(own.rounds, seed=seed, data=data, attack=attack, device=own.device, **BELIEVED)
    config = config.with_method(name, seed, {**options[name], **extra})
    samples = federation(config)
    source = Simulator(method(config, samples.shape, samples.num_classes), samples, config)
    row = {"line": line, "attack": kind, "share": share, "seed": seed, "rounds": own.rounds}
    liars = config.attacks.by(config.clients) if attack else torch.zeros(config.clients, dtype=torch.bool)
    row["liars"], seconds, cut = (
        liars.nonzero().flatten().tolist(),
        0.0,
        dict.fromkeys(("left", "clipped", "capped"), 0),
    )
    try:
        rounds = simulate(source.algorithm, samples, source.schedule, device=own.device, trust=config.trust)
        for done in rounds:
            seconds += done.seconds
            cut = {key: value + int(done.log.get(key, 0)) for key, value in cut.items()}
    except Diverged as error:
        return {**row, "stopped": str(error)}
    scores = evaluate(source.algorithm, samples, done.progress, source.schedule)
    row |= {"done": done.number + 1, "seconds": round(seconds, 2), **cut}
    row["samples"] = scores["personal"].samples.long().tolist()
    return row | {
        kind: scores[kind].counts["correct"].long().tolist() for kind in ("personal", "global") if kind in scores
    }


def key(row):
    return row["line"], row["attack"], row["share"], row["seed"], row["rounds"]


def measure(own):
    from pfed1bs.runs.environment import environment

    path = Path(own.out)
    rows = json.loads(path.read_text())["runs"] if path.exists() else []
    have, order = {key(row) for row in rows}, {job: place for place, job in enumerate(planned(own))}
    left = [job for job in order if (*job, own.rounds) not in have][: own.limit]
    print(f"{len(order)} runs, {len(left)} to do", file=sys.stderr, flush=True)
    about = {**environment(own.device), "command": shlex.join(["python", "benchmarks/attacks.py", *sys.argv[1:]])}
    with ProcessPoolExecutor(own.parallel, mp_context=get_context("spawn")) as pool:
        for number, done in enumerate(as_completed(pool.submit(partial(run, own), job) for job in left), 1):
            rows.append(done.result())
            rows.sort(key=lambda row: order.get(key(row)[:4], len(order)))
            part = path.with_suffix(".part")
            part.write_text(text(about, rows))
            part.replace(path)
            print(f"{number} of {len(left)}: {key(done.result())}", file=sys.stderr, flush=True)
    for line in summary(rows):
        print(json.dumps(line))


def text(about, rows):
    """The file: what made it, what honest clients lose, and every run in a line."""
    parts = {"lost": summary(rows), "runs": rows}
    lists = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, found)) + "\n ]" for name, found in parts.items()]
    return ",\n".join([json.dumps(about, indent=1)[:-2], *lists]) + "\n}\n"


def accuracy(row, model, clients):
    """Percent of the right answers of these clients; 0 of a run that could not go on."""
    if "stopped" in row:
        return 0.0
    return 100 * sum(row[model][k] for k in clients) / sum(row["samples"][k] for k in clients)


def points(rows, line, kind, model):
    """By share: accuracy of the honest clients, seed by seed, and that of the same clients without an attack."""
    shown = "sign-flip" if line in AS_FLIPPED.get(kind, ()) else kind
    calm = {row["seed"]: row for row in rows if (row["line"], row["share"]) == (line, 0)}
    found = {0.0: [(accuracy(row, model, range(20)),) * 2 for row in calm.values() if model in row]}
    for row in rows:
        if (row["line"], row["attack"]) == (line, shown) and row["seed"] in calm and model in calm[row["seed"]]:
            honest = [k for k in range(20) if k not in row["liars"]]
            pair = accuracy(row, model, honest), accuracy(calm[row["seed"]], model, honest)
            found.setdefault(row["share"], []).append(pair)
    return {share: pairs for share, pairs in sorted(found.items()) if pairs}


def interval(values):
    """Half of the 95 % interval of a mean; nothing for one value."""
    return STUDENT.get(len(values), 2.0) * stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def summary(rows):
    """What honest clients lose, in points, by line, attack and share."""
    found = []
    for line, kind, model in product(METHODS, KINDS, ("personal", "global")):
        for share, pairs in points(rows, line, kind, model).items():
            lost = [before - after for after, before in pairs]
            if share:
                row = {"line": line, "attack": kind, "share": share, "model": model, "seeds": len(lost)}
                found.append(
                    {**row, "lost": fmean(lost), "interval": interval(lost), "accuracy": fmean(p[0] for p in pairs)}
                )
    return found


def figure(own):
    """A panel for every attack, first the clients' own models, then the shared one."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = json.loads(Path(own.results).read_text())["runs"]
    with rc_context({"svg.hashsalt": "pfed1bs", "svg.fonttype": "none", "font.size": 9}):
        picture = Figure(figsize=(12, 11), layout="constrained")
        for place, (model, kind) in enumerate(product(("personal", "global"), KINDS), 1):
            axes = picture.add_subplot(4, 4, place)
            for line in METHODS:
                drawn = points(rows, line, kind, model)
                if not drawn:
                    continue
                shares, values = (
                    [100 * share for share in drawn],
                    [[pair[0] for pair in pairs] for pairs in drawn.values()],
                )
                error, dash = [interval(value) or 0.0 for value in values], "--" if line.endswith("robust") else "-"
                axes.errorbar(shares, [*map(fmean, values)], error, color=COLOURS[line], ls=dash, capsize=2, label=line)
            axes.set_title(f"{kind}, {'own models' if model == 'personal' else 'shared model'}", fontsize=9)
            axes.grid(color="#d9dfe5", linewidth=0.6)
            axes.set_xlabel("clients that lie (%)")
            if place % 4 == 1:
                axes.set_ylabel("accuracy of the honest (%)")
        handles, labels = picture.axes[0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        picture.savefig(own.out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    first = ways.add_parser("measure")
    first.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1, 2, 3, 4])
    first.add_argument("--rounds", type=int, default=100)
    first.add_argument("--device", default="auto")
    first.add_argument("--parallel", type=int, default=1, help="processes side by side")
    first.add_argument("--all", action="store_true", help="every attack at a share of 0.45 too")
    first.add_argument("--line", choices=METHODS, help="this one alone")
    first.add_argument("--memory", type=float, help="weight of the rounds before in robust means, to choose it")
    first.add_argument("--limit", type=int, help="most runs that are made now")
    first.add_argument("--out", required=True)
    second = ways.add_parser("figure")
    second.add_argument("results")
    second.add_argument("--out", required=True)
    third = ways.add_parser("summary")
    third.add_argument("results")
    own = parser.parse_args()
    if own.way == "summary":
        for line in summary(json.loads(Path(own.results).read_text())["runs"]):
            print(json.dumps(line))
    else:
        measure(own) if own.way == "measure" else figure(own)


if __name__ == "__main__":
    main()
