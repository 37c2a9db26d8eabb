"""The table of all methods: where they come from, what they send, what they keep."""

from pfed1bs.algorithm import Algorithm
from pfed1bs.algorithms import REGISTRY, make
from pfed1bs.config import Config, Options
from pfed1bs.data import load
from pfed1bs.models import build
from pfed1bs.task import Task
from pfed1bs.wire import Layout


def table(config: Config) -> list[Options]:
    """One row per method for the model and data of a configuration; bits are payload, without the header."""
    dataset = load(config.data.name, config.data.root)
    task = Task(build(config.model.name, dataset.shape, dataset.num_classes), bn=config.model.bn)
    return [_row(name, make(name, task, config.seed)) for name in REGISTRY]


def _row(name: str, algorithm: Algorithm) -> Options:
    _, clients = algorithm.init(1)
    kept = sum(value.numel() for key, value in clients.items() if not key.startswith("buffer/"))
    return {
        "method": name,
        "paper": algorithm.paper,
        "sends up": ", ".join(algorithm.up) or "nothing",
        "up": bits(algorithm.up),
        "sends down": ", ".join(algorithm.down) or "nothing",
        "down": bits(algorithm.down),
        "personal": "yes" if algorithm.personalises else "fine-tuned",
        "keeps per client": f"{kept / algorithm.task.n:.2g} n",
    }


def bits(layout: Layout) -> int | str:
    """Payload bits of a full message, or that they vary."""
    sizes = [codec.size for codec in layout.values()]
    return "varies" if None in sizes else 8 * sum(size for size in sizes if size is not None)
