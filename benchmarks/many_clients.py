"""What a round costs with many clients: 100 of 1,000 or of 100,000 MLPs, and 2 of 1,000 VGG16, in each.

    OMP_NUM_THREADS=1 python benchmarks/many_clients.py --out results/many-clients.json

Clients draw their samples (`synthetic`), states beyond 64 MiB are rows in files. One process for each case, one thread,
5 steps of batch 16 (VGG16: 1 of batch 4). `round` is the processor's time, median of the rounds after the first two,
`growth` that of a case to that of the fewest clients, measured in turns, round by round in processes side by side.
`memory` is the peak of the process, `rows` how many clients have states of their own, `files` the bytes of their rows,
`checkpoint` the bytes that a checkpoint adds to them.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from peers import record

from pfed1bs.algorithms import make
from pfed1bs.data.synthetic import synthetic
from pfed1bs.engine.rounds import simulate
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs import checkpoint

CASES = [(name, "mlp", clients) for name in ("pfed1bs", "pfed1bs-delta") for clients in (1_000, 100_000)]
CASES.append(("pfed1bs", "vgg16", 1_000))
SIZES = {
    "mlp": {"shape": "synthetic", "rounds": 6, "sampled": 100, "steps": 5, "batch": 16},
    "vgg16": {"shape": "synthetic:3x32x32", "rounds": 2, "sampled": 2, "steps": 1, "batch": 4},
}


def worker(name: str, model: str, clients: int) -> None:
    """Do a round for every line that comes in, and say what it took; then what all came to."""
    torch.set_num_threads(1)
    size = {**SIZES[model]}
    data = synthetic(size.pop("shape"), clients, "dirichlet:0.3")
    algorithm = make(name, Task(build(model, data.shape, data.num_classes)))
    with tempfile.TemporaryDirectory(dir="." if model == "vgg16" else None) as folder:
        states, path = Path(folder) / checkpoint.STATES, Path(folder) / "checkpoint.safetensors"
        rounds = simulate(algorithm, data, states=states, device="cpu", **size)
        for _ in range(size["rounds"]):
            input()
            began, clock = time.process_time(), time.perf_counter()
            done = next(rounds)
            print(json.dumps([time.process_time() - began, time.perf_counter() - clock]), flush=True)
        checkpoint.save(path, done.progress, "{}")
        facts = {
            "weights": algorithm.task.n,
            "rows": len(done.progress.clients.own),
            "files_mib": sum(file.stat().st_size for file in states.iterdir()) / 2**20,
            "checkpoint_mib": path.stat().st_size / 2**20,
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
    print(json.dumps(facts), flush=True)


def measured(cases: list[tuple[str, str, int]]) -> list[dict[str, object]]:
    """Some cases side by side, a round of each in turn."""
    words = [sys.executable, __file__, "--worker"]
    workers = [
        subprocess.Popen([*words, *map(str, case)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for case in cases
    ]
    times: list[list[list[float]]] = [[] for _ in cases]
    for _ in range(SIZES[cases[0][1]]["rounds"]):
        for one, own in zip(workers, times, strict=True):
            one.stdin.write("\n")
            one.stdin.flush()
            own.append(json.loads(one.stdout.readline()))
    results = []
    for (name, model, clients), own, one in zip(cases, times, workers, strict=True):
        late = own[2:] or own
        took, clock = (statistics.median(taken[i] for taken in late) for i in (0, 1))
        facts = {"algorithm": name, "model": model, "clients": clients, "round_seconds": took, "on_the_clock": clock}
        facts["growth"] = statistics.median(a[0] / b[0] for a, b in zip(late, times[0][2:] or times[0], strict=True))
        results.append(facts | json.loads(one.stdout.readline()))
        one.wait()
        print(*(f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in results[-1].items()))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=3)
    parser.add_argument("--only", help="one method and model, for example 'pfed1bs mlp'")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if options.worker:
        name, model, clients = options.worker
        worker(name, model, int(clients))
        return
    groups = dict.fromkeys((name, model) for name, model, _ in CASES if options.only in (None, f"{name} {model}"))
    results = [row for group in groups for row in measured([case for case in CASES if case[:2] == group])]
    record(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
