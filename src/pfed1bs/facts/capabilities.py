"""The table of all methods, read off their layouts and states: what they send, keep and can do.

`python -m pfed1bs.facts.capabilities` prints what docs/algorithms.md takes over: two tables and all options.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, prod
from typing import get_args

from pfed1bs.algorithms import REGISTRY, algorithm_class, make
from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import keys, shown
from pfed1bs.data import load
from pfed1bs.engine.contract import Algorithm
from pfed1bs.facts import costs
from pfed1bs.nn.models import build
from pfed1bs.nn.task import Task
from pfed1bs.runs.config import Config, Options
from pfed1bs.wire.codecs import Differences, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.messages import Codec, Layout
from pfed1bs.wire.rows import CountedRows, Rows

ASIDE = ("mask", "buffer/")  # fields without weights: where the weights are, and BatchNorm statistics
MOSTLY = 0.9  # share of the values that must take one bit; scales, biases and norms are the others


@dataclass(frozen=True)
class Way:
    """What one client sends, or is sent, in a round."""

    fields: tuple[str, ...]
    bits: int  # payload, without the header
    varies: bool  # from message to message; the bits are then those to expect
    values: int  # numbers that stand for weights
    single: int  # those that take one bit

    @property
    def one_bit(self) -> bool:
        """Whether the values are sent with about one bit each."""
        return 0 < MOSTLY * self.values <= self.single


@dataclass(frozen=True)
class Profile:
    """One method for a model of n weights."""

    method: str
    paper: str
    n: int
    up: Way
    down: Way
    personalises: bool
    kept: float  # state of a client without BatchNorm statistics, in models of n float32 numbers

    def fewer(self, way: Way) -> bool:
        """Whether fewer values than weights are sent: dimension reduction."""
        return 0 < way.values < self.n

    def facts(self) -> Options:
        """Everything, for JSON."""
        said: Options = {"method": self.method, "paper": self.paper, "weights": self.n}
        for name, way in (("up", self.up), ("down", self.down)):
            said[name] = way.bits
            said[f"{name} varies"] = way.varies
            said[f"{name} fields"] = list(way.fields)
            said[f"{name} values"] = way.values
            said[f"{name} fewer"] = self.fewer(way)
            said[f"{name} one bit"] = way.one_bit
        return {**said, "personalises": self.personalises, "keeps": self.kept}


@dataclass(frozen=True)
class Sheet:
    """A table in words."""

    title: str
    columns: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The lines of the table, without the title."""
        rule = tuple("--:" if column.startswith("bits") else "---" for column in self.columns)
        return "\n".join("| " + " | ".join(line) + " |" for line in (self.columns, rule, *self.lines))


def table(config: Config) -> list[Profile]:
    """One row per method for the model, the data and the options of a configuration."""
    dataset = load(config.data.name, config.data.root)
    task = Task(build(config.model.name, dataset.shape, dataset.num_classes), bn=config.model.bn)
    rule, _, number = config.data.partition.partition(":")
    own = int(number) if rule == "labels" else dataset.num_classes
    return rows(task, own, {**config.options, config.method: config.chosen})


def rows(task: Task, own: int, options: dict[str, Options] | None = None) -> list[Profile]:
    """One row per method that takes the model; `own` is the number of classes of a client, options are by method."""
    found = []
    for name in REGISTRY:
        with suppress(UserError):
            found.append(_row(name, make(name, task, 0, **(options or {}).get(name, {})), own))
    return found


def _row(name: str, algorithm: Algorithm, own: int) -> Profile:
    n = algorithm.task.n
    _, clients = algorithm.init(1)
    kept = sum(value.nbytes for key, value in clients.items() if "buffer/" not in key) / (4 * n)
    up, down = way(algorithm.up, own), way(algorithm.down, own)
    return Profile(name, algorithm.paper, n, up, down, algorithm.personalises, round(kept, 4))


def way(layout: Layout, own: int) -> Way:
    """Fields, bits and values of a full message."""
    sizes = {name: measured(codec, own) for name, codec in layout.items()}
    weights = [size for name, size in sizes.items() if not name.startswith(ASIDE)]
    return Way(
        fields=tuple(dict.fromkeys(name.partition("/")[0].replace("buffer", "statistics") for name in layout)),
        bits=sum(bits for bits, _ in sizes.values()),
        varies=any(codec.size is None for codec in layout.values()),
        values=sum(values for _, values in weights),
        single=sum(values for bits, values in weights if bits < values + 16),  # whole bytes, and one that says how
    )


def measured(codec: Codec, own: int) -> tuple[int, int]:
    """Bits and values of a field; of one that varies the bits to expect, of differences of signs the most there are."""
    match codec:
        case Sparse(n, count):
            share = count / n * (1 - 1e-12)  # so that ceil(share n) is count again
            return ceil(costs.ternary(n, 0, costs.Detail(sparsity=share))), count
        case Rows(classes, features):
            return 32 * classes * features, classes * features
        case CountedRows(classes, features):
            return 32 * min(own, classes) * (features + 1), min(own, classes) * features
        case Differences():
            return 8 * codec.longest, codec.count
        case Either(short, long):  # in turns
            return 16 * (short + long), (short + long) // 2
    if codec.size is None:
        raise ValueError(f"the size of {codec} varies and nobody knows what to expect; say it in capabilities.measured")
    return 8 * codec.size, prod(codec.shape)


def sent(rows: list[Profile]) -> Sheet:
    """What travels, and what stays."""
    columns = ("method", "sends up", "bits up", "sends down", "bits down", "keeps")
    lines = [(row.method, *_traffic(row.up), *_traffic(row.down), f"{row.kept:.3g} n") for row in rows]
    return Sheet(f"What a client sends, is sent and keeps in a round; n = {rows[0].n:,}", columns, lines)


def _traffic(way: Way) -> tuple[str, str]:
    return ", ".join(way.fields) or "nothing", f"{'~' if way.varies else ''}{way.bits:,}"


def capabilities(rows: list[Profile]) -> Sheet:
    """What the paper's table of capabilities has ticks for, with the number of values where it is less than n."""

    def cells(row: Profile, way: Way) -> tuple[str, str]:
        return f"{way.values / row.n:.2g} n" if row.fewer(way) else "-", "yes" if way.one_bit else "-"

    columns = ("method", "fewer up", "one bit up", "fewer down", "one bit down", "personal", "paper")
    lines = [
        (row.method, *cells(row, row.up), *cells(row, row.down), "yes" if row.personalises else "-", row.paper)
        for row in rows
    ]
    return Sheet("Capabilities: fewer values than n, one bit each, a model for every client", columns, lines)


def options(name: str) -> str:
    """The options of a method with their defaults: those that most methods have by name, the others one in a line."""
    common = keys(Averaging)
    shared, lines = [], []
    for key, own in keys(algorithm_class(name)).items():
        if key in common and own.default == common[key].default:
            shared.append(f"`{key}`")
            continue
        others = [choice for choice in get_args(own.type) if choice != own.default]
        choices = f" (or {', '.join(map(shown, others))})" if others else ""
        lines.append(f"- `{key}` = {shown(own.default)}{choices}: {own.help}")
    return "\n".join([f"Usual options: {', '.join(shared)}.", *([""] if lines else []), *lines])


def usual() -> Sheet:
    """The options that most methods have."""
    lines = [(f"`{name}`", shown(key.default), key.help) for name, key in keys(Averaging).items()]
    return Sheet("Usual options", ("option", "default", "meaning"), lines)


def mlp() -> list[Profile]:
    """The rows of the document: the MLP 784-256-10, two classes per client."""
    return rows(Task(build("mlp", (1, 28, 28), 10)), own=2)


if __name__ == "__main__":
    for sheet in (sent(mlp()), capabilities(mlp()), usual()):
        print(f"{sheet.title}\n\n{sheet.markdown()}\n")
    for method in REGISTRY:
        print(f"### {method}\n\n{options(method)}\n")
