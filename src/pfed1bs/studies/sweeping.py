"""One or several keys of the configuration over several values each: every combination is a run of its own."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from pfed1bs.algorithms import algorithm_class
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import keys
from pfed1bs.runs.config import load
from pfed1bs.studies.comparison import Entry, Variant, entries
from pfed1bs.studies.design import PLAIN, Design

Point = tuple[tuple[str, str], ...]  # a value for every key that is swept


def points(texts: Sequence[str]) -> list[Point]:
    """Every combination of 'KEY=V1,V2,...'; one empty combination of nothing."""
    axes = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not all(values.split(",")):
            raise UserError(f"a sweep is KEY=VALUE,VALUE, got {text}", "write --sweep algorithm.lam=0,1e-3,1e-2")
        axes.append([(key, value) for value in values.split(",")])
    swept = [axis[0][0] for axis in axes]
    twice = next((key for key in swept if swept.count(key) > 1), None)
    if twice or "seed" in swept or "algorithm.name" in swept:
        name = twice or ("seed" if "seed" in swept else "algorithm.name")
        hint = {"seed": "name seeds with --seeds", "algorithm.name": "name methods with --algorithms"}
        raise UserError(f"{name} cannot be swept here", hint.get(name, "write all its values into one --sweep"))
    return list(product(*axes))


def swept(
    recipe: str | None, rest: Sequence[str], variants: Sequence[Variant], seeds: Sequence[int], texts: Sequence[str],
    design: Design = PLAIN,
) -> list[Entry]:  # fmt: skip
    """The runs of a sweep; a method without an option that is swept is run once for the values of the others."""
    found: dict[str, Entry] = {}
    for point in points(texts):
        words = [word for key, value in point for word in (f"--{key}", value)]
        config = load(recipe, [*rest, *words], [item.name for item in variants])
        for number, entry in enumerate(entries(config, variants, seeds, design)):
            item = variants[number % len(variants)]
            name = _named(entry, [pair for pair in point if _has(item, pair[0])])
            found.setdefault(name, replace(entry, name=name))
    return sorted(found.values(), key=lambda entry: seeds.index(entry.config.seed))


def _has(variant: Variant, key: str) -> bool:
    """Whether a key means something to a method: not an option of others, nor one that the variant sets itself."""
    table, _, name = key.rpartition(".")
    if table not in ("algorithm", f"options.{variant.name}"):
        return not table.startswith("options.")
    return name in keys(algorithm_class(variant.name)) and name not in variant.options


def _named(entry: Entry, point: Sequence[tuple[str, str]]) -> str:
    """The folder's name with what was swept before its seed."""
    told = "-".join(f"{key.removeprefix('algorithm.')}={value}" for key, value in point)
    base, _, seed = entry.name.rpartition("-s")
    return f"{base}-{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', told)}-s{seed}" if told else entry.name
