"""The options of one method: as strict as the keys of a run, from a recipe, from flags, or from another method."""

from collections.abc import Mapping

from pfed1bs.algorithms import algorithm_class
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import keys
from pfed1bs.runs.flags import typed, unknown


def defaults(method: str) -> dict[str, object]:
    """What they are if nobody says otherwise."""
    return {name: key.default for name, key in keys(algorithm_class(method)).items()}


def typed_option(method: str, name: str, value: object, shown_as: str) -> object:
    """The value of an option of a method."""
    known = keys(algorithm_class(method))
    if name not in known:
        raise unknown(f"{shown_as}.{name}", [f"{shown_as}.{key}" for key in known])
    found = typed(f"{shown_as}.{name}", known[name], value)
    known[name].check(f"{shown_as}.{name}", found)
    return found


def typed_options(method: str, options: object, table: str) -> dict[str, object]:
    """The values of a table of a recipe, [algorithm] or [options.NAME]."""
    algorithm_class(method)
    if not isinstance(options, dict):
        raise UserError(f"{table} must be a table", f"write [{table}]")
    return {name: typed_option(method, name, value, table) for name, value in options.items()}


def taken_over(options: Mapping[str, object], method: str) -> dict[str, object]:
    """Those options of another method that go over to this one."""
    known = keys(algorithm_class(method))
    return {name: value for name, value in options.items() if name in known and known[name].role == "optimiser"}


def flag_names(method: str) -> dict[str, tuple[str, str]]:
    """Table and option of every flag: algorithm.X, for all that have X, then options.NAME.X, for this one."""
    tables, names = ("algorithm", f"options.{method}"), keys(algorithm_class(method))
    return {f"{table}.{name}": (table, name) for table in tables for name in names}


def flagged(given: Mapping[str, str], method: str) -> dict[str, object]:
    """What flags say to a method."""
    asked = {key: at for key, at in flag_names(method).items() if key in given}
    return {name: typed_option(method, name, given[key], table) for key, (table, name) in asked.items()}
