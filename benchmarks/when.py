"""When own models should rest: accuracy on spare training samples if every client had stopped by one rule or another.

    python benchmarks/when.py --data cifar10 --model vgg8 --cap 300 --seeds 102 --device cuda --out when.json

One run without rest for each algorithm and seed, judged on training samples that the cap leaves over, which nobody
trains on. Rules: the smoothed loss at the end of the shared model's local work falls below a level; the distance of the
own model from the shared one falls below a part of the longest it has had, or did so after two thirds of the rounds;
either. `averaged` has the accuracy of own models averaged over rounds. `--set` gives options to the algorithms that
have them. `--out` keeps rows of other runs.
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch
from spare import spared

from pfed1bs import Task, build, evaluate, federate, load, make, simulate
from pfed1bs.algorithms import algorithm_class
from pfed1bs.core.options import keys
from pfed1bs.engine.contract import model_of
from pfed1bs.engine.rest import LONGER, NEAR, smoothed
from pfed1bs.runs.config import Config
from pfed1bs.runs.environment import environment

LEVELS, NEARS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12), (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
SPARE = 100  # samples that a client's judge has at least
MEMORIES = (0.8, 0.95)  # weights of the rounds before in means of own models


def federation(own, seed):
    """Clients whose test samples are training samples beyond the cap."""
    mirrored = own.data.startswith("cifar")
    data = federate(
        load(own.data), own.clients, own.partition, "pooled", seed=seed, min_size=own.cap // 2 + SPARE, augment=mirrored
    )
    return spared(data, own.cap, SPARE)


def watched(method, data, own, seed):
    """Evaluations of one run, and by round and client the smoothed loss and the distance that is left."""
    rounds, accuracy, losses, left, means, averaged = [], [], [], [], {}, {memory: [] for memory in MEMORIES}
    loss, far = torch.full((own.clients,), -1.0), torch.zeros(own.clients)
    for done in simulate(method, data, rounds=own.rounds, batch=64, seed=seed, device=own.device):
        log = {name: value.cpu() for name, value in done.log.items()}
        loss = smoothed(loss, log.get("fit", log["loss"]))
        apart = log.get("apart", log.get("behind", torch.zeros(own.clients)))
        far = torch.maximum(far, apart)
        losses.append(loss)
        left.append(apart / far)
        means = {memory: mixed(means.get(memory), model_of(done.progress.clients), memory) for memory in MEMORIES}
        if (done.number + 1) % own.every == 0:
            score = evaluate(method, data, done.progress, seed=seed)["personal"]
            rounds.append(done.number + 1)
            accuracy.append(torch.as_tensor(score.clients, dtype=torch.float64))
            for memory, mean in means.items():
                there = replace(done.progress, clients={**done.progress.clients, **mean})
                averaged[memory].append(evaluate(method, data, there, seed=seed)["personal"].micro)
    return rounds, torch.stack(accuracy), torch.stack(losses), torch.stack(left), "apart" in log, averaged


def mixed(before, models, memory):
    """Models averaged over rounds, their statistics too."""
    if before is None:
        return {name: value.clone() for name, value in models.items()}
    return {name: memory * before[name] + (1 - memory) * value for name, value in models.items()}


def taken(on):
    """After how many rounds a rule (rounds, clients) first holds for each client; all of them, if it does not."""
    return torch.where(on.any(0), on.int().argmax(0) + 1, len(on))


def later(on, times):
    """The rule that holds after so many times the rounds that this one took."""
    return torch.arange(1, len(on) + 1)[:, None] >= times * taken(on)


def stopped(rounds, accuracy, shares, on):
    """Accuracy, mean and last round if every client's model stays as it is once the rule holds."""
    first = taken(on)
    nearest = (torch.tensor(rounds)[:, None] - first).abs().argmin(0)
    score = (accuracy[nearest, torch.arange(len(first))] * shares).sum()
    return [round(float(score), 2), round(float(first.float().mean())), int(first.max())]


def row(own, name, seed, about):
    """One run, and what every rule would have come to."""
    data = federation(own, seed)
    options = {key: float(value) for key, value in (item.split("=") for item in own.set) if key in known(name)}
    method = make(name, Task(build(own.model, data.shape, data.num_classes)), seed, lr=0.05, **options)
    rounds, accuracy, losses, left, follows, averaged = watched(method, data, own, seed)
    shares = torch.tensor([len(rows) for rows in data.test], dtype=torch.float64)
    shares /= shares.sum()
    mean = (accuracy * shares).sum(1)
    rules = {f"loss {level:g}": losses < level for level in LEVELS}
    if left.isfinite().all():  # an own model is held near the shared one
        rules |= {f"near {near:.2f}": left < near for near in NEARS}
        rules |= {f"near {near:.2f}, {LONGER:g} times": later(left < near, LONGER) for near in NEARS}
        rules |= {"as it is": later(left < NEAR, LONGER if follows else 1) | (losses < Config().rest / 2)}
    at = [number - 1 for number in rounds]
    curves = {"round": rounds, "accuracy": mean.tolist(), "loss": losses[at].mean(1).tolist()}
    curves |= {"left": left[at].mean(1).tolist()} if left.isfinite().all() else {}
    curves |= {f"averaged {memory:g}": values for memory, values in averaged.items()}
    setting = {"data": own.data, "model": own.model, "partition": own.partition, "cap": own.cap, "rounds": own.rounds}
    setting |= {"options": options} if options else {}
    found = {rule: stopped(rounds, accuracy, shares, on) for rule, on in rules.items()}
    best = [round(float(mean.max()), 2), rounds[int(mean.argmax())]]
    short = {key: [float(f"{value:.4g}") for value in values] for key, values in curves.items()}
    told = {"commit": about["commit"], "device": about["device"], "command": shlex.join(["python", *sys.argv])}
    return {**setting, "algorithm": name, "seed": seed, "best": best, "rules": found, **short, **told}


def known(name):
    """The options of an algorithm."""
    return keys(algorithm_class(name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, value in {"data": "mnist", "model": "mlp", "partition": "dirichlet:0.3", "device": "cpu"}.items():
        parser.add_argument(f"--{flag}", default=value)
    for flag, value in {"cap": 100, "clients": 20, "rounds": 220, "every": 10}.items():
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--algorithms", default="pfed1bs-delta,ditto,fedavg-ft")
    parser.add_argument("--seeds", default="100")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=NUMBER")
    parser.add_argument("--out", type=Path)
    own = parser.parse_args()
    about = environment(own.device)
    for seed in map(int, own.seeds.split(",")):
        for name in own.algorithms.split(","):
            found = row(own, name, seed, about)
            print(own.data, name, seed, "best", found["best"], json.dumps(found["rules"]), flush=True)
            if own.out:
                write(own.out, found)


def write(path, found):
    """The file with this row, in the place of one of the same setting."""
    same = ("data", "model", "partition", "cap", "rounds", "algorithm", "seed", "options")
    before = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [*(run for run in before if any(run.get(key) != found.get(key) for key in same)), found]
    lines = ",\n  ".join(map(json.dumps, sorted(runs, key=lambda run: [str(run.get(key)) for key in same])))
    what = json.dumps("accuracy, mean and last round if every client had stopped by a rule; see benchmarks/when.py")
    path.write_text(f'{{\n "what": {what},\n "runs": [\n  {lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
