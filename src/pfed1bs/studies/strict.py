"""What a recipe of a table or figure may say: all of it is looked at before anything runs."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.runs.config import known_keys
from pfed1bs.studies.pictured import AGAINST, DRAWN, LAST

SHOWN = "see docs/reproduce.md#your-own-method-beside-ours"
KINDS = {int: "a number", str: "text", bool: "true or false", list: "a list", dict: "a table"}
TEXTS = ("algorithms", "runs", "data", "pictures", "tested", "logged")  # lists
CHOICES = {"across": ("data", "methods"), "logged": (*LAST,), "pictures": (*DRAWN, f"{AGAINST}OPTION")}
Plain = Mapping[str, object]


def known(cls: type, plain: object, place: str, without: str = "") -> None:
    """Refuse keys that mean nothing, values that are none of theirs, and a table that lacks a key."""
    if not isinstance(plain, dict):
        raise UserError(f"{place} is a table, got {_kind_of(plain)} ({plain!r})", SHOWN)
    kinds = {item.name: _kind(item) for item in fields(cls) if item.name != without}
    for key, value in plain.items():
        if key not in kinds:
            raise UserError(f"{place}: unknown key {key}", nearest(key, [*kinds]))
        _typed(place, key, value, kinds[key])
        for item in value if key in TEXTS else ():
            _typed(place, f"each of {key}", item, str)
        for item in value if isinstance(value, list) else [value]:
            if key in CHOICES and item not in CHOICES[key] and not (key == "pictures" and item.startswith(AGAINST)):
                raise UserError(f"{place}: {key} has no {item}", nearest(item, [*CHOICES[key]]))


def whole(cls: type, plain: Plain, place: str, without: str = "") -> None:
    """Refuse a table that lacks a key without a default."""
    for item in fields(cls):
        bare = item.default is MISSING and item.default_factory is MISSING
        if bare and item.name != without and item.name not in plain:
            raise UserError(f"{place} has no {item.name}", SHOWN)


def counted(seeds: int, settings: Plain, place: str) -> None:
    """Refuse fewer seeds than none, and a setting without a value: a part of no runs."""
    if seeds < 0:
        raise UserError(f"{place}: seeds is a number from 0 on, got {seeds}", "say how many; 0 takes the recipe's")
    for key, value in settings.items():
        if value == []:
            raise UserError(f"{place}: {key} has no values, so that there are no runs", "name some, or leave it out")


def numbers(paper: Plain, place: str) -> None:
    """Refuse numbers beside ours that are no mean and deviation of a data set."""
    for label, cells in paper.items():
        _typed(place, f"paper.{label}", cells, dict)
        for data, cell in cells.items() if isinstance(cells, dict) else ():
            two = isinstance(cell, list) and len(cell) == 2
            if not two or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in cell):
                raise UserError(
                    f"{place}: paper.{label}.{data} is a mean and a deviation, got {cell!r}", "write [97.2, 0.5]"
                )


def beside(paper: Mapping[str, Plain], runs: Iterable[tuple[str, str]], place: str) -> None:
    """Refuse numbers of a data set on which the label has no run: they would stand nowhere."""
    there = {*runs}
    for label, cells in paper.items():
        own = [data for name, data in there if name == label]
        for data in cells:
            if data not in own:
                raise UserError(f"{place}: there is no run of {label} on {data}", nearest(data, own))


def drawn(pictures: Iterable[str], methods: Iterable[str], place: str) -> None:
    """Refuse a picture against an option that a method does not have."""
    for option in (name.removeprefix(AGAINST) for name in pictures if name.startswith(AGAINST)):
        for method in dict.fromkeys(methods):
            own = [key.removeprefix("algorithm.") for key in known_keys(method) if key.startswith("algorithm.")]
            if option not in own:
                raise UserError(f"{place}: {method} has no {option}, of {AGAINST}{option}", nearest(option, own))


def _typed(place: str, key: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        wanted = KINDS.get(kind, kind.__name__)
        raise UserError(f"{place}: {key} is {wanted}, got {_kind_of(value)} ({value!r})", SHOWN)


def _kind_of(value: object) -> str:
    return KINDS.get(type(value), type(value).__name__)


def _kind(item: Field[object]) -> type:
    """What a key of a recipe holds, as its default tells."""
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return str if default is MISSING else list if isinstance(default, tuple) else type(default)
