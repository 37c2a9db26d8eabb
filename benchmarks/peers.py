"""The work of one FedAvg round on an MLP, done in several ways that ours are measured against.

Every way starts from the same weights, uses the same batches and ends in the averaged weights, so they can be compared.
"""

import json
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from pfed1bs.core.rng import stream
from pfed1bs.data import Federation
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.environment import cpuinfo

LR = 0.05


@dataclass
class Work:
    """K clients of N random samples of the size of MNIST, R steps of batch B each."""

    clients: int = 20
    samples: int = 600
    steps: int = 20
    batch: int = 32
    x: Tensor = field(init=False)  # (K, N, 784)
    y: Tensor = field(init=False)  # (K, N)
    rows: Tensor = field(init=False)  # (R, K, B) samples of every step

    def __post_init__(self) -> None:
        self.x = torch.randn(self.clients, self.samples, 784, generator=stream(0, "x"))
        self.y = torch.randint(10, (self.clients, self.samples), generator=stream(0, "y"))
        shape = (self.steps, self.clients, self.batch)
        self.rows = torch.randint(self.samples, shape, generator=stream(0, "rows"))
        self.model = build("mlp", (784,), 10)
        self.task = Task(self.model)
        self.start = self.task.init(0)  # (n,)

    def batches(self):
        who = torch.arange(self.clients)[:, None]
        for rows in self.rows:
            yield self.x[who, rows], self.y[who, rows]

    def federation(self) -> Federation:
        """The same samples for `simulate`."""
        count = self.clients * self.samples
        rows = tuple(torch.arange(count).view(self.clients, self.samples))
        return Federation(self.x.flatten(0, 1), self.y.flatten(), rows, rows, torch.arange(count), 10)

    def stack(self) -> Tensor:
        return self.start.repeat(self.clients, 1)

    def tensors(self) -> list[Tensor]:
        """The stacked weights as one contiguous tensor per parameter."""
        w = self.stack()
        return [w[:, part.slice].reshape(self.clients, *part.shape).clone() for part in self.task.parts]


def average(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1).mean(0)


def plain_loop(work: Work) -> Tensor:
    """One nn.Module and one torch.optim.SGD per client."""
    total = torch.zeros_like(work.start)
    for client in range(work.clients):
        model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        nn.utils.vector_to_parameters(work.start.clone(), model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=LR)
        x, y = work.x[client], work.y[client]
        for rows in work.rows[:, client]:
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        total += nn.utils.parameters_to_vector(model.parameters()).detach()
    return total / work.clients


def vmap_gradient(work: Work) -> Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]:
    return vmap(grad(lambda values, x, y: F.cross_entropy(functional_call(work.model, values, (x,)), y)))


def vmap_grad(work: Work) -> Tensor:
    """vmap(grad) with a dictionary of stacked parameters, as in torch's tutorial on ensembles."""
    gradient = vmap_gradient(work)
    values = dict(zip((part.name for part in work.task.parts), work.tensors(), strict=True))
    for x, y in work.batches():
        grads = gradient(values, x, y)
        values = {name: value - LR * grads[name] for name, value in values.items()}
    return average(list(values.values()))


def written_gradient(weights: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden units, and the errors of both layers, by batched products written for this one model."""
    a, b, c, d = weights
    h = torch.baddbmm(b[:, None], x, a.mT).relu_()
    error = torch.baddbmm(d[:, None], h, c.mT).softmax(2)
    error.scatter_add_(2, y[..., None], -torch.ones_like(error[..., :1])).div_(x.shape[1])
    return h, error, torch.bmm(error, c) * (h > 0)


def written_step(weights: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """One step of SGD to new weights."""
    h, error, back = written_gradient(weights, x, y)
    grads = [torch.bmm(back.mT, x), back.sum(1), torch.bmm(error.mT, h), error.sum(1)]
    return [weight - LR * gradient for weight, gradient in zip(weights, grads, strict=True)]


def written_step_in_place(weights: list[Tensor], x: Tensor, y: Tensor) -> None:
    """One step of SGD in which the products update the weights themselves: about the least there is to do."""
    h, error, back = written_gradient(weights, x, y)
    a, b, c, d = weights
    c.baddbmm_(error.mT, h, alpha=-LR)
    d.sub_(error.sum(1), alpha=LR)
    a.baddbmm_(back.mT, x, alpha=-LR)
    b.sub_(back.sum(1), alpha=LR)


def by_hand(work: Work) -> Tensor:
    """Batched products written for this one model."""
    weights = work.tensors()
    for x, y in work.batches():
        weights = written_step(weights, x, y)
    return average(weights)


def by_hand_in_place(work: Work) -> Tensor:
    """The same, updating in place."""
    weights = work.tensors()
    for x, y in work.batches():
        written_step_in_place(weights, x, y)
    return average(weights)


def task_steps(work: Work) -> Tensor:
    """SGD steps of a Task."""
    w = work.stack()
    for x, y in work.batches():
        w = work.task.descend(w, x, y, {}, LR, out=w)[0]
    return w.mean(0)


def race(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every way, in turns, so that a busy moment of the machine meets all of them."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def record(out: str | None, command: str, results: object) -> None:
    """Write the results with what is needed to judge them."""
    if out is None:
        return
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    facts = {
        "command": command,
        "commit": commit,
        "cpu": cpu(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else None,
        "results": results,
    }
    Path(out).write_text(json.dumps(facts, indent=1) + "\n")


def cpu() -> str:
    names = cpuinfo("model name")
    return f"{len(names)} x {names[0]}" if names else platform.processor()
