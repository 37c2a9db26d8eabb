"""The same rounds in Flower's simulation on Ray and in our simulator: seconds per round, and whether the bits agree.

It needs a virtual environment with Ray, and takes about a minute:

    python3 -m venv ray && ray/bin/pip install -c constraints.txt 'torch==2.13.0' '.[ray,data]'
    ray/bin/python benchmarks/flower_simulation.py --out results/flower-simulation.json

The first round starts Ray and imports torch in its actors; only the later ones count. benchmarks/flower_ray.py measures
Flower with FedAvg as Flower's own users would write it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from flower_processes import Processes  # noqa: E402
from pfed1bs.cli.main import main as pfed1bs  # noqa: E402
from pfed1bs.core.origin import commit  # noqa: E402
from pfed1bs.engine.rounds import simulate  # noqa: E402
from pfed1bs.flower.serving import Folder  # noqa: E402
from pfed1bs.flower.states import Shelf  # noqa: E402
from pfed1bs.runs import checkpoint  # noqa: E402
from pfed1bs.runs.config import load  # noqa: E402
from pfed1bs.runs.folder import identity  # noqa: E402
from pfed1bs.runs.run import federation, method  # noqa: E402

CLIENTS, ROUNDS = 20, 8
FLAGS = ["--clients", str(CLIENTS), "--rounds", str(ROUNDS)]


def on_ray(home):
    """Seconds of the rounds, the folder of the run and that of the clients' states."""
    pfed1bs(["flower", "init", str(home / "app"), *FLAGS])
    folder, states = home / "run", home / "states"
    with Processes(home / "home") as processes:
        processes.superlink("--simulation")
        size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus={os.cpu_count()}"
        processes.run(home / "app", "--federation-config", size, out=str(folder), state=str(states))
        processes.until("the end", (folder / "summary.json").exists, 120)
    return [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()], folder, states


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    config = load(None, FLAGS)
    with tempfile.TemporaryDirectory() as home:
        ray, folder, states = on_ray(Path(home))
        progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
        name = Folder(folder, config).federation
        shelves = [Shelf.of(states, name, k, identity(config)) for k in range(CLIENTS)]
        models = torch.cat([shelf.states()[ROUNDS - 1]["w"] for shelf in shelves])
    data = federation(config)
    rounds = list(simulate(method(config, data.shape, data.num_classes), data, rounds=ROUNDS))
    theirs = rounds[-1].progress
    result = {
        "command": "python benchmarks/flower_simulation.py",
        "commit": commit(),
        "cores": os.cpu_count(),
        "work": f"pfed1bs on digits, {CLIENTS} clients, 10 steps of batch 64",
        "ray_seconds_per_round": statistics.median(ray[1:]),
        "our_seconds_per_round": statistics.median(done.seconds for done in rounds[1:]),
        "same_consensus": torch.equal(progress.server["consensus"], theirs.server["consensus"]),
        "same_models": torch.equal(models, theirs.clients["w"]),
    }
    print(json.dumps(result, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
