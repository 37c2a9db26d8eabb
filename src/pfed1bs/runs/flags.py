"""Flags of the command line: exact keys, typed values, and complaints that name the key."""

from argparse import SUPPRESS, ArgumentError, ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, Literal, NoReturn, get_args, get_origin

from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.errors import UserError, close
from pfed1bs.core.extras import need
from pfed1bs.core.options import Key, keys, shown

EVERY_KEY = "pfed1bs run --help lists every key with its type"


class UnknownKey(UserError):
    """A key that is not known here."""

    def __init__(self, key: str, hint: str) -> None:
        super().__init__(f"unknown key {key}", hint)
        self.key = key


class Flags(ArgumentParser):
    """A parser of exact flags whose complaints are mistakes of the user."""

    def __init__(self, examples: str = "", **more: object) -> None:
        super().__init__(add_help=False, allow_abbrev=False, argument_default=SUPPRESS, **more)  # type: ignore[arg-type]
        self.examples = examples

    def format_help(self) -> str:
        """The help, with the examples as they are written."""
        return super().format_help() + (f"\n{self.examples}\n" if self.examples else "")

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the program."""
        raise UserError(message, "a flag is written --key value or --key=value")


def one(flags: Sequence[str], key: str) -> str | None:
    """The text of one flag, whatever the others are."""
    parser = Flags()
    parser.add_argument(f"--{key}", dest="found", default=None)
    found: str | None = parser.parse_known_args(list(flags))[0].found
    return found


def named(flags: Sequence[str], otherwise: str = "pfed1bs") -> str:
    """The method that flags ask for, needed before its other flags can be known."""
    name = one(flags, "algorithm.name") or otherwise
    algorithm_class(name)
    return name


def without(words: Sequence[str], value: str, switch: str) -> list[str]:
    """The words without a flag that has a value and one that has none."""
    parser = Flags()
    parser.add_argument(f"--{value}")
    parser.add_argument(f"--{switch}", action="store_true")
    return parser.parse_known_args(list(words))[1]


def given(flags: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """The text of every flag by its key."""
    parser, words = Flags(), list(dict.fromkeys(known))
    for key in words:
        parser.add_argument(f"--{key}", dest=key)
    found, rest = parser.parse_known_args(list(flags))
    for word in rest:
        if word.startswith("--"):
            raise unknown(word[2:].partition("=")[0], words)
    if rest:
        raise UserError(f"unexpected argument {rest[0]}", "flags begin with --, and there is one recipe at most")
    return vars(found)


def typed(name: str, key: Key, value: object) -> object:
    """The value of a key from a flag's text or a TOML value."""
    if _fits(key.type, value):  # to import the parser takes a tenth of a second, at every message of a Flower client
        return value
    found = value
    if key.type is float and isinstance(value, str):
        with suppress(ValueError):  # inf too
            found = float(value)
    try:
        return _parser(key.type).parse_object({"value": found})["value"]
    except ArgumentError:
        raise UserError(f"{name} must be {key.kind}, got {value}", EVERY_KEY) from None


def _fits(kind: object, value: object) -> bool:
    """Whether a value is already one of this kind."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is UnionType:
        return type(value) in get_args(kind) and value not in ("null", "None")
    return type(value) is kind


@cache
def _parser(kind: object) -> Any:  # noqa: ANN401 (jsonargparse has no types)
    """A parser of one value; it takes longer to make than to use."""
    parser = need("jsonargparse", "cli").ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("--value", type=kind)
    return parser


def told(known: Mapping[str, Key], recipes: Sequence[str]) -> str:
    """The help for all keys: types, defaults and meaning; and the recipes that have names."""
    words = f"RECIPE is a TOML file with these keys, or one that comes along: {', '.join(recipes)}"
    parser = Flags(usage=SUPPRESS, description=words)
    method = known["algorithm.name"].default
    titles = {"": "the run", "data": "data", "model": "model", "algorithm": f"the method, {method}"}
    groups = {table: parser.add_argument_group(title) for table, title in titles.items()}
    for name, key in known.items():
        default = "" if key.default is None else f" (default {shown(key.default)})"
        text = f"{key.help}{default}".replace("%", "%%")
        groups[name.rpartition(".")[0]].add_argument(f"--{name}", metavar=f"<{key.kind}>", help=text)
    return parser.format_help()


def unknown(key: str, known: Sequence[str]) -> UnknownKey:
    """The error for a key that is not known here, with the nearest one in its table or who has it."""
    table, _, name = key.rpartition(".")
    beside = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == table}
    if table.startswith("options.") and not beside:
        return UnknownKey(key, f"{table.removeprefix('options.')} is not among the methods that are run")
    owners = [method for method in REGISTRY if name in keys(algorithm_class(method))] if table == "algorithm" else []
    if owners:
        return UnknownKey(key, f"it is an option of {', '.join(owners)}")
    deeper = [other for other in known if not table and other.endswith(f".{name}")]
    near = deeper[0] if deeper else beside.get(close(name, beside) or "")
    return UnknownKey(key, f"did you mean {near}?" if near else EVERY_KEY)
