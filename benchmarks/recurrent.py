"""One step of SGD of K character models with a GRU: stacked, against a plain PyTorch loop over the clients.

    python benchmarks/recurrent.py [--out results/recurrent.json]

Both take the same steps on two threads, in turns: the fastest of each by the clock, and the least processor time, which
says more on cores that others use too. The plain loop is one torch.nn.Module per client with autograd and
torch.optim.SGD. Stacked steps are divided among the threads as the simulator divides clients. Threads that wait do not
spin.
"""

import argparse
import copy
import json
import os
from pathlib import Path
from time import perf_counter, process_time

os.environ |= {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}

import torch
from torch.nn import functional as F

from pfed1bs.core.origin import commit
from pfed1bs.core.rng import stream
from pfed1bs.engine.workers import portions, spread
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.environment import processor

LETTERS, LENGTH = 71, 64
CASES = [(10, 4), (20, 4), (20, 20)]  # clients, samples in a step


def measured(clients, batch, repeats, steps=1):
    """Milliseconds of a step of all clients in both ways, and how far their losses are apart."""
    model = build("gru", (LENGTH,), LETTERS)
    task = Task(model)
    w = task.init(0).expand(clients, -1).clone()
    x, y = (torch.randint(LETTERS, (clients, batch, LENGTH), generator=stream(0, name)) for name in "xy")
    plain = [copy.deepcopy(model) for _ in range(clients)]
    for one in plain:
        one.load_state_dict({part.name: w[0, part.slice].view(part.shape) for part in task.parts})
    optimisers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in plain]

    def stacked():
        def work(at):
            own, losses = w[at].clone(), None
            for _ in range(steps):
                own, losses, _ = task.descend(own, x[at], y[at], {}, 0.1, out=own)
            return losses

        return torch.cat(spread(work, portions(clients, None)))

    def loop():
        losses = []
        for k, (one, optimiser) in enumerate(zip(plain, optimisers, strict=True)):
            for _ in range(steps):
                loss = F.cross_entropy(one(x[k]).flatten(0, 1), y[k].flatten())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    apart = float((stacked() - loop()).abs().max())
    times = {stacked: [], loop: []}
    for _ in range(repeats):
        for way, found in times.items():
            began = perf_counter(), process_time()
            way()
            found.append(
                [
                    (end - start) / steps * 1e3
                    for start, end in zip(began, (perf_counter(), process_time()), strict=True)
                ]
            )
    least = {way.__name__: [round(min(clock), 1) for clock in zip(*found, strict=True)] for way, found in times.items()}
    rows = {
        f"{name}_{clock}": value
        for name, both in least.items()
        for clock, value in zip(("wall", "cpu"), both, strict=True)
    }
    ratios = {clock: round(rows[f"loop_{clock}"] / rows[f"stacked_{clock}"], 2) for clock in ("wall", "cpu")}
    return rows | {f"ratio_{clock}": ratio for clock, ratio in ratios.items()} | {"losses_apart": apart}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(2)
    rows = []
    for clients, batch in CASES:
        rows.append({"clients": clients, "batch": batch, **measured(clients, batch, given.repeats)})
        print(rows[-1], flush=True)
    if given.out:
        facts = {"command": "python benchmarks/recurrent.py", "commit": commit(), "torch": torch.__version__}
        where = {
            "processor": processor(),
            "threads": 2,
            "load": round(os.getloadavg()[0], 1),
            "unit": "ms a step of all clients, least of the repeats",
        }
        Path(given.out).write_text(
            json.dumps({**facts, **where, "repeats": given.repeats, "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
