"""What Flower's run config and node config say: the keys of every run, and a few that only real federations have."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_type_hints

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.errors import UserError, close
from pfed1bs.core.options import keys
from pfed1bs.data.catalogue import CATALOGUE
from pfed1bs.data.synthetic import CLASSES, is_synthetic, shape_of
from pfed1bs.runs.config import TABLES, Config, DataConfig, ModelConfig, of_tables, with_role
from pfed1bs.runs.flags import UnknownKey

Values = Mapping[str, bool | int | float | str]
LEFT_OUT = (*with_role("simulator", "others"), *TABLES, "algorithm")  # they mean nothing here, or are tables
BELIEVED: Mapping[str, float] = {"max_weight": 2.0, "max_norm": 2.0}  # where clients are not the server's own
GUARD: Mapping[str, object] = {"robust": "trimmed"}  # likewise, of methods that have it
MANY = 8  # clients from which on: with fewer an honest one easily stands alone


@dataclass(frozen=True)
class Rules:
    """Keys that only real federations have."""

    min_clients: int = 2  # fewest valid answers that make a round
    timeout: float = 600.0  # seconds after which a round goes on without those who have not answered
    attempts: int = 3  # how often a round is tried before the run stops
    wait: float = 60.0  # seconds to wait for clients that are not connected, at the start and before another attempt
    max_samples: int = 100_000  # most training samples that a client may claim
    evaluate: bool = True  # ask clients how good their models are, every `evaluate_every` rounds and at the end
    pin: bool = False  # a client stays with the node that first spoke for it: for nodes with keys, which keep their id
    resume: bool = False  # go on with the run in the folder `out`
    state: str = "pfed1bs-state"  # folder at the client for its model; a node may have its own
    shape: str = ""  # of one sample, as 1x28x28: for data of the clients' own
    classes: int = 0  # for data of the clients' own

    def problem(self, config: Config) -> tuple[tuple[int, ...], int]:
        """Shape of one sample and number of classes."""
        if self.shape and self.classes:
            parts = self.shape.split("x")
            if not all(part.isdecimal() and int(part) for part in parts):
                raise UserError(f"shape must be whole numbers with x between, got {self.shape}", "shape='1x28x28'")
            return tuple(map(int, parts)), self.classes
        if is_synthetic(config.data.name):
            return shape_of(config.data.name), CLASSES
        known = CATALOGUE.get(config.data.name)  # the server has no data to look at
        if known is None:
            raise UserError(
                f"the server cannot know what samples of {config.data.name} look like", "add shape='1x28x28' classes=10"
            )
        return known.shape, known.num_classes

    def about(self, config: Config) -> dict[str, object]:
        """What the server knows of the data that a trained model must be told."""
        (shape, classes), known = self.problem(config), None if self.shape else CATALOGUE[config.data.name]
        told: dict[str, object] = {"normalise": config.data.normalise, "scale": 1.0, "shape": shape, "classes": classes}
        if known and not known.mean:
            return {"normalise": "none", "shape": shape, "classes": classes}
        published = known and config.data.normalise == "shared" and not config.data.constants
        return {**told, "mean": known.mean, "std": known.std} if known and published else told


def read(values: Values) -> tuple[Config, Rules]:
    """The configuration of a run from Flower's flat keys; an empty text means that a key is not given."""
    given = {key: value for key, value in values.items() if value != ""}
    hints, rules = get_type_hints(Rules), {}
    for key in [key for key in given if key in hints]:
        value, wanted = given.pop(key), hints[key]
        if not isinstance(value, (int, float) if wanted is float else wanted) or (
            isinstance(value, bool) is not (wanted is bool)
        ):
            raise UserError(f"{key} must be {wanted.__name__}, got {value!r}", f"write {key}={getattr(Rules, key)!r}")
        rules[key] = value
    config = _loaded(given, [*hints])
    checked = Rules(**rules)  # type: ignore[arg-type]
    _valid(config, checked)
    return config, checked


def _loaded(given: Values, own: list[str]) -> Config:
    """The configuration of these values; hints know the keys of real federations too."""
    nested: dict[str, object] = {key: value for key, value in given.items() if "." not in key}
    for table in {key.partition(".")[0] for key in given if "." in key}:
        nested[table] = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{table}.")}
    try:
        return of_tables(nested)
    except UnknownKey as error:
        near = close(error.key, own)
        raise UserError(error.message, f"did you mean {near}?" if near else error.hint) from error


def _valid(config: Config, rules: Rules) -> None:
    most = config.sampled or config.clients
    if not 1 <= rules.min_clients <= most:
        raise UserError(
            f"min_clients must be in 1 .. {most}, the clients of a round, got {rules.min_clients}",
            f"try min_clients={most}",
        )
    for key in ("timeout", "attempts", "max_samples"):
        if not getattr(rules, key) > 0:
            raise UserError(f"{key} must be positive, got {getattr(rules, key)}", f"try {key}={getattr(Rules, key)}")
    if config.data.newcomers:
        raise UserError(
            f"data.newcomers = {config.data.newcomers} is for simulations; here clients come when they come",
            "leave it out",
        )
    if config.algorithm.get("epsilon"):
        raise UserError("algorithm.epsilon draws its noise from the seed, which the server knows", "leave it out")
    if rules.resume and not config.out:
        raise UserError("resume needs to know the run folder", "add out='DIR'")


def tables(config: Config, believed: Mapping[str, float] = BELIEVED) -> dict[str, object]:
    """Every key that a run may be given, with its value; empty where the default holds. For [tool.flwr.app.config].

    Flower lets a user override only keys that are listed, so all options of all methods are. `believed` are the bounds
    of a configuration that has none, with which many clients are guarded too.
    """
    plain = {item.name: getattr(config, item.name) for item in fields(Config) if item.name not in LEFT_OUT}
    plain |= {key: bound for key, bound in believed.items() if plain[key] is None}
    rules = {item.name: item.default for item in fields(Rules)}
    options = sorted({option for name in REGISTRY for option in keys(algorithm_class(name))})
    own = algorithm_class(config.method)
    chosen = {key: value for key, value in config.algorithm.items() if value != getattr(own, key, None)}
    if believed and config.clients >= MANY:
        chosen = {key: value for key, value in GUARD.items() if key in keys(own)} | chosen
    return {
        **{key: "" if value is None else value for key, value in {**plain, **rules}.items()},
        **{key: _table(getattr(config, key)) for key in ("data", "model")},
        "algorithm": {"name": config.method, **{key: chosen.get(key, "") for key in options}},
    }


def _table(part: DataConfig | ModelConfig) -> dict[str, object]:
    return {key: "" if value is None else value for key, value in vars(part).items()}
