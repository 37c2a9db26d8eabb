"""What a key of the configuration is: its type and default, its help, the values it may take, and what it decides."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import inf
from typing import Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from pfed1bs.core.errors import UserError

T = TypeVar("T")
Role = Literal[
    "identity",  # another value is another run
    "seed",  # another run of the same experiment
    "optimiser",  # identity, and goes over to other methods in a comparison
    "length",  # a run may be made longer
    "machine",  # where and how it is computed and written down; results do not depend on it
    "simulator",  # the same, and means nothing in a real federation
    "others",  # what is run beside it
]
PROVIDED = ("task", "seed")  # fields of a method that the run provides


@dataclass(frozen=True)
class Range:
    """The values that a number may take, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


POSITIVE = Range("positive", lambda x: 0 < x < inf)
NOT_NEGATIVE = Range("0 or more", lambda x: 0 <= x < inf)
SHARE = Range("a share in [0, 1]", lambda x: 0 <= x <= 1)
FRACTION = Range("a share in (0, 1]", lambda x: 0 < x <= 1)
INSIDE = Range("inside (0, 1)", lambda x: 0 < x < 1)
BELOW_ONE = Range("in [0, 1)", lambda x: 0 <= x < 1)
SEED = Range("in 0 .. 2^64 - 1", lambda x: 0 <= x < 2**64)
MEDIANS = Range("at least 1, the median itself", lambda x: x >= 1)


def at_least(least: int) -> Range:
    """Whole numbers from `least` on."""
    return Range(f"at least {least}", lambda x: x >= least)


@dataclass(frozen=True)
class Key:
    """One key."""

    type: object
    default: object
    help: str = ""
    range: Range | None = None
    role: Role = "identity"

    @property
    def kind(self) -> str:
        """The type in words."""
        return _words(self.type)

    def check(self, name: str, value: object) -> None:
        """Refuse a value out of range, or none of those that can be chosen."""
        choices = get_args(self.type) if get_origin(self.type) is Literal else ()
        if choices and value not in choices:
            raise UserError(f"{name} must be {self.kind}, got {value}", f"the default is {self.default}")
        if self.range is None or (value is None and self.default is None):
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.range.holds(value):
            raise UserError(
                f"{name} must be {self.range.words}, got {shown(value)}", f"the default is {shown(self.default)}"
            )


def option(default: T, help: str = "", range: Range | None = None, role: Role = "identity") -> T:
    """A field of a dataclass that is a key of the configuration."""
    told = {"help": help, "range": range, "role": role}
    if isinstance(default, list | dict):
        return cast(T, field(default_factory=default.copy, metadata=told))
    return field(default=default, metadata=told)


@cache
def keys(cls: type) -> Mapping[str, Key]:
    """The keys of a dataclass; tables inside it and what the run provides to a method are none."""
    hints = get_type_hints(cls)
    found = {}
    for item in fields(cls):
        if item.name in PROVIDED and not item.metadata:
            continue
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if not isinstance(default, dict) and not hasattr(default, "__dataclass_fields__"):
            found[item.name] = Key(hints[item.name], default, **item.metadata)
    return found


def check(cls: type, values: Mapping[str, object], prefix: str = "") -> None:
    """Refuse the first value that its key does not allow."""
    known = keys(cls)
    for name, value in values.items():
        if name in known:
            known[name].check(prefix + name, value)


def shown(value: object) -> str:
    """A value as in TOML, without quotes."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _words(kind: object) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is list:
        return "a list"
    inner = [part for part in get_args(kind) if part is not type(None)]
    if inner:
        return f"{' or '.join(map(_words, inner))}, or null"
    named = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return named.get(kind, str(kind))  # type: ignore[call-overload, no-any-return]
