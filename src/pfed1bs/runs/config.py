"""What a run is told: one definition for TOML keys, flags and keywords, checked strictly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import BELOW_ONE, MEDIANS, NOT_NEGATIVE, SEED, Key, Role, at_least, check, keys, option
from pfed1bs.data.catalogue import CATALOGUE
from pfed1bs.engine.attacking import Attack
from pfed1bs.engine.trust import Trust
from pfed1bs.nn.losses import LOSSES
from pfed1bs.nn.models import MODELS
from pfed1bs.runs.flags import given as given_flags
from pfed1bs.runs.flags import named, one, typed, unknown
from pfed1bs.runs.method_options import defaults, flag_names, flagged, taken_over, typed_options
from pfed1bs.runs.recipes import read

Options = dict[str, object]
Drawn = Literal["partition", "init", "batches"]  # what is random in a run
DATA = f"{', '.join(CATALOGUE)}, synthetic[:1x28x28], a .npz file or package.module:function"


@dataclass(frozen=True)
class DataConfig:
    """The [data] table."""

    name: str = option("digits", DATA)
    partition: str = option("dirichlet:0.3", "labels:c, dirichlet:a, iid or natural (by owner)")
    cap: int | None = option(None, "most training samples per client", at_least(1))
    root: str | None = option(
        None, "folder with the files; then PFED1BS_DATA, the user cache, download", role="machine"
    )
    split: Literal["pooled", "official"] = option("pooled", "pooled: 75/25 split at every client")
    augment: bool = option(False, "random horizontal flips")
    min_size: int = option(10, "least training samples per client", at_least(1))
    validate: bool = option(False, "judge on a quarter of the training samples instead of the test samples, for tuning")
    normalise: Literal["none", "client", "shared"] = option(
        "shared",
        "standardise inputs: not, by each client's own mean and deviation, or by those of all training samples",
    )
    constants: str | None = option(None, "a normalise.json whose mean and deviation are the shared ones")
    newcomers: float = option(0.0, "share of the clients that come after training, for one visit", BELOW_ONE)


@dataclass(frozen=True)
class ModelConfig:
    """The [model] table."""

    name: str = option("mlp", f"{', '.join(MODELS)} or package.module:function")
    loss: str = option("cross-entropy", f"{', '.join(LOSSES)} or package.module:function")
    metric: str | None = option(None, "what models are judged by; the first that fits the loss if not given")
    bn: Literal["local", "avg"] = option("local", "BatchNorm statistics: kept at the client, or averaged and sent")


@dataclass(frozen=True)
class CompareConfig:
    """The [compare] table: what `pfed1bs compare` runs unless --algorithms and --seeds say otherwise."""

    algorithms: list[str] = option(["pfed1bs", "local", "fedavg"], 'names, or "all"')
    seeds: list[int] = option([0], "a run of every method for each of them")


@dataclass(frozen=True)
class Config:
    """A run. `algorithm` holds the name and all options of the method, `options` those of others, by name."""

    rounds: int = option(100, "T", at_least(1), role="length")
    clients: int = option(20, "K", at_least(1))
    sampled: int | None = option(None, "S, clients in a round; all if not given", at_least(1))
    steps: int = option(10, "R, local steps in a round", at_least(1))
    batch: int = option(64, "B, samples in a step", at_least(1))
    seed: int = option(0, "of everything random", SEED, role="seed")
    partition_seed: int | None = option(None, "who holds what; seed if not given", SEED)
    init_seed: int | None = option(None, "first weights and projections; seed if not given", SEED)
    batches_seed: int | None = option(None, "cohorts, batches and the clients' noise; seed if not given", SEED)
    device: str = option("auto", "auto, cpu, cuda, cuda:1", role="machine")
    threads: int | None = option(None, "CPU threads", at_least(1), role="machine")
    tf32: bool = option(False, "let a GPU round the factors of products to 11 bits, for speed", role="simulator")
    chunk: int | None = option(None, "clients computed at once", at_least(1), role="simulator")
    out: str | None = option(None, "run folder", role="machine")
    evaluate_every: int = option(10, "rounds", at_least(1), role="machine")
    checkpoint_every: int = option(10, "rounds; 0: only when interrupted", at_least(0), role="simulator")
    max_weight: float | None = option(
        None, "most samples that count for a client, in medians of its round; any if not given", MEDIANS
    )
    max_norm: float | None = option(
        None, "longest field of real numbers a client may send, in medians of its round", MEDIANS
    )
    attack: str | None = option(
        None, "kind:share, clients that lie (docs/security.md): sign-flip:0.3, scale:0.1:1e6, ..."
    )
    rest: float = option(
        0.02,
        "loss at the end of local work below which a client's own model stays as it is, or once it has come back near "
        "the shared one; when all do, the run ends; 0: never (docs/algorithms.md)",
        NOT_NEGATIVE,
    )
    potential: bool = option(False, "log the potential Psi at evaluations (pfed1bs)", role="simulator")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    compare: CompareConfig = option(CompareConfig(), role="others")
    algorithm: Options = field(default_factory=lambda: {"name": "pfed1bs"})
    options: dict[str, Options] = option({}, role="others")

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.algorithm["name"])

    def seed_of(self, part: Drawn) -> int:
        """The seed of one of the things that are random."""
        own: int | None = getattr(self, f"{part}_seed")
        return self.seed if own is None else own

    @property
    def share(self) -> float:
        """S / K, the share of the clients that take part in a round."""
        return (self.sampled or self.clients) / self.clients

    @property
    def chosen(self) -> Options:
        """The options of the method, which is told S / K if it asks for it."""
        options = {key: value for key, value in self.algorithm.items() if key != "name"}
        return {**options, "share": options["share"] or self.share} if "share" in options else options

    @property
    def metric(self) -> str | None:
        """What models are judged by: as told, as usual for the data set, or None for the first that fits the loss."""
        usual = CATALOGUE[self.data.name].metric if self.data.name in CATALOGUE else None
        return self.model.metric or (usual if self.model.loss == "cross-entropy" else None)

    @property
    def trust(self) -> Trust:
        """What the server believes of its clients' numbers."""
        return Trust(self.max_weight, self.max_norm)

    @property
    def attacks(self) -> Attack | None:
        """What some of the clients do, if any do."""
        return Attack.of(self.attack, self.seed_of("batches")) if self.attack else None

    def with_method(self, name: str, seed: int, options: Options | None = None) -> "Config":
        """The same run with another method, which has its defaults and what `options` hold for it, and a seed."""
        own = self.algorithm if name == self.method else {}
        chosen = {**defaults(name), **own, **self.options.get(name, {}), **(options or {}), "name": name}
        changed = replace(self, seed=seed, algorithm=chosen, options={})
        check_config(changed)
        return changed


TABLES: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "compare": CompareConfig}
FLAGS: dict[str, type] = {"": Config, "data.": DataConfig, "model.": ModelConfig}


def known_keys(method: str) -> dict[str, Key]:
    """Every key of a run of this method by its name as a flag."""
    methods = {"algorithm.name": Key(str, method, ", ".join(REGISTRY))}
    own = {f"algorithm.{name}": key for name, key in keys(algorithm_class(method)).items()}
    return _run_keys() | methods | own


def with_role(*roles: Role) -> tuple[str, ...]:
    """The keys and tables of a configuration that have one of these roles, with their tables' names before them."""
    found = [(prefix + item.name, item.metadata.get("role")) for prefix, cls in FLAGS.items() for item in fields(cls)]
    return tuple(name for name, role in found if role in roles)


def free() -> tuple[str, ...]:
    """The keys in which a run may differ from its checkpoint."""
    return with_role("length", "machine", "simulator", "others")


def load(path: str | None, flags: Sequence[str] = (), compared: Sequence[str] | None = None) -> Config:
    """The configuration of a recipe (none: the defaults) with flags on top.

    --algorithm.X goes to the method of the run; in a comparison, to all methods `compared` that have X. What the
    recipe's [algorithm] says of the optimiser goes to every method, its other options to the method it names.
    """
    return of_tables(read(path) if path else {}, flags, compared, path or "")


def of_tables(
    recipe: Options, flags: Sequence[str] = (), compared: Sequence[str] | None = None, path: str = ""
) -> Config:
    """The configuration of the tables of a recipe with flags on top."""
    own, options = recipe.pop("algorithm", {}), recipe.pop("options", {})
    if not isinstance(own, dict) or not isinstance(options, dict):
        raise UserError(f"{path}: algorithm and options must be tables", "write [algorithm] and name = ... below it")
    first = str(own.pop("name", "pfed1bs"))
    name = named(flags, first)
    if compared is not None and one(flags, "algorithm.name") is not None:
        raise UserError("a comparison has no --algorithm.name", f"write --algorithms {name}")
    own = typed_options(first, own, "algorithm")
    options = {other: typed_options(other, table, f"options.{other}") for other, table in options.items()}
    methods = [name] if compared is None else compared
    given = given_flags(flags, ["algorithm.name", *_run_keys(), *(key for one in methods for key in flag_names(one))])
    for method in methods:
        said = own if method == first else taken_over(own, method)
        options[method] = {**said, **options.get(method, {}), **flagged(given, method)}
    if compared is None:
        own = options.pop(name)
    algorithm = {**defaults(name), **own, "name": name}
    config = Config(**_tables(recipe, given), algorithm=algorithm, options=options)  # type: ignore[arg-type]
    check_config(config)
    return config


def as_tables(config: Config) -> dict[str, object]:
    """The configuration as TOML tables; what is not given is left out."""
    plain = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in TABLES}
    tables = {key: {k: v for k, v in vars(getattr(config, key)).items() if v is not None} for key in TABLES}
    return {key: value for key, value in {**plain, **tables}.items() if value is not None and value != {}}


def check_config(config: Config) -> None:
    """Refuse values that their keys do not allow, alone or together."""
    for prefix, cls in FLAGS.items():
        check(cls, vars(getattr(config, prefix[:-1]) if prefix else config), prefix)
    check(algorithm_class(config.method), config.algorithm, "algorithm.")
    assert config.attacks or not config.attack  # an attack that cannot be read is refused here
    if config.sampled is not None and config.sampled > config.clients:
        raise UserError(
            f"sampled = {config.sampled} is more than clients = {config.clients}",
            "a round cannot have more clients than there are",
        )


def _run_keys() -> dict[str, Key]:
    """Every key that no method has, by its name as a flag."""
    return {prefix + name: key for prefix, cls in FLAGS.items() for name, key in keys(cls).items()}


def _tables(recipe: Options, given: Mapping[str, str]) -> Options:
    """The fields of Config that a recipe and flags give, flags first."""
    known = _run_keys() | {f"compare.{name}": key for name, key in keys(CompareConfig).items()}
    flat: Options = {}
    for key, value in recipe.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    for key in flat:
        if key not in known:
            raise unknown(key, [*known])
    values = {key: typed(key, known[key], value) for key, value in {**flat, **given}.items() if key in known}
    tables = {
        table: cls(**{name: values.pop(f"{table}.{name}") for name in keys(cls) if f"{table}.{name}" in values})
        for table, cls in TABLES.items()
    }
    return {**values, **tables}
