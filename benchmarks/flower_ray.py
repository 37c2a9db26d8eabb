"""Client-steps per second of FedAvg on 20 MLP clients in Flower's simulation on Ray, as in benchmarks/simulator.py.

It needs a virtual environment of its own, because Ray and Flower pin many packages; the variables keep it off the net:

    python3 -m venv flower && flower/bin/pip install torch==2.13.0 'flwr[simulation]==1.41.0'
    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
    export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flower/bin/python benchmarks/flower_ray.py --rounds 8 --out results/flower.json

Two actors of one core each. The first rounds start Ray and import torch in the actors; only the later ones count. With
`--wait` it runs a round whenever a line comes in, and answers with its seconds: so simulator.py --flower measures it in
turns with the others. While it waits, Ray's processes are idle.
"""

import argparse
import json
import os
import statistics
import sys
import time
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F

LR, CLIENTS, SAMPLES, STEPS = 0.05, 20, 600, 20
WARM = 2  # rounds that do not count
STARTED: list[float] = []  # when each round began, at the server
ANSWER = "round seconds"  # what a line of --wait begins with

client = ClientApp()
server = ServerApp()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


@cache
def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SAMPLES, 784, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)


@client.train()
def train(message: Message, context: Context) -> Message:
    """R steps of SGD from the weights received."""
    torch.set_num_threads(1)  # the actor's one core
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = samples(int(context.node_config["partition-id"]))
    for rows in torch.randint(SAMPLES, (STEPS, int(os.environ["BENCHMARK_BATCH"]))):
        optimiser.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimiser.step()
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
    return Message(content=RecordDict(records), reply_to=message)


def answer() -> None:
    """Say how long the round took that has ended, if somebody waits for it."""
    if "BENCHMARK_WAIT" in os.environ and len(STARTED) > WARM:
        print(ANSWER, time.perf_counter() - STARTED[-1], flush=True)


class Timed(FedAvg):
    """FedAvg that notes when rounds begin and does without no client."""

    def configure_train(self, *arguments, **named):
        answer()
        if "BENCHMARK_WAIT" in os.environ and len(STARTED) >= WARM:
            input()
        STARTED.append(time.perf_counter())
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) < CLIENTS:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[:1]}")
        return super().aggregate_train(server_round, replies)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    rounds = int(os.environ["BENCHMARK_ROUNDS"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=rounds)
    answer()
    STARTED.append(time.perf_counter())


def report(started: list[float], batch: int, out: str | None) -> None:
    seconds = [after - before for before, after in zip(started[WARM:], started[WARM + 1 :], strict=False)]
    best, middle = CLIENTS * STEPS / min(seconds), CLIENTS * STEPS / statistics.median(seconds)
    print(f"batch {batch}: {best:.0f} client-steps/s (median {middle:.0f}) in {len(seconds)} rounds")
    if out:
        facts = {"command": " ".join(["python", *sys.argv]), "batch": batch, "cores": os.cpu_count()}
        with open(out, "w") as file:
            json.dump({**facts, "client_steps_per_second": best, "median": middle, "seconds": seconds}, file, indent=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--wait", action="store_true", help="run a round for every line of standard input")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if options.wait:
        os.environ["BENCHMARK_WAIT"] = "1"
    os.environ |= {"BENCHMARK_BATCH": str(options.batch), "BENCHMARK_ROUNDS": str(options.rounds)}
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the actors import this file, so that their data stays
    import flower_ray as app

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app=app.server, client_app=app.client, num_supernodes=CLIENTS, backend_config=backend)
    report(app.STARTED, options.batch, options.out)
