"""What a second flip and transform before the sketch would gain: bias of the one-bit estimate, spiky and real updates.

    python benchmarks/spiky.py --out results/spiky.json

An estimate is Phi^T s sign(Phi x) with s = |Phi x|_2^2 / |Phi x|_1. `once` has Phi as pfed1bs-delta has it, one flip of
signs and one transform; `twice` has another flip and transform before it. The bias is |mean - x| / |x|, its square
estimated without the noise of the mean by two halves of the projections; `error` is the mean of |estimate - x|^2 /
|x|^2, which is (pi/2) n'/m - 1 or so; `peak` is max x_i^2 / |x|^2. Real updates are those of three clients of 20 with
100 samples of MNIST, Dirichlet 0.3, in several rounds of a run.
"""

import argparse
import json
import sys

import torch
from told import tell

from pfed1bs import Task, build, federate, load, make, sign, simulate, srht
from pfed1bs.algorithms.base.onebit import unbiased
from pfed1bs.core.sketch import Rotation
from pfed1bs.core.transform import padded

RATIO, ROUNDS, CLIENTS = 0.1, (1, 20, 60), 3


def estimate(x, round, twice):
    """One decoded sketch of x (n,)."""
    n = len(x)
    size, m = padded(n) if twice else n, max(1, int(RATIO * n))
    turn, phi = Rotation(size, 1, round), srht(size, m, 0, round)
    a = phi.forward(turn.forward(torch.nn.functional.pad(x, (0, size - n))) if twice else x)
    lifted = phi.adjoint(unbiased(a) * sign(a))
    return turn.backward(lifted)[:n] if twice else lifted


def measured(name, x, projections):
    """Bias and error of both kinds."""
    square, row = float(x.square().sum()), {"update": name, "n": len(x)}
    row["peak"] = round(float(x.abs().max() ** 2) / square, 5)
    for kind in ("once", "twice"):
        halves, error = [torch.zeros_like(x), torch.zeros_like(x)], 0.0
        for t in range(projections):
            found = estimate(x, t, kind == "twice")
            halves[t % 2] += found * 2 / projections
            error += float((found - x).square().sum()) / square / projections
        bias = float((halves[0] - x) @ (halves[1] - x)) / square
        row[kind] = {"bias_squared": round(bias, 5), "error": round(error, 3)}
    return row


def updates(data, seed):
    """Updates of some clients in some rounds, by name."""
    method = make("pfed1bs-delta", Task(build("mlp", data.shape, data.num_classes)), seed, lr=0.05, keep="ft")
    for done in simulate(method, data, rounds=max(ROUNDS), batch=64, seed=seed, device="cpu"):
        if done.number + 1 in ROUNDS:
            clients = done.progress.clients
            for client in range(CLIENTS):
                yield f"client {client}, round {done.number + 1}", clients["w"][client] - clients["theta"][client]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--projections", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    own = parser.parse_args()
    torch.set_num_threads(1)
    made = {"1, 0.7, then 0": [1, 0.7], "one spike": [1], "4 equal spikes": [1] * 4, "1, 1/2, 1/3, ...": range(1, 1025)}
    rows = []
    for name, values in made.items():
        x = torch.zeros(1024)
        x[: len(values)] = 1 / torch.tensor(list(values)) if "/" in name else torch.tensor(values, dtype=torch.float32)
        rows.append(measured(name, x, 10 * own.projections))
    data = federate(load("mnist"), 20, "dirichlet:0.3", "official", cap=100, seed=own.seed)
    for name, x in updates(data, own.seed):
        rows.append(measured(name, x, own.projections))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    tell({"ratio": RATIO, "runs": rows}, own.out)


if __name__ == "__main__":
    main()
