"""Run folders written by hand, for the tests of the report, and flags of runs that take a moment."""

import json

from pfed1bs import report

TINY = "--clients 3 --steps 1 --batch 4 --data.partition iid --data.cap 12 --rounds 2".split()  # later flags win
ENV = {"python": "3.11.9", "kernel": "native", "threads": 2, "command": "pfed1bs run"}
COMMAND = "pfed1bs compare --seeds 0,1"
BYTES = {"pfed1bs": (1000, 1024), "fedavg": (400_000, 400_000), "local": (0, 0)}


def round_of(algorithm, number, accuracy):
    up, down = BYTES.get(algorithm, (500, 500))
    once = 48 if up and not number else 0
    row = {"round": number, "up_bytes": up, "down_bytes": down, "broadcast_bytes": down // 2, "catch_up_bytes": 0}
    row |= {"side_bytes": 0, "once_bytes": once, "seconds": 0.5, "loss": 2.0 / (number + 1)}
    row |= {"agreement": 0.75, "flips": 0.125} if algorithm == "pfed1bs" else {}
    return row | ({"accuracy": accuracy, "accuracy_macro": accuracy - 1, "test_loss": 0.3} if number % 2 else {})


def run_folder(home, algorithm="pfed1bs", seed=0, accuracies=(50.25, 91.5), options="lr = 0.05", **summary):
    """Four rounds of two clients, judged after the second and the fourth."""
    folder = home / f"{len(list(home.iterdir())) if home.exists() else 0}"
    folder.mkdir(parents=True)
    name = json.dumps(algorithm)
    head = f"rounds = 4\nclients = 2\nsteps = 10\nbatch = 64\nseed = {seed}\n"
    tables = f'[data]\nname = "digits"\n[model]\nname = "mlp"\n[algorithm]\nname = {name}\n{options}\n'
    (folder / "config.toml").write_text(head + tables)
    (folder / "env.json").write_text(json.dumps(ENV))
    rows = [round_of(algorithm, number, accuracies[number // 2]) for number in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"0,30,10,{accuracies[-1]},0.3", "1,40,15,88.25,0.4"]
    (folder / "clients.csv").write_text("\n".join(["client,train_samples,test_samples,accuracy,loss", *lines]) + "\n")
    found = {"algorithm": algorithm, "dataset": "digits", "partition": "iid", "model": "mlp", "parameters": 17226}
    found |= {"clients": 2, "sampled": 2, "seed": seed, "rounds": 4, "seconds": 2.0, "command": COMMAND}
    found |= {"accuracy": accuracies[-1], "accuracy_macro": accuracies[-1] - 1, "mib_per_round": 0.0019302368}
    found |= {"total_mib": 0.0077667236, "ratio_to_fedavg": 0.0146871, **summary}
    (folder / "summary.json").write_text(json.dumps(found))
    return folder


def records_of(home, *algorithms):
    return [report.read(run_folder(home, algorithm)) for algorithm in algorithms]
