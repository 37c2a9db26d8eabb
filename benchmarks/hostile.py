"""Hundreds of hostile messages really sent: modified nodes with registered keys against a federation of processes.

    python benchmarks/hostile.py --out results/hostile.json

Three SuperNodes do honest work behind the gate of a SuperLink. Forty more nodes have keys too, introduce themselves
well and then answer what they like; four others do not even do that. At first all answers must be refused, and the end
must be that of a federation without them, bit for bit. Then the server goes on (resume=true) with one client whose
messages are valid lies, and goes on once more without any. benchmarks/hostile_end.py judges what is left.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from hostile_end import judged  # noqa: E402
from modified_node import MB, UNSENT, Node, evaluate_kinds, honest_message, query_kinds, scaled, train_kinds  # noqa: E402

from flower_desk import Desk  # noqa: E402
from flower_processes import Processes, descendants  # noqa: E402
from pfed1bs.cli.main import main as pfed1bs  # noqa: E402
from pfed1bs.flower.settings import BELIEVED, GUARD  # noqa: E402
from pfed1bs.runs.environment import environment  # noqa: E402

HONEST, HOSTILE, STRANGERS = 3, 40, 4
CLIENTS, TIMEOUT, CAP = HONEST + HOSTILE, 120.0, 100_000
ROUNDS, LIES = 5, (1e30, 3.4e38)  # rounds of refused messages; scales that are finite, one round each
FLAGS = ["--clients", str(CLIENTS), "--data.partition", "labels:4", "--steps", "5", "--evaluate_every", "100"]
RUN = {
    "algorithm.name": "pfed1bs-delta",
    "clients": CLIENTS,
    "data.partition": "labels:4",
    "steps": 5,
    "evaluate_every": 100,
    **BELIEVED,
    **{f"algorithm.{key}": value for key, value in GUARD.items()},  # as in a generated app
}
ABOUT = ("commit", "processor", "cores", "threads", "python", "torch", "time")


class Plot:
    """What each hostile client answers to each question."""

    def __init__(self, algorithm):
        self.algorithm, self.noise, self.lying, self.heavy = algorithm, random.Random(0).randbytes, False, 2
        self.lock = threading.Lock()

    def __call__(self, client, question, content):
        round = content.get("round", 0)
        if self.lying:
            return (*self.lie(client, question, round), 1, 0)
        if question == "query":
            samples = {"partition": client, "samples": 50, "held": []}
            kinds = query_kinds(client)
            kind = [*kinds][client % len(kinds)] if client >= CLIENTS else ""
            return kind, kinds.get(kind, samples), 1, 0
        place = client - HONEST
        if question == "evaluate":
            kinds = evaluate_kinds(client, round)
            kind = [*kinds][place % len(kinds)]
            return kind, kinds[kind], 1, 0
        good = honest_message(self.algorithm, round, 50)
        if place == 0 and round < 2:
            return "asleep until it is too late", {"partition": client, "round": round, "up": good}, 1, TIMEOUT + 10
        if place == 1 and round == 0:
            return "200 MB", {"partition": client, "round": round, "up": good + bytes(200 * MB)}, 1, 0
        if place == 1 and round == 1:
            return UNSENT, {"partition": client, "round": round, "up": good}, 1, 0
        kinds = train_kinds(client, round, good, self.noise)
        kind = [*kinds][(round * HOSTILE + place) % len(kinds)]
        with self.lock:
            self.heavy -= kind == "60 MB"
            if kind == "60 MB" and self.heavy < 0:
                kind = "random bytes"
        return kind, kinds[kind], 2 if place == 2 else 1, 0

    def lie(self, client, question, round):
        """Valid in every respect, and false."""
        if question == "query":
            return "count at the cap", {"partition": client, "samples": CAP, "held": []}
        if question == "evaluate":
            said = {"score/personal": [0.0, CAP, 1e6], "score/global": [0.0, CAP, 1e6]}
            return "all of 100,000 samples wrong", {"partition": client, "round": round, **said}
        scale = LIES[(round - ROUNDS) % len(LIES)]
        up = scaled(honest_message(self.algorithm, round, CAP), scale)
        said = {"partition": client, "round": round, "up": up, "log/loss": [3e38], "log/rest": [0.0]}
        return f"scale {scale:g}, signs all +", said


class Watch(threading.Thread):
    """The most memory that the processes of the server have had, in MiB."""

    def __init__(self, processes):
        super().__init__(daemon=True)
        self.processes, self.most, self.leave = processes, {}, threading.Event()

    def run(self):
        while not self.leave.wait(0.5):
            for name in ("superlink", "gate"):
                if process := self.processes.running.get(name):
                    self.look(name, process.pid)
                    for child in descendants(process.pid):
                        self.look("", child)

    def look(self, name, number):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
            status = Path(f"/proc/{number}/status").read_text()
        except OSError:
            return
        name = name or next((Path(word).name for word in words[1:] if "flower" in word or "flwr" in word), "")
        found = re.search(r"VmHWM:\s+(\d+)", status)
        if name and found:
            self.most[name] = max(self.most.get(name, 0), int(found[1]) >> 10)


def register(processes, keys):
    """Tell the SuperLink of all keys, as `flwr supernode register` does."""
    os.environ["FLWR_HOME"] = str(processes.home)
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import RegisterNodeRequest

    control = init_http_client_from_connection(read_superlink_connection("it"))
    for i in range(CLIENTS + STRANGERS):
        control.RegisterNode(request=RegisterNodeRequest(public_key=try_load_public_key(keys / f"node{i}.pub")))
    control.close()


def attacked(home, plot):
    """The three runs of the federation, and what was sent, in files."""
    keys, folder = home / "keys", home / "run"
    assert pfed1bs(["flower", "init", str(home / "app"), *FLAGS]) == 0
    hosts = ["--hosts", "127.0.0.1,127.0.0.2", "--nodes", str(CLIENTS + STRANGERS)]
    assert pfed1bs(["flower", "certificates", str(keys), *hosts]) == 0
    with Processes(home / "home", keys) as processes:
        processes.superlink()
        processes.gate()
        register(processes, keys)
        watch = Watch(processes)
        watch.start()
        for k in range(HONEST):
            processes.supernode(k)
        where = f"127.0.0.2:{processes.port}"
        nodes = [Node(k, keys, where, plot) for k in range(HONEST, CLIENTS + STRANGERS)]
        for node in nodes[:HOSTILE]:
            node.start()
        rules = {"out": str(folder), "timeout": TIMEOUT, "wait": 90.0}
        # Who comes first has the place of a client: strangers come when all have theirs.
        done(processes, home / "app", folder, ROUNDS, nodes[HOSTILE:], **rules)
        for k in range(HONEST):
            shutil.copytree(home / "home" / f"state{k}", home / "kept" / f"state{k}")
        plot.lying = True
        for node in nodes[1:]:
            node.leave.set()
        for node in nodes[1:]:
            node.join(60)
        done(processes, home / "app", folder, ROUNDS + len(LIES), resume=True, **rules)
        nodes[0].leave.set()
        nodes[0].join(60)
        done(processes, home / "app", folder, ROUNDS + len(LIES) + 1, resume=True, **rules)
        alive = all(processes.running[name].poll() is None for name in ("superlink", "gate"))
        watch.leave.set()
        watch.join(5)
    sent = [line for node in nodes for line in node.sent]
    (home / "sent.json").write_text(json.dumps({"sent": sent, "alive": alive, "peak_mib": watch.most}))


def done(processes, app, folder, rounds, late=(), **keys):
    """A run to its end, and a copy of the server's state there; some nodes come after its first round."""
    began, events = time.time(), folder / "events.log"
    processes.run(app, rounds=rounds, **keys)
    processes.until("a round", lambda: events.exists() and "round 0: counted" in events.read_text(), 1200)
    for node in late:
        node.start()
    summary = folder / "summary.json"
    processes.until(f"{rounds} rounds", lambda: summary.exists() and summary.stat().st_mtime > began, 2400)
    shutil.copy(folder / "checkpoint.safetensors", folder / f"after-{rounds}.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--home", type=Path, help="a folder for the federation that is kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {key: value for key, value in environment("cpu").items() if key in ABOUT}
    with tempfile.TemporaryDirectory() as place:
        home = given.home or Path(place)
        if not (home / "sent.json").exists():
            attacked(home, Plot(Desk(RUN, home).algorithm))
        result = {"command": "python benchmarks/hostile.py", **about, **judged(home, RUN, (HONEST, ROUNDS, len(LIES)))}
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return not result["good"]


if __name__ == "__main__":
    sys.exit(main())
