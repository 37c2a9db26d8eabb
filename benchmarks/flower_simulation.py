"""The same rounds in Flower's simulation on Ray and in our simulator: seconds per round, and whether the bits agree.

It needs a virtual environment with Ray, and takes about a minute:

    python3 -m venv ray && ray/bin/pip install -c constraints.txt 'torch==2.13.0' '.[ray,data]'
    ray/bin/python benchmarks/flower_simulation.py --out results/flower-simulation.json
    ray/bin/python benchmarks/flower_simulation.py --nodes 2 --out results/flower-cluster.json

With `--nodes` the clients are spread over a Ray cluster of so many nodes, all on this machine, each of which has room
for one client at a time, so that every node computes; Flower joins the cluster by its address.

The first round starts Ray and imports torch in its actors; only the later ones count. benchmarks/flower_ray.py measures
Flower with FedAvg as Flower's own users would write it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from flower_processes import BIN, Processes, free_ports  # noqa: E402
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
FLAGS = ["--algorithm.name", "pfed1bs", "--clients", str(CLIENTS), "--rounds", str(ROUNDS)]


def told(words):
    """What a command prints."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def cluster(processes, nodes):
    """The address of a Ray cluster of so many nodes, each with one core."""
    [port] = free_ports(1)
    address, common = f"127.0.0.1:{port}", ["--num-cpus", "1", "--block", "--disable-usage-stats"]
    head = ["--head", "--port", str(port), "--node-ip-address", "127.0.0.1", "--include-dashboard", "false"]
    words = [f"{BIN}/ray", "status", "--address", address]
    for number in range(nodes):
        processes.start(f"ray{number}", [f"{BIN}/ray", "start", *(["--address", address] if number else head), *common])
        processes.until(f"node {number}", lambda wanted=number + 1: told(words).count(" node_") >= wanted, 120)
    return address


def on_ray(home, nodes):
    """Seconds of the rounds, the folder of the run and that of the clients' states."""
    pfed1bs(["flower", "init", str(home / "app"), *FLAGS])
    folder, states = home / "run", home / "states"
    with Processes(home / "home") as processes:
        size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
        if nodes:
            processes.env["RAY_ADDRESS"] = cluster(processes, nodes)  # a cluster has its own number of cores
        else:
            size += f" init-args-num-cpus={os.cpu_count()}"
            processes.env["RAY_TMPDIR"] = str(home)  # a Ray that was killed leaves an address that the next would join
        processes.superlink("--simulation")
        processes.run(home / "app", "--federation-config", size, out=str(folder), state=str(states))
        processes.until("the end", (folder / "summary.json").exists, 500)
    return [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()], folder, states


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=0, help="of a Ray cluster; 0: no cluster")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        ray, folder, states = on_ray(Path(home), options.nodes)
        config = load(str(folder / "config.toml"))
        progress = checkpoint.load(folder / "checkpoint.safetensors", identity(config))
        name = Folder(folder, config).federation
        shelves = [Shelf.of(states, name, k, identity(config)) for k in range(CLIENTS)]
        models = torch.cat([shelf.states()[ROUNDS - 1]["w"] for shelf in shelves])
    data = federation(config)
    method_of = method(config, data.shape, data.num_classes)
    rounds = list(simulate(method_of, data, rounds=ROUNDS, trust=config.trust, device="cpu"))
    theirs = rounds[-1].progress
    result = {
        "command": " ".join(["python", *sys.argv]),
        "nodes": options.nodes or 1,
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
