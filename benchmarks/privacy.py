"""What messages tell of a client, and what it costs to tell less. MNIST, MLP, clients with 100 samples.

    python benchmarks/privacy.py recover --out results/privacy/recover.json
    python benchmarks/privacy.py invert --out results/privacy/invert.json --pictures results/privacy/pictures.png
    python benchmarks/privacy.py accuracy --device cuda --parallel 6 --out results/privacy/epsilon.json
    python benchmarks/privacy.py figure results/privacy/epsilon.json --out results/privacy/epsilon.svg

`recover`: the cosine between an update, or a model, and what its one-bit sketch says of it, with and without the seed;
then the same summed over rounds. `invert`: pictures found by matching the gradient of one batch (Geiping et al., 2020,
with known labels, no prior but a small total variation), from the full update and from sketches. `accuracy`: randomised
response on the bits, epsilon of a round at delta = 1e-5 and of all rounds; with dp-accounting installed, its value too.
"""

import argparse
import json
import shlex
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from math import log, sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev

import torch

from pfed1bs import Task, build, evaluate, federate, load, make, simulate, srht
from pfed1bs.algorithms.base.private import DELTA, composed, kept
from pfed1bs.algorithms.pfed1bs_delta import PFed1BSDelta
from pfed1bs.core.votes import sign
from pfed1bs.runs.environment import environment

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0)
ROUNDS = (1, 10, 50)
EPSILONS = (0.0, 3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0)
METHODS = ("pfed1bs-delta", "pfed1bs")
STRANGER = 1 << 40  # added to a seed that is not known
ATTEMPTS, RATE, VARIATION = 600, 0.05, 1e-3  # of the inversion
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


@cache
def dealt(seed):
    return federate(load("mnist"), 20, "dirichlet:0.3", cap=100, seed=seed)


def task(data):
    return Task(build("mlp", data.shape, data.num_classes))


def cosine(a, b):
    return float((a.double() @ b.double()) / (a.double().norm() * b.double().norm()))


def told(x, m, seed, known=True):
    """What the signs of the sketch of x say of x: Phi^T sign(Phi x), with the right seed or another."""
    z = sign(srht(len(x), m, seed).forward(x))
    return srht(len(x), m, seed if known else seed + STRANGER).adjoint(z)


def recover(own):
    rows = []
    for seed in own.seeds:
        data = dealt(seed)
        fedavg, start = make("fedavg", task(data), seed, lr=0.1), task(data).init(seed)
        *_, last = simulate(fedavg, data, rounds=1, seed=seed, device="cpu")
        w = last.progress.clients["w"][0]
        update = w - start
        for ratio in RATIOS:
            m = int(ratio * len(w))
            row = {"seed": seed, "ratio": ratio, "update": cosine(told(update, m, seed), update)}
            row["update_without_seed"] = cosine(told(update, m, seed, False), update)
            row["model"] = cosine(told(w, m, seed), w)
            phi = srht(len(w), m, seed)  # pfed1bs: which signs differ from those of the first weights, known to all
            row["model_since_start"] = cosine(phi.adjoint(sign(phi.forward(w)) - sign(phi.forward(start))), update)
            rows.append({key: round(value, 4) for key, value in row.items()})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        rows += watched(data, seed)
    return {"runs": rows}


def watched(data, seed):
    """pfed1bs-delta, whose projections are fresh: what the server can add up of a client's updates; five clients."""
    updates, data = {}, replace(data, train=data.train[:5], test=data.test[:5])

    class Spied(PFed1BSDelta):
        def local(self, clients, received, cohort, batches):
            state, said = super().local(clients, received, cohort, batches)
            for row, client in enumerate(cohort.ids.tolist()):
                if client == 0:
                    heard.append(self.code(cohort.round).lift(said["signs"][row] * said["scale"][row]))
                    true.append(updates["now"][row])
            return state, said

        def spoken(self, clients, delta, round):
            updates["now"] = delta
            return super().spoken(clients, delta, round)

    heard, true, rows = [], [], []
    method = Spied(task(data), seed, lr=0.1)
    for done in simulate(method, data, rounds=max(ROUNDS), seed=seed, device="cpu"):
        if done.number + 1 in ROUNDS:
            value = round(cosine(sum(heard), sum(true)), 4)
            rows.append({"seed": seed, "rounds": done.number + 1, "ratio": 0.1, "sum_of_updates": value})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def gradient(w, parts, x, y, graph=False):
    """Of the loss of the MLP with flat weights w on one batch."""
    w1, b1, w2, b2 = (w[part.slice].view(part.shape) for part in parts)
    loss = torch.nn.functional.cross_entropy((x @ w1.T + b1).relu() @ w2.T + b2, y)
    (found,) = torch.autograd.grad(loss, w, create_graph=graph)
    return found


def inverted(w, parts, target, y, seed):
    """Pictures whose gradient points where the target does."""
    drawing = torch.Generator().manual_seed(seed)
    x = torch.randn(len(y), 784, generator=drawing).requires_grad_()
    steps = torch.optim.Adam([x], RATE)
    for _ in range(ATTEMPTS):
        steps.zero_grad()
        found = gradient(w, parts, x, y, graph=True)
        picture = x.view(-1, 28, 28)
        rough = picture.diff(dim=1).abs().mean() + picture.diff(dim=2).abs().mean()
        (1 - found @ target / (found.norm() * target.norm()) + VARIATION * rough).backward()
        steps.step()
    return x.detach()


def invert(own):
    rows, shown = [], {}
    for seed in own.seeds:
        data = dealt(seed)
        net = task(data)
        picked = torch.stack([data.train[client][0] for client in range(own.batch)])
        x, y = data.inputs[picked].flatten(1), data.labels[picked]
        w = net.init(seed).requires_grad_()
        update = gradient(w, net.parts, x, y).detach()
        targets = {"full update": update}
        for ratio in (1.0, 0.1, 0.01):
            targets[f"one bit, m/n = {ratio}"] = told(update, int(ratio * net.n), seed)
        targets["m/n = 0.1, seed unknown"] = told(update, int(0.1 * net.n), seed, False)
        shown.setdefault("the client's", x)
        for name, target in targets.items():
            found = inverted(w, net.parts, target, y, seed)
            match = [torch.corrcoef(torch.stack(pair))[0, 1].item() for pair in zip(found, x, strict=True)]
            rows.append({"seed": seed, "batch": own.batch, "from": name, "correlation": round(fmean(match), 4)})
            shown.setdefault(name, found)
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    drawn(shown, own.pictures)
    return {"runs": rows}


def drawn(shown, path):
    """A row of pictures for each way, those of the first seed."""
    from matplotlib.figure import Figure

    count = len(next(iter(shown.values())))
    figure = Figure(figsize=(1.1 * count + 2.2, 1.15 * len(shown)), layout="constrained")
    for row, (name, pictures) in enumerate(shown.items()):
        for column, picture in enumerate(pictures):
            axes = figure.add_subplot(len(shown), count, row * count + column + 1)
            axes.imshow(picture.view(28, 28).numpy(), cmap="gray")
            axes.set_xticks([])
            axes.set_yticks([])
            if not column:
                axes.set_ylabel(name.replace(", ", "\n"), rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(path, dpi=60)


def private(own, job):
    """One run with randomised response."""
    name, epsilon, seed = job
    torch.set_num_threads(1)
    data = dealt(seed)
    options = tomllib.loads(Path("recipes/mnist-attacks.toml").read_text())["options"][name]
    method = make(name, task(data), seed, **options, **({"epsilon": epsilon} if epsilon else {}))
    for done in simulate(method, data, rounds=own.rounds, seed=seed, device=own.device):
        last = done.progress
    m = method.m if name == "pfed1bs-delta" else method.sketch.m
    row = {"method": name, "epsilon": epsilon or None, "seed": seed, "rounds": own.rounds, "bits": m}
    if epsilon:
        row |= {"composed": round(composed(epsilon, own.rounds), 1), "kept": round(kept(epsilon, m), 5)}
        row["library"] = accounted(epsilon, m, own.rounds)
    return row | {kind: round(score.micro, 3) for kind, score in evaluate(method, data, last, seed=seed).items()}


def accounted(epsilon, m, rounds):
    """Epsilon of all rounds by dp-accounting's Renyi accountant; None where it is not installed."""
    try:
        rdp = import_module("dp_accounting.rdp")
    except ImportError:
        return None
    p = (1 - kept(epsilon, m)) / 2
    a, yes, no = 1 + 10 ** torch.linspace(-3, 3, 200).double(), log(1 - p), log(p)  # orders, and what a bit says
    each = torch.logaddexp(a * yes + (1 - a) * no, a * no + (1 - a) * yes) / (a - 1)
    return round(float(rdp.compute_epsilon(a.tolist(), (rounds * m * each).tolist(), DELTA)[0]), 1)


def accuracy(own):
    path, rows = Path(own.out), []
    if path.exists():
        rows = json.loads(path.read_text())["runs"]
    have = {(row["method"], row["epsilon"] or 0.0, row["seed"]) for row in rows if row["rounds"] == own.rounds}
    jobs = [(name, e, seed) for seed in own.seeds for e in EPSILONS for name in METHODS if (name, e, seed) not in have]
    with ProcessPoolExecutor(own.parallel, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(partial(private, own), job) for job in jobs]):
            rows.append(done.result())
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            write(own, {"runs": rows})
    return {"runs": sorted(rows, key=lambda row: (row["method"], -(row["epsilon"] or 1e9), row["seed"]))}


def figure(own):
    """Accuracy against the epsilon of a round; dashed: without noise."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = json.loads(Path(own.results).read_text())["runs"]
    with rc_context({"svg.hashsalt": "pfed1bs", "svg.fonttype": "none", "font.size": 9}):
        picture = Figure(figsize=(5, 3.5), layout="constrained")
        axes = picture.subplots()
        lines = [("pfed1bs-delta", "personal"), ("pfed1bs-delta", "global"), ("pfed1bs", "personal")]
        for (name, kind), colour in zip(lines, ("#d55e00", "#009e73", "#0072b2"), strict=True):
            mine = [row for row in rows if row["method"] == name]
            values = {e: [row[kind] for row in mine if (row["epsilon"] or 0) == e] for e in EPSILONS}
            shown = {e: found for e, found in sorted(values.items()) if e and found}
            error = [STUDENT.get(len(v), 2.0) * stdev(v) / sqrt(len(v)) if len(v) > 1 else 0 for v in shown.values()]
            label = f"{name}, {'own models' if kind == 'personal' else 'shared model'}"
            axes.errorbar([*shown], [fmean(v) for v in shown.values()], error, color=colour, label=label, capsize=2)
            axes.axhline(fmean(values[0.0]), color=colour, ls=(0, (4, 3)), lw=0.8)
        axes.set_xscale("log")
        axes.set_xlabel("epsilon of a round, delta = 1e-5 (log scale)")
        axes.set_ylabel("accuracy (%)")
        axes.legend(frameon=False)
        picture.savefig(own.out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def write(own, found):
    about = {**environment(getattr(own, "device", "cpu")), "command": shlex.join(["python", *sys.argv])}
    Path(own.out).write_text(text(about, found["runs"]))


def text(about, rows):
    """The file: what made it, means over seeds where runs were judged, and every run in a line."""
    parts = {"means": means(rows), "runs": rows} if "personal" in rows[0] else {"runs": rows}
    lists = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, found)) + "\n ]" for name, found in parts.items()]
    return ",\n".join([json.dumps(about, indent=1)[:-2], *lists]) + "\n}\n"


def means(rows):
    """Mean and deviation over seeds, by method and epsilon."""
    groups = {}
    for row in rows:
        groups.setdefault((row["method"], row["epsilon"]), []).append(row)
    found = []
    for (method, epsilon), own in groups.items():
        kinds = {kind: [row[kind] for row in own] for kind in ("personal", "global") if kind in own[0]}
        told = {kind: [fmean(values), stdev(values)] for kind, values in kinds.items() if len(values) > 1}
        found.append({"method": method, "epsilon": epsilon, "seeds": len(own), **told})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    for name in ("recover", "invert", "accuracy"):
        part = ways.add_parser(name)
        part.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[0, 1, 2])
        part.add_argument("--out", required=True)
        if name == "invert":
            part.add_argument("--batch", type=int, default=4)
            part.add_argument("--pictures", required=True)
        if name == "accuracy":
            part.add_argument("--rounds", type=int, default=100)
            part.add_argument("--device", default="auto")
            part.add_argument("--parallel", type=int, default=1)
    part = ways.add_parser("figure")
    part.add_argument("results")
    part.add_argument("--out", required=True)
    own = parser.parse_args()
    if own.way == "figure":
        figure(own)
        return
    torch.set_num_threads(1)
    write(own, {"recover": recover, "invert": invert, "accuracy": accuracy}[own.way](own))


if __name__ == "__main__":
    main()
