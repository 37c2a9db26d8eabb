"""The drop-in's example on Flower's simulation and on real processes, against the same nodes in one process.

The simulation needs a virtual environment with Ray; each takes a few minutes on two cores:

    python3 -m venv ray && ray/bin/pip install -c constraints.txt 'torch==2.13.0' '.[ray,data]'
    ray/bin/python benchmarks/dropin_runtimes.py simulation --out results/dropin-simulation.json
    ray/bin/python benchmarks/dropin_runtimes.py processes --nodes 3 --rounds 3 --out results/dropin-processes.json

examples/quickstart, before and after its two lines. Nodes draw by partition and round, and
the runs in one process have the node ids of the others, so that models may be compared bit by bit. The simulation
keeps what a node holds in Flower's context, the processes in files.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "quickstart")]
from dropin_grid import RUN, Desk, identity  # noqa: E402
from flower_processes import Processes  # noqa: E402
from pfed1bs.core.origin import commit  # noqa: E402

CONFIG = {"fraction-train": 1.0, "fraction-evaluate": 1.0, "epochs": 3, "lr": 0.05, "data": "digits"}
SEEDED = '''"""The example's apps; nodes draw by partition and round and say who they are; the server waits for all."""

import json
import time
from pathlib import Path

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from quickstart.client_appEND import app as inner
from quickstart.server_appEND import main as rounds

server = ServerApp()


class Seeded(ClientApp):
    def __call__(self, message, context):
        partition, out = int(context.node_config["partition-id"]), Path(str(context.run_config["out"]))
        out.with_name(f"{context.node_id}.node").write_text(str(partition))
        torch.manual_seed(100 * int(message.content["config"]["server-round"]) + partition)
        torch.set_num_threads(1)
        return inner(message, context)


@server.main()
def main(grid, context):
    while len([*grid.get_node_ids()]) < int(context.run_config["nodes"]):
        time.sleep(0.2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result, out = rounds(grid, context), Path(str(context.run_config["out"]))
    kinds = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    found = {kind: [dict(one) for one in getattr(result, kind).values()] for kind in kinds}
    out.with_suffix(".part").write_text(json.dumps(found))
    out.with_suffix(".part").rename(out.with_suffix(".json"))


client = Seeded()
'''


def app(home, end):
    """The example with seeded nodes, before (no end) or after two lines."""
    folder = home / f"app{end}"
    shutil.copytree(ROOT / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "quickstart" / f"seeded{end}.py").write_text(SEEDED.replace("END", end))
    text = (folder / "pyproject.toml").read_text()
    for side in ("server", "client"):
        text = text.replace(f"quickstart.{side}_app_onebit:app", f"quickstart.seeded{end}:{side}")
    (folder / "pyproject.toml").write_text(text + "nodes = 0\n")
    return folder


def on_flower(home, end, config, simulated):
    """The run on Flower's simulation, or on a SuperLink and SuperNodes; the folder of what it wrote."""
    out, folder = home / "out", app(home, end)
    out.mkdir()
    with Processes(home / "home") as processes:
        processes.env["RAY_TMPDIR"] = str(home)  # a Ray that was killed leaves an address that the next one would join
        words = [
            "--federation-config",
            f"num-supernodes={config['nodes']} client-resources-num-cpus=1 init-args-num-cpus=2",
        ]
        processes.superlink(*(["--simulation"] if simulated else []))
        for number in range(0 if simulated else config["nodes"]):
            processes.supernode(number)
        processes.run(folder, *(words if simulated else []), **config, out=str(out / "final.pt"))
        processes.until("the end", lambda: "Finished task" in processes.log("superlink"), 900)
    assert (out / "final.json").exists(), "the run has failed; `flwr log` would say why"
    return out


def in_process(home, end, config, whose):
    """The same nodes in this process; the folder of what it wrote."""
    out = home / "inside"
    out.mkdir()
    config = {**config, "out": str(out / "final.pt")}
    sys.path.insert(0, str(home / f"app{end}"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]
    seeded = import_module(f"quickstart.seeded{end}")
    sys.path.pop(0)
    desk = Desk(seeded.client, 0, config)
    for node, partition in whose.items():
        desk.contexts[node] = Context(RUN, node, {"partition-id": partition}, RecordDict(), config)
    with identity(1):
        seeded.main(desk, Context(RUN, 1, {}, RecordDict(), config))
    assert not desk.errors, desk.errors[0]
    return out


def read(out):
    """Accuracy, bytes and nodes that sat out, by round, and the model at the end."""
    found = json.loads((out / "final.json").read_text())
    exchanges = [*found["train_metrics_clientapp"], *found["evaluate_metrics_clientapp"]]
    own = ("up", "down", "full-up", "full-down", "lacking")
    sums = {name: sum(one.get(f"onebit-{name}", 0) for one in exchanges) for name in own}
    accuracy = [one["accuracy"] for one in found["evaluate_metrics_serverapp"]]
    return {"accuracy": accuracy, **sums}, torch.load(out / "final.pt")


def compared(end, config, simulated):
    """What a runtime found, and whether the same nodes in one process find the same."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:  # Ray's sockets need a short path
        home = Path(place)
        out = on_flower(home, end, config, simulated)
        whose = {int(path.stem): int(path.read_text()) for path in out.glob("*.node")}
        (theirs, model), (ours, other) = read(out), read(in_process(home, end, config, whose))
    same = all(torch.equal(model[name], other[name]) for name in model)
    return {**theirs, "same_model_in_process": same, "in_process": ours}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=["simulation", "processes"])
    parser.add_argument("--nodes", type=int, default=8, help="8 at most on processes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config, simulated = {**CONFIG, "nodes": options.nodes, "rounds": options.rounds}, options.runtime == "simulation"
    result = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "hardware": f"{os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("torch", "flwr", "ray")},
        "seeds": "100 * round + partition at the nodes, 0 for first models",
        "work": "examples/quickstart on digits, rounds of 3 epochs",
        "before": compared("", config, simulated),
        "after": compared("_onebit", config, simulated),
    }
    text = json.dumps(result, indent=1)
    print(text) if options.out is None else options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
