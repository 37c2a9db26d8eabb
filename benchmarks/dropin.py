"""The drop-in in an app of the usual kind: accuracy and serialised bytes before and after two lines.

    python benchmarks/dropin.py --epochs 3 --out results/dropin.json
    python benchmarks/dropin.py --seeds 0 --out 0.json; ...; python benchmarks/dropin.py --join 0.json 1.json --out ...

examples/quickstart on MNIST in one process, with Flower's own messages, contexts, strategies and apps: 20 nodes of 100
samples, 40 rounds. Bytes are those of Flower's serialised objects, training and evaluation together. A
seed takes about three minutes on a quiet core; seeds are run one after the other.
"""

import argparse
import json
import logging
import platform
import random
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev

import torch
from flwr.app import Context, RecordDict

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "quickstart")]
import pfed1bs  # noqa: E402
from dropin_grid import RUN, Desk, identity  # noqa: E402
from pfed1bs.core.origin import commit  # noqa: E402

NODES = 20
FAULTS = {"lost": 0.2, "restarts": 0.05}
SETTINGS = {  # name: after two lines?, share of nodes in a round, faults, a state folder?
    "fedavg, all": (False, 1.0, {}, False),
    "onebit, all": (True, 1.0, {}, False),
    "fedavg, all, faults": (False, 1.0, FAULTS, False),
    "onebit, all, faults": (True, 1.0, FAULTS, False),
    "fedavg, 5 of 20": (False, 0.25, {}, False),
    "onebit, 5 of 20": (True, 0.25, {}, False),
    "fedavg, 5 of 20, faults": (False, 0.25, FAULTS, False),
    "onebit, 5 of 20, faults": (True, 0.25, FAULTS, False),
    "onebit, 5 of 20, faults, state in files": (True, 0.25, FAULTS, True),
}


def judged(arrays, data):
    """Accuracy in percent on all test samples of MNIST that no node trains on."""
    net = import_module("quickstart.task").Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    rows = torch.cat(data.test)
    with torch.no_grad():
        found = torch.cat([net.eval()(data.inputs[part]).argmax(1) for part in rows.split(1000)])
    return 100 * float((found == data.labels[rows]).float().mean())


def run(setting, rounds, epochs, seed, data):
    """Accuracy and bytes of one run."""
    after, share, faults, folder = SETTINGS[setting]
    end = "_onebit" if after else ""
    config = {"rounds": rounds, "fraction-train": share, "fraction-evaluate": 0.1, "epochs": epochs, "lr": 0.05}
    config |= {"data": "mnist"}
    random.seed(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as place:
        node = {"state": place} if folder else {}
        desk = Desk(import_module(f"quickstart.client_app{end}").app, NODES, config, node, **faults, seed=seed)
        with identity(1):
            server = import_module(f"quickstart.server_app{end}")
            result = server.main(desk, Context(RUN, 1, {}, RecordDict(), config))
    assert not desk.errors, desk.errors[0]
    lacking = sum(int(found.get("onebit-lacking", 0)) for found in result.train_metrics_clientapp.values())
    found = {"accuracy": judged(result.arrays, data), "up": desk.up, "down": desk.down, "lacking": lacking}
    print(f"seed {seed}  {setting:42}", found, file=sys.stderr, flush=True)
    return found


def shared(runs):
    """Means over seeds, and what they are of FedAvg's under the same conditions."""
    table = {}
    for name, found in runs.items():
        plain = runs[name.replace("onebit", "fedavg").removesuffix(", state in files")]
        gaps = [one["accuracy"] - other["accuracy"] for one, other in zip(found, plain, strict=True)]
        table[name] = {
            "accuracy": mean(one["accuracy"] for one in found),
            "difference": mean(gaps),
            "differences": gaps,
            "difference_stdev": stdev(gaps) if len(gaps) > 1 else None,
            **{f"{way}_kB": mean(one[way] for one in found) / 1000 for way in ("up", "down")},
            **{f"{way}_1_in": sum(o[way] for o in plain) / sum(o[way] for o in found) for way in ("up", "down")},
        }
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--join", type=Path, nargs="+", help="results of other seeds, instead of running")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if options.join:
        parts = [json.loads(path.read_text()) for path in options.join]
        seeds, runs = sum((part["seeds"] for part in parts), []), {}
        for name in SETTINGS:
            runs[name] = sum((part["runs"][name] for part in parts), [])
    else:
        seeds = [*map(int, options.seeds.split(","))]
        data = pfed1bs.federate(pfed1bs.load("mnist"), NODES, "iid", cap=100)
        runs = {name: [run(name, options.rounds, options.epochs, seed, data) for seed in seeds] for name in SETTINGS}
    found = {
        "command": f"python benchmarks/dropin.py --seeds {','.join(map(str, seeds))} --rounds {options.rounds} "
        f"--epochs {options.epochs}",
        "commit": commit(),
        "hardware": f"{platform.machine()}, one thread",
        "versions": {"torch": torch.__version__, "flwr": import_module("importlib.metadata").version("flwr")},
        "seeds": seeds,
        "weights": 44_426,
        "table": shared(runs),
        "runs": runs,
    }
    text = json.dumps(found, indent=1)
    print(text) if options.out is None else options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
