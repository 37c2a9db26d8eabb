"""What sending differences saves pfed1bs on MNIST, and what coding costs: total bytes of 100 rounds with headers.

Plain and coded runs go side by side and must agree on every bit of every consensus. Times are the best of several, on
one thread, in turn with a transform of 2^21.

    python benchmarks/differences.py --root DATA --out results/differences.json
"""

import argparse
import time

import torch
from told import tell

from pfed1bs import Task, build, federate, hadamard, load, make, pack, simulate, stream
from pfed1bs.wire.codecs import Differences

SETTINGS = [("dirichlet:0.3", None), ("dirichlet:0.3", 100), ("labels:2", None)]  # partition, cap
COUNT, LOG2 = 1_500_000, 21


def saved(dataset, partition, cap, seed, rounds):
    """Bytes of both forms over the same rounds."""
    data = federate(dataset, 20, partition, cap=cap, seed=seed)
    task = Task(build("mlp", data.shape, data.num_classes))
    runs = [
        simulate(make("pfed1bs", task, seed, code=code), data, rounds=rounds, seed=seed)
        for code in ("plain", "entropy")
    ]
    sent = [0, 0]
    for pair in zip(*runs, strict=True):
        if not torch.equal(*(done.progress.server["consensus"] for done in pair)):
            raise SystemExit(f"error: the consensus of round {pair[0].number} differs")
        sent = [total + done.traffic.up + done.traffic.down for total, done in zip(sent, pair, strict=True)]
    return {
        "partition": partition,
        "cap": cap,
        "seed": seed,
        "rounds": rounds,
        "plain_bytes": sent[0],
        "differences_bytes": sent[1],
        "ratio": round(sent[0] / sent[1], 2),
    }


def cost(share):
    """Milliseconds of one message with this share of differences."""
    generator = stream(0, "differences")
    known = torch.randn(COUNT, generator=generator).sign()
    signs = torch.where(torch.rand(COUNT, generator=generator) < share, -known, known)
    code, held, new = Differences(COUNT), pack(known), pack(signs)
    message = code.encode(new, held)
    x, out = torch.randn(1 << LOG2, generator=generator), torch.zeros(1 << LOG2)
    calls = [lambda: hadamard(x, out=out), lambda: code.encode(new, held), lambda: code.packed(message, held)]
    best = [float("inf")] * 3
    for _ in range(30):
        for i, call in enumerate(calls):
            began = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - began)
    names = ("transform_ms", "encode_ms", "decode_ms")
    return {"differences": share, "bits": COUNT, "bytes": len(message)} | {
        name: round(1e3 * seconds, 3) for name, seconds in zip(names, best, strict=True)
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=None)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", default=None)
    own = parser.parse_args()
    torch.set_num_threads(1)
    costs = [cost(share) for share in (0.0002, 0.002, 0.02)]
    dataset = load("mnist", own.root)
    rows = [saved(dataset, *setting, int(seed), own.rounds) for setting in SETTINGS for seed in own.seeds.split(",")]
    tell({"coding": costs, "runs": rows}, own.out)


if __name__ == "__main__":
    main()
