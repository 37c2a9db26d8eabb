"""Processor time that one message costs at a Flower client, which starts anew for each: what is imported, what is done.

    python benchmarks/flower_message.py --out results/flower-message.json

Every repetition is a process of its own, on one thread; seconds are the processor's, user and system, of that process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from pfed1bs.core.origin import commit
from pfed1bs.flower.resuming import flat
from pfed1bs.flower.settings import tables
from pfed1bs.runs.config import load
from pfed1bs.runs.environment import processor

FLAGS = "--clients 3 --data.partition labels:4 --algorithm.name pfed1bs-delta --out run".split()
CHILD = """
import json, sys, tempfile, time
marks = [("start", 0.0)]
def mark(name):
    marks.append((name, time.process_time()))
mark("python")
import flwr.app, flwr.clientapp
mark("import flwr")
import torch
mark("import torch")
import pfed1bs.flower.client_app
mark("import pfed1bs")
from pfed1bs.flower.client import Client
from pfed1bs.engine.rounds import begin, prepare
client = Client.of(json.loads(sys.argv[1]), {"partition-id": 0, "state": tempfile.mkdtemp()})
mark("configuration")
client.data, client.algorithm
mark("data and model")
now = begin(client.algorithm, client.config.clients)
news = [item.data for item in prepare(client.algorithm, now, client.data.sizes, 0, None).news[0]]
before = time.process_time()
client.answer("train", {"federation": "f", "base": -1, "round": 0, "news": news, "speak": True})
found = {name: end - begun for (_, begun), (name, end) in zip(marks, marks[1:])}
print(json.dumps({**found, "a round": time.process_time() - before}))
"""


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    own = parser.parse_args()
    values = json.dumps(flat(tables(load(None, FLAGS))))
    rows = []
    for _ in range(own.repeats):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, values], env=env, capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout))
    told = {name: [round(statistics.median(row[name] for row in rows), 3), *_range(rows, name)] for name in rows[0]}
    total = round(statistics.median(sum(row.values()) for row in rows), 3)
    found = {
        "command": "python benchmarks/flower_message.py",
        "commit": commit(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "repeats": own.repeats,
        "seed": 0,
        "work": "pfed1bs-delta, digits, mlp, 10 steps of batch 64",
        "processor_seconds": {"total": total, **{name: values[0] for name, values in told.items()}},
        "least_and_most": {name: values[1:] for name, values in told.items()},
    }
    print(json.dumps(found, indent=1))
    if own.out:
        own.out.write_text(json.dumps(found, indent=1) + "\n")


def _range(rows: list[dict[str, float]], name: str) -> list[float]:
    return [round(pick(row[name] for row in rows), 3) for pick in (min, max)]


if __name__ == "__main__":
    main()
