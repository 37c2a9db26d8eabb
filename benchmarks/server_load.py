"""What a round costs the Flower server: 10,000 answers of MLPs, 1,000 of VGG16, from a generator over the real link.

    OMP_NUM_THREADS=1 python benchmarks/server_load.py --out results/server-load.json

The server, its link and Flower's messages are the real ones. Behind the link stands no network: answers are made when
the link pulls them, by random signs with right headers, and what making them takes is left out. One process for each
case, one thread. `server` is the processor time of a round, from the plan to the new state, `close` the part of it
after the last answer has come in; both are best of the rounds after the first. `memory` is the peak above what the
process held after its imports, `packed` the bytes of the round's answers among it.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from peers import record as write

from pfed1bs.core.rng import stream
from pfed1bs.flower.grid import TYPES, GridLink, content_of, record
from pfed1bs.flower.server import Server
from pfed1bs.flower.settings import read
from pfed1bs.runs.run import method
from pfed1bs.wire.messages import encode

CASES = {
    "mlp": {"clients": 10_000, "model.name": "mlp", "data.name": "synthetic"},
    "vgg16": {"clients": 1_000, "model.name": "vgg16", "data.name": "synthetic:3x32x32"},
}
SAMPLES = 30
MIB = 1 << 20


def held() -> int:
    """Bytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Clients:
    """A grid whose nodes answer at once, one client each."""

    def __init__(self, algorithm, clients: int) -> None:
        self.algorithm, self.clients, self.asked = algorithm, clients, {}
        self.spent, self.last, self.number = 0.0, 0.0, 0  # seconds for making answers; when the last one went

    def get_node_ids(self) -> Iterable[int]:
        return range(1, self.clients + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            self.number += 1
            numbers.append(str(self.number))
            content = content_of(message.content)
            self.asked[numbers[-1]] = message.metadata.dst_node_id, message.metadata.message_type, content.get("round")
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> Iterator[Message]:
        for number in [*numbers]:
            began = time.process_time()
            answer = self.answer(number, *self.asked.pop(number))
            self.last = time.process_time()
            self.spent += self.last - began
            yield answer

    def answer(self, number: str, node: int, kind: str, round: int | None) -> Message:
        own = {"partition": node - 1, "samples": SAMPLES, "held": []}
        if kind == TYPES["train"]:
            own = {"partition": node - 1, "round": round, "up": self.said(node, round)}
            own |= {f"log/{name}": [0.5] for name in ("loss", "pull", "agreement")}
        message = Message(record(own), node, kind)
        message.metadata.__dict__["_reply_to_message_id"] = number
        return message

    def said(self, node: int, round: int) -> bytes:
        draw = stream(0, "answers", node, round)
        fields = {
            name: torch.randint(256, (codec.size,), dtype=torch.uint8, generator=draw)
            if codec.shape and codec.size < codec.shape[0]
            else torch.rand(codec.shape, generator=draw)
            for name, codec in self.algorithm.up.items()
        }
        for name, codec in self.algorithm.up.items():
            if fields[name].dtype == torch.uint8 and codec.shape[0] % 8:
                fields[name][-1] &= (1 << codec.shape[0] % 8) - 1  # unused bits are 0
        return encode(self.algorithm.up, fields, kind="up", round=round, samples=SAMPLES)


def case(model: str, name: str, rounds: int) -> dict[str, object]:
    """One federation of several rounds."""
    torch.set_num_threads(1)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets before it starts an app
    before = held()
    config, rules = read({**CASES[model], "algorithm.name": name, "rounds": rounds, "device": "cpu"})
    algorithm = method(config, *rules.problem(config))
    grid = Clients(algorithm, config.clients)
    server = Server(algorithm, GridLink(grid), config, rules, "load", lambda line: None)
    seconds, closing, made = [], [], 0.0
    began = time.process_time()
    for done in server.rounds():
        ended = time.process_time()
        seconds.append(ended - began - (grid.spent - made))
        closing.append(ended - grid.last)
        made, began = grid.spent, time.process_time()
        packed = sum(map(len, done.uplinks))
        assert len(done.uplinks) == config.clients
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    best = min(seconds[1:])
    return {
        "model": model,
        "algorithm": name,
        "answers": config.clients,
        "weights": algorithm.task.n,
        "server_seconds": best,
        "close_seconds": min(closing[1:]),
        "answers_per_second": config.clients / best,
        "votes_per_second": config.clients * next(iter(algorithm.up.values())).shape[0] / best,
        "packed_mib": packed / MIB,
        "memory_mib": peak / MIB,
        "rounds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", nargs=2, metavar=("MODEL", "METHOD"), help="only this one, as JSON")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(*options.case, options.rounds)))
        return
    results = []
    for model in CASES:
        for name in ("pfed1bs", "pfed1bs-delta"):
            words = [sys.executable, __file__, "--rounds", str(options.rounds), "--case", model, name]
            results.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
            told = {key: value for key, value in results[-1].items() if key != "rounds"}
            print(*(f"{key} {value:.4g}" if isinstance(value, float) else value for key, value in told.items()))
    write(options.out, " ".join(["python", *sys.argv]), results)


if __name__ == "__main__":
    main()
