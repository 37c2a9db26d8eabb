"""What a recipe of a table or figure may say: all of it is looked at before anything runs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from math import isfinite
from typing import cast

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.report.statistics import MOST
from pfed1bs.runs.config import known_keys
from pfed1bs.studies.pictured import AGAINST, DRAWN, LAST

SHOWN = "see docs/reproduce.md#your-own-method-beside-ours"
KINDS = {int: "a number", str: "text", bool: "true or false", list: "a list", dict: "a table"}
TEXTS = ("algorithms", "runs", "data", "pictures", "tested", "logged")  # lists
CHOICES = {"across": ("data", "methods"), "logged": (*LAST,), "pictures": (*DRAWN, f"{AGAINST}OPTION")}
NEVER_SET = {  # what the command or the whole table decides
    "seed": "say with seeds how many, as a key of the part",
    "device": "give --device to the command",
    "out": "give --out and --work to the command",
    "checkpoint_every": "leave it out; a run that was cut off goes on by itself",
}
Plain = Mapping[str, object]


def refuse_unknown(cls: type, plain: object, place: str, without: str = "") -> None:
    """Refuse keys that mean nothing, and values that are none of theirs."""
    if not isinstance(plain, dict):
        raise UserError(f"{place} is a table, got {_kind_of(plain)} ({plain!r})", SHOWN)
    kinds = {item.name: _kind(item) for item in fields(cls) if item.name != without}
    for key, value in plain.items():
        if key not in kinds:
            raise UserError(f"{place}: unknown key {key}", nearest(key, [*kinds]))
        _typed(place, key, value, kinds[key])
        for item in value if key in TEXTS else ():
            _typed(place, f"each of {key}", item, str)
        for name, inner in value.items() if key in ("rivals", "ticks") else ():
            _typed(place, f"{key}.{name}", inner, list if key == "rivals" else str)
            for item in inner if key == "rivals" else ():
                _typed(place, f"each of {key}.{name}", item, str)
        for item in value if isinstance(value, list) else [value]:
            if key in CHOICES and item not in CHOICES[key] and not (key == "pictures" and item.startswith(AGAINST)):
                raise UserError(f"{place}: {key} has no {item}", nearest(item, [*CHOICES[key]]))


def refuse_missing(cls: type, plain: Plain, place: str, without: str = "") -> None:
    """Refuse a table that lacks a key without a default."""
    for item in fields(cls):
        bare = item.default is MISSING and item.default_factory is MISSING
        if bare and item.name != without and item.name not in plain:
            raise UserError(f"{place} has no {item.name}", SHOWN)


def refuse_settings(seeds: int, settings: Plain, place: str) -> None:
    """Refuse fewer seeds than none, a setting without a value, and those that a part does not choose."""
    if seeds < 0:
        raise UserError(f"{place}: seeds is a number from 0 on, got {seeds}", "say how many; 0 takes the recipe's")
    for key, value in settings.items():
        if key in NEVER_SET:
            raise UserError(f"{place}: {key} is not set in a part", NEVER_SET[key])
        if value == []:
            raise UserError(f"{place}: {key} has no values, so that there are no runs", "name some, or leave it out")


def refuse_numbers(paper: Plain, place: str) -> None:
    """Refuse numbers beside ours that are no mean and deviation of a data set."""
    for label, cells in paper.items():
        _typed(place, f"paper.{label}", cells, dict)
        for data, cell in cast(Plain, cells).items():
            if not (isinstance(cell, list) and len(cell) == 2 and all(map(_measured, cell))):
                raise UserError(
                    f"{place}: paper.{label}.{data} is a mean and a deviation, got {cell!r}", "write [97.2, 0.5]"
                )


def refuse_strays(paper: Mapping[str, Plain], runs: Iterable[tuple[str, str]], place: str) -> None:
    """Refuse numbers of a data set on which the label has no run: they would stand nowhere."""
    there = {*runs}
    for label, cells in paper.items():
        own = [data for name, data in there if name == label]
        for data in cells:
            if data not in own:
                raise UserError(f"{place}: there is no run of {label} on {data}", nearest(data, own))


def refuse_pictures(pictures: Sequence[str], labels: Sequence[str], place: str) -> None:
    """Refuse a picture against what is no number among the options of a method, and falls of steps that are none."""
    methods = [label.partition(" ")[0] for label in labels]
    for option in (name.removeprefix(AGAINST) for name in pictures if name.startswith(AGAINST)):
        for method in dict.fromkeys(methods):
            options = {key: item for key, item in known_keys(method).items() if key.startswith("algorithm.")}
            own = [key.partition(".")[2] for key, item in options.items() if type(item.default) in (int, float)]
            if option not in own:
                told = f"{place}: {method} has no number {option}, for {AGAINST}{option}"
                raise UserError(told, nearest(option, own) if own else "draw it against something else")
    for label, method in zip(labels, methods, strict=True):
        if "falls" in pictures and methods.count(method) > 1 and not _number(label.rpartition("=")[2]):
            raise UserError(f"{place}: falls needs a step at the end of each label of a method, got {label}", SHOWN)


def refuse_comparisons(against: str, tested: Sequence[str], rivals: Mapping[str, Sequence[str]], place: str) -> None:
    """Refuse labels that are compared with themselves or twice, more tests than go together, and tests of nothing."""
    for label, others, name in [(against, tested, "tested"), *((*pair, "rivals") for pair in rivals.items())]:
        if others and not label:
            raise UserError(f"{place}: {name} needs a label to test against", "say against")
        if label in others:
            raise UserError(f"{place}: {name} has {label} beside itself", "leave it out")
        if len({*others}) < len(others):
            raise UserError(f"{place}: {name} has a label twice", "leave one out")
        if len(others) > MOST:
            raise UserError(f"{place}: at most {MOST} are tested together, {name} has {len(others)}", "name fewer")


def _measured(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and 0 <= value <= 100


def _number(text: str) -> bool:
    with suppress(ValueError):
        return isfinite(float(text))
    return False


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
