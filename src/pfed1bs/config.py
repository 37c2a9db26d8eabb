"""What a run is told: one definition for TOML keys, flags and keywords, checked strictly."""

import difflib
import inspect
import math
import re
import tomllib
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, get_type_hints

from pfed1bs.algorithms import REGISTRY, SHARED, algorithm_class
from pfed1bs.extras import need

OPTIMISER = ("lr", "mu", "momentum")  # options that go over to other methods in a comparison
Options = dict[str, object]


RANGES: dict[str, tuple[Callable[[float], bool], str, str]] = {  # options with the same meaning everywhere
    "lr": (lambda x: 0 < x < math.inf, "positive", "0.05 is the default"),
    "mu": (lambda x: 0 <= x < math.inf, "0 or more", "1e-5 is the default"),
    "lam": (lambda x: 0 <= x < math.inf, "0 or more", "0 switches the pull off"),
    "momentum": (lambda x: 0 <= x < 1, "in [0, 1)", "0 is plain SGD"),
    "ratio": (lambda x: 0 < x <= 1, "m/n in (0, 1]", "the paper uses 0.1"),
}


class UserError(ValueError):
    """A mistake in what the user asked for, with a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class DataConfig:
    """The [data] table."""

    name: str = "digits"  # digits, mnist, fmnist, cifar10, cifar100, svhn, a .npz file or package.module:function
    partition: str = "dirichlet:0.3"  # labels:c, dirichlet:a or iid
    cap: int | None = None  # most training samples per client
    root: str | None = None  # folder with the files; then PFED1BS_DATA, the user cache, download
    split: Literal["pooled", "official"] = "pooled"  # pooled: 75/25 split at every client
    augment: bool = False  # random horizontal flips
    min_size: int = 10  # least training samples per client
    validate: bool = False  # judge on a quarter of the training samples instead of the test samples, for tuning


@dataclass(frozen=True)
class ModelConfig:
    """The [model] table."""

    name: str = "mlp"  # mlp, vgg8, vgg16 or package.module:function
    bn: Literal["local", "avg"] = "local"  # BatchNorm statistics: kept at the client, or averaged and sent


@dataclass(frozen=True)
class CompareConfig:
    """The [compare] table: what `pfed1bs compare` runs unless its flags say otherwise."""

    algorithms: list[str] = field(default_factory=lambda: ["pfed1bs", "local", "fedavg"])  # names, or "all"
    seeds: list[int] = field(default_factory=lambda: [0])


@dataclass(frozen=True)
class Config:
    """A run. `algorithm` holds the name and all options of the method, `options` those of others, by name."""

    rounds: int = 100  # T
    clients: int = 20  # K
    sampled: int | None = None  # S, clients in a round; all if not given
    steps: int = 10  # R, local steps in a round
    batch: int = 64  # B, samples in a step
    seed: int = 0  # of everything random
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    threads: int | None = None  # CPU threads
    chunk: int | None = None  # clients computed at once
    out: str | None = None  # run folder
    evaluate_every: int = 10  # rounds
    checkpoint_every: int = 10  # rounds; 0: only when interrupted
    max_weight: float | None = None  # most samples that count for a client, in medians of its round; any if not given
    max_norm: float | None = None  # longest field of real numbers a client may send, in medians of its round
    potential: bool = False  # log the potential Psi at evaluations (pfed1bs)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    compare: CompareConfig = CompareConfig()
    algorithm: Options = field(default_factory=lambda: {"name": "pfed1bs"})
    options: dict[str, Options] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.algorithm["name"])

    def with_method(self, name: str, seed: int) -> "Config":
        """The same run with another method, which takes over the optimiser's options but no others, and a seed."""
        own = self.algorithm if name == self.method else {k: v for k, v in self.algorithm.items() if k in OPTIMISER}
        known = {option.name for option in fields(algorithm_class(name))}  # type: ignore[arg-type]
        options = {k: v for k, v in own.items() if k in known or k == "name"} | self.options.get(name, {})
        return replace(self, seed=seed, algorithm={**_defaults(name), **options, "name": name})


TABLES: dict[str, type] = {"data": DataConfig, "model": ModelConfig, "compare": CompareConfig}


def load(path: str | None, flags: Sequence[str] = (), command: str = "run") -> Config:
    """The configuration of a recipe (none: the defaults) with flags on top."""
    recipe = _read(path) if path else {}
    own, options = recipe.get("algorithm", {}), recipe.pop("options", {})
    if not isinstance(own, dict) or not isinstance(options, dict):
        raise UserError(f"{path}: algorithm and options must be tables", "write [algorithm] and name = ... below it")
    name = _named(flags) or str(own.get("name", "pfed1bs"))
    if name != own.get("name", "pfed1bs"):
        own = {key: value for key, value in own.items() if key in OPTIMISER}
    _known_method(name)
    for other, extra in options.items():
        _checked(other, extra)
    recipe["algorithm"] = {**own, **options.get(name, {}), "name": name}
    parser = flag_parser(name, command)
    known = [action.dest for action in parser._actions]
    _unknown(recipe, known)
    try:
        values = parser.parse_args(list(flags), namespace=parser.parse_object(recipe))
    except ArgumentError as error:
        raise _explained(error, known) from error
    tables = {key: cls(**vars(values[key])) for key, cls in TABLES.items()}
    algorithm = dict(vars(values["algorithm"]))
    single = {
        item.name: values[item.name] for item in fields(Config) if item.name in values and item.name not in tables
    }
    config = Config(**{**single, **tables, "algorithm": algorithm, "options": options})
    _valid(config)
    return config


def flag_parser(method: str, command: str = "run"):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """A parser whose flags are the fields above and those of the method; their comments are the help."""
    parser = need("jsonargparse", "cli").ArgumentParser(prog=f"pfed1bs {command}", exit_on_error=False, add_help=False)
    parser.add_argument("--algorithm.name", type=str, default=method, help=", ".join(REGISTRY))
    classes = {"": Config, "data.": DataConfig, "model.": ModelConfig, "compare.": CompareConfig}
    for prefix, cls in {**classes, "algorithm.": algorithm_class(method)}.items():
        hints, notes = get_type_hints(cls), comments(cls)
        for item in fields(cls):
            if item.name in (*TABLES, "algorithm", "options") or (prefix == "algorithm." and item.name in SHARED):
                continue
            default = item.default_factory() if callable(item.default_factory) else item.default
            parser.add_argument(
                f"--{prefix}{item.name}", type=hints[item.name], default=default, help=notes.get(item.name, "")
            )
    return parser


def comments(cls: type) -> dict[str, str]:
    """The end comment of every field of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("pfed1bs"):
            found.update(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", inspect.getsource(base), re.MULTILINE))
    return found


def as_tables(config: Config) -> dict[str, object]:
    """The configuration as TOML tables; what is not given is left out."""
    plain = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in TABLES}
    tables = {key: {k: v for k, v in vars(getattr(config, key)).items() if v is not None} for key in TABLES}
    return {key: value for key, value in {**plain, **tables}.items() if value is not None and value != {}}


def nearest(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """A hint with the closest known word."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {found[0]}?" if found else f"known are {', '.join(known)}"


def _read(path: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        near = sorted(str(p) for p in Path(path).parent.glob("*.toml")) or sorted(
            str(p) for p in Path("recipes").glob("*.toml")
        )
        raise UserError(f"no recipe {path}", nearest(path, near) if near else "give the path of a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"{path} is not a TOML file: {error}", "see recipes/digits.toml for an example") from error


def _named(flags: Sequence[str]) -> str | None:
    """The method that flags ask for, needed before its other flags can be known."""
    name = None
    for i, flag in enumerate(flags):
        if flag == "--algorithm.name" and i + 1 < len(flags):
            name = flags[i + 1]
        elif flag.startswith("--algorithm.name="):
            name = flag.partition("=")[2]
    return name


def _known_method(name: str) -> None:
    if name not in REGISTRY:
        raise UserError(f"unknown algorithm {name}", nearest(name, REGISTRY))


def _defaults(name: str) -> Options:
    parser = flag_parser(name)
    return dict(vars(parser.parse_args([])["algorithm"]))


def _checked(name: str, options: object) -> None:
    """Options of a method in [options.name] are as strict as those in [algorithm]."""
    _known_method(name)
    parser = flag_parser(name)
    if not isinstance(options, dict):
        raise UserError(f"options.{name} must be a table", f"write [options.{name}]")
    _unknown({"algorithm": options}, [action.dest for action in parser._actions], f"options.{name}")
    try:
        parser.parse_object({"algorithm": {**options, "name": name}})
    except ArgumentError as error:
        raise _explained(error, []) from error


def _unknown(tables: Mapping[str, object], known: Sequence[str], shown: str = "algorithm") -> None:
    flat = [
        f"{key}.{inner}" if isinstance(value, dict) else key
        for key, value in tables.items()
        for inner in (value if isinstance(value, dict) else [""])
    ]
    for key in flat:
        if key not in known:
            raise UserError(f"unknown key {key.replace('algorithm.', shown + '.', 1)}", nearest(key, known))


def _explained(error: ArgumentError, known: Sequence[str]) -> UserError:
    """The parser's complaint in our words."""
    text = re.sub(r"\s+", " ", str(error))
    if (flag := re.search(r"unrecognized arguments: (?:.*?)(--[\w.-]+)", text)) is not None:
        key = flag[1].removeprefix("--")
        return UserError(f"unknown key {key}", nearest(key, known))
    if (extra := re.search(r"unrecognized arguments: (\S+)", text)) is not None:
        return UserError(f"unexpected argument {extra[1]}", "flags begin with --, and there is one recipe at most")
    if (value := re.search(r'[Pp]arser key "([\w.]+)": (.*)', text)) is not None:
        return UserError(f"{value[1]}: {value[2]}", "pfed1bs run --help lists every key with its type")
    return UserError(text, "pfed1bs run --help lists every key with its type")


def _valid(config: Config) -> None:
    """Rules that types cannot express."""
    at_least = {
        "rounds": 1,
        "clients": 1,
        "steps": 1,
        "batch": 1,
        "evaluate_every": 1,
        "checkpoint_every": 0,
        "seed": 0,
    }
    for key, least in at_least.items():
        if getattr(config, key) < least:
            raise UserError(
                f"{key} must be at least {least}, got {getattr(config, key)}", f"try --{key} {max(1, least)}"
            )
    for key in ("sampled", "threads", "chunk"):
        value = getattr(config, key)
        if value is not None and value < 1:
            raise UserError(f"{key} must be at least 1, got {value}", f"leave {key} out to use all")
    for key in ("max_weight", "max_norm"):
        if (bound := getattr(config, key)) is not None and not bound >= 1:
            raise UserError(f"{key} must be at least 1, the median itself, got {bound}", f"try --{key} 10")
    if config.sampled is not None and config.sampled > config.clients:
        raise UserError(
            f"sampled = {config.sampled} is more than clients = {config.clients}",
            "a round cannot have more clients than there are",
        )
    for key, value in config.algorithm.items():
        if key in RANGES and not (isinstance(value, float | int) and RANGES[key][0](value)):
            raise UserError(f"algorithm.{key} must be {RANGES[key][1]}, got {value}", RANGES[key][2])
