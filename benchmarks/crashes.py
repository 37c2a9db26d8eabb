"""Kill -9 at random instants of a simulated run and of a federation of processes: do they go on with the same bits?

    python benchmarks/crashes.py simulated --kills 50 --out results/crashes.json
    python benchmarks/crashes.py federation --kills 10 --seed 0 --out results/crashes.json
    python benchmarks/crashes.py federation --kills 10 --seed 1 --out results/crashes.json

A simulated run is a process of its own that is killed some milliseconds after a random round, or, every second time,
while the next checkpoint is being written. It goes on to its end, and all that is left in the folder is compared with a
run that nobody disturbed. A federation's server, a node or both are killed some seconds after a round was counted, once
it has done its first. All clients must answer in every round, so its end is that of the simulator. A file keeps the
kills of other seeds.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import flower_processes  # noqa: E402
from pfed1bs.cli.main import main as pfed1bs  # noqa: E402
from pfed1bs.engine.rounds import simulate  # noqa: E402
from pfed1bs.flower.settings import BELIEVED  # noqa: E402
from pfed1bs.runs import checkpoint  # noqa: E402
from pfed1bs.runs.config import load  # noqa: E402
from pfed1bs.runs.environment import environment  # noqa: E402
from pfed1bs.runs.run import Run, federation, method  # noqa: E402

METHODS = ("pfed1bs-delta", "pfed1bs", "ditto", "scaffold")
SMALL = "--clients 6 --sampled 3 --steps 3 --batch 16 --data.partition dirichlet:0.5 --data.cap 60".split()
ROUNDS = 24
SMALL += ["--evaluate_every", "4", "--threads", "1", "--rounds", str(ROUNDS)]
FLAGS = ["--clients", "3", "--data.partition", "labels:4", "--steps", "5", "--evaluate_every", "3"]
FLAGS += ["--algorithm.name", "pfed1bs-delta"]
DYING, LATE = ("server", "node", "both"), 15  # who is killed, and how many seconds after a round at most
ABOUT = ("commit", "processor", "cores", "threads", "python", "torch")
CHANGING = ("seconds", "command", "commit")  # of two runs that are the same


def simulated(kills, seed, port, keep):
    """Every kill with the bits of an undisturbed run afterwards?"""
    chance, found = random.Random(seed), []
    with tempfile.TemporaryDirectory() as home:
        data = federation(load(None, SMALL))
        whole = {name: undisturbed(Path(home) / f"whole-{name}", name, data) for name in METHODS}
        while len(found) < kills:
            i = len(found)
            name, out = METHODS[i // 2 % len(METHODS)], Path(home) / f"run{i}"
            words = [*SMALL, "--algorithm.name", name, "--checkpoint_every", str(chance.randrange(1, 4))]
            wait(begun(out, words, data), out, chance.randrange(-1, ROUNDS - 1), chance.random(), saving=i % 2)
            rounds = len(metrics(out))
            if not (out / "summary.json").exists():
                part = (out / "checkpoint.part").exists()
                _, status = os.waitpid(begun(out, words, data, resume=out.exists()), 0)
                same = status == 0 and left(out) == whole[name]
                found.append({"method": name, "lines": rounds, "while_saving": part, "same": same})
                print(found[-1], flush=True)
                keep(found)
            shutil.rmtree(out)
    return found


def metrics(out):
    return (out / "metrics.jsonl").read_bytes().splitlines() if (out / "metrics.jsonl").exists() else []


def wait(child, out, round, late, saving):
    """Kill a process some milliseconds after the line of a round, or while the next checkpoint is written."""
    while len(metrics(out)) <= round and not (out / "summary.json").exists():
        time.sleep(0.001)
    time.sleep(0.05 * late)
    while saving and not (out / "checkpoint.part").exists() and not (out / "summary.json").exists():
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def undisturbed(out, name, data):
    """What a run leaves that nobody disturbs."""
    _, status = os.waitpid(begun(out, [*SMALL, "--algorithm.name", name], data), 0)
    assert status == 0
    return left(out)


def begun(out, words, data, resume=False):
    """A process that does a run, begun as a copy of this one, which has everything imported already."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for _ in Run.prepare(load(None, [*words, "--out", str(out)]), samples=lambda _: data).rounds(resume):
            pass
        status = 0
    finally:
        os._exit(status)


def left(out):
    """All that a run leaves, but for times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    tensors, _ = checkpoint.read(out / "checkpoint.safetensors")
    return (
        [{key: value for key, value in line.items() if key not in CHANGING} for line in lines],
        {key: value for key, value in summary.items() if key not in CHANGING},
        {name: (value.dtype, value.shape, value.numpy().tobytes()) for name, value in tensors.items()},
        (out / "clients.csv").read_text(),
        not [*out.glob("*.part")],
    )


def federated(kills, seed, port, keep, rounds=7):
    """One federation after the other, each with as many kills as fall into it."""
    chance, found = random.Random(seed), []
    if port:
        flower_processes.free_ports = lambda count: range(port, port + count)
    expected = reference(rounds)
    while len(found) < kills:
        with tempfile.TemporaryDirectory() as home:
            dying = [DYING[i % len(DYING)] for i in range(len(found), min(len(found) + rounds - 2, kills))]
            fallen, same = one_federation(Path(home), chance, rounds, expected, dying)
        found += [{**one, "same": same} for one in fallen]
        print(*found[len(found) - len(fallen) :], sep="\n", flush=True)
        keep(found)
    return found


def one_federation(home, chance, rounds, expected, dying):
    """A federation, killed piece by piece after its first round: the kills, and whether its end is right."""
    assert pfed1bs(["flower", "init", str(home / "app"), *FLAGS]) == 0
    folder, fallen = home / "run", []
    keys = {"rounds": rounds, "out": str(folder), "timeout": 75.0, "wait": 60.0, "min_clients": 3, "attempts": 99}
    with flower_processes.Processes(home / "home") as processes:
        processes.superlink("--database", "state.db")
        for k in range(3):
            processes.supernode(k)
        processes.run(home / "app", **keys)
        for who in dying:
            goal = len(metrics(folder)) + 1
            processes.until("a round", lambda: len(metrics(folder)) >= goal, 900)  # noqa: B023
            late = chance.uniform(0, LATE)
            time.sleep(late)
            if (folder / "summary.json").exists():
                break
            fallen.append({"who": who, "rounds": len(metrics(folder)), "seconds": round(late, 1)})
            node = chance.randrange(3)
            for name in [*(["superlink"] if who != "node" else []), *([f"node{node}"] if who != "server" else [])]:
                processes.kill(name)
            if who != "node":
                processes.superlink("--database", "state.db")
            if who != "server":
                processes.supernode(node)
            if who != "node":
                processes.run(home / "app", resume=True, **keys)
        processes.until("the end", (folder / "summary.json").exists, 900)
        progress = checkpoint.read(folder / "checkpoint.safetensors")[0]
    server = {key.removeprefix("server/"): value for key, value in progress.items() if key.startswith("server/")}
    lines = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    same = server.keys() == expected.keys() and all(torch.equal(server[name], expected[name]) for name in expected)
    return fallen, same and lines == [*range(rounds)]


def reference(rounds):
    """The server's state after the same rounds in the simulator."""
    bounds = [word for key, value in BELIEVED.items() for word in (f"--{key}", str(value))]
    config = load(None, [*FLAGS, *bounds, "--rounds", str(rounds)])
    data = federation(config)
    algorithm = method(config, data.shape, data.num_classes)
    *_, last = simulate(algorithm, data, rounds=rounds, steps=5, trust=config.trust)
    return last.progress.server


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("simulated", "federation"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ports", type=int, default=0, help="the first of nine ports; 0: free ones")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python benchmarks/crashes.py {given.what} --kills {given.kills} --seed N"

    about = {key: value for key, value in environment("cpu").items() if key in ABOUT}

    def keep(found):
        if given.out:
            content = json.loads(given.out.read_text()) if given.out.exists() else {}
            before = content.get(given.what, {}).get("kills", [])
            kills = [one for one in before if one.get("seed") != given.seed] + [
                {"seed": given.seed, **one} for one in found
            ]
            same = sum(one["same"] for one in kills)
            content[given.what] = {"command": command, **about, "same": same, "kills": kills}
            given.out.write_text(json.dumps(content, indent=1) + "\n")

    run = simulated if given.what == "simulated" else federated
    found = run(given.kills, given.seed, given.ports, keep)
    print(f"{sum(one['same'] for one in found)} of {len(found)} with the same bits")
    return not all(one["same"] for one in found)


if __name__ == "__main__":
    sys.exit(main())
