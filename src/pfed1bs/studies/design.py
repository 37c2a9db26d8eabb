"""What the runs of a comparison share: what their seeds change, and how much work a round has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import get_args

from pfed1bs.core.errors import UserError
from pfed1bs.data import load
from pfed1bs.engine.contract import Algorithm
from pfed1bs.runs.config import Config, Drawn
from pfed1bs.runs.run import method
from pfed1bs.runs.summary import spent


@dataclass(frozen=True)
class Design:
    """Which randomness the seeds change, and how many gradients a client computes in a round."""

    vary: Sequence[Drawn] = get_args(Drawn)
    gradients: int | None = None  # None: whatever the local steps of the configuration take

    def applied(self, config: Config) -> Config:
        """A run under this design; what does not vary stays as with seed 0, or as the configuration says."""
        fixed = {f"{part}_seed": 0 for part in get_args(Drawn) if part not in self.vary}
        own = {key: value for key in fixed if (value := getattr(config, key)) is not None}
        seeded = replace(config, **{**fixed, **own})
        return seeded if self.gradients is None else spending(seeded, self.gradients)


PLAIN = Design()


def varied(text: str) -> tuple[Drawn, ...]:
    """What seeds change, from names with commas between; "all" is everything."""
    known: tuple[Drawn, ...] = get_args(Drawn)
    names = [*known] if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise UserError(f"seeds cannot change {name or 'nothing'}", f"choose of {', '.join(known)}, or all")
    return tuple(part for part in known if part in names)


def spending(config: Config, gradients: int) -> Config:
    """The run with as many local steps as take so many gradients a round."""
    algorithm = method(config, *problem(config.data.name, config.data.root))
    if afforded := getattr(algorithm, "afforded", None):
        return _affording(config, afforded(gradients), gradients)
    found = {steps: cost(config.method, algorithm, steps) for steps in range(1, gradients + 1)}
    for steps, taken in found.items():
        if taken == gradients:
            return replace(config, steps=steps)
    near = sorted(sorted({*found.values()}, key=lambda taken: abs(taken - gradients))[:2])
    raise UserError(
        f"{config.method} cannot spend {gradients} gradients a round: one step takes {found[1]}",
        f"try --gradients {' or '.join(map(str, near))}",
    )


def _affording(config: Config, options: Mapping[str, int], gradients: int) -> Config:
    """The run of a method that has options in place of `steps`."""
    if not all(options.values()):
        raise UserError(
            f"{config.method} cannot spend {gradients} gradients a round: that is less than one of its steps",
            "give it more, or smaller steps",
        )
    return replace(config, algorithm={**config.algorithm, **options})


def cost(name: str, algorithm: Algorithm, steps: int) -> int:
    """The gradients of a round."""
    taken = spent(algorithm, steps)
    if taken is None:
        raise UserError(f"{name} does not say how many gradients it takes", "give it a method gradients(steps)")
    return taken


@lru_cache(maxsize=1)
def problem(name: str, root: str | None) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of classes of a data set."""
    found = load(name, root)
    return found.shape, found.num_classes
