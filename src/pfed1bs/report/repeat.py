"""How somebody else repeats a page: the software, one recipe with all settings, and the commands."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import cast

from pfed1bs.core.extras import need
from pfed1bs.core.options import shown
from pfed1bs.report.groups import Group, differing
from pfed1bs.report.records import Json, RunRecord
from pfed1bs.report.results import chosen
from pfed1bs.runs.config import with_role

FILE = "recipe.toml"
LEFT = {*with_role("machine", "simulator", "seed", "others")} - {"evaluate_every", "tf32", "potential"}
SECONDS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))


@dataclass(frozen=True)
class Repeat:
    """What the page says under its heading."""

    version: str
    commit: str  # empty: nobody knows
    changed: bool  # since that commit
    torch: str  # what pip is told; empty: nobody knows
    recipe: str
    commands: list[str]  # with the recipe, in its folder
    asked: list[str]  # as they were given, with names in the place of paths
    needed: list[str]  # what the page cannot hold: files of data, modules of methods
    took: str


def repeated(records: Sequence[RunRecord], found: Sequence[Group]) -> Repeat:
    """From the files of the runs alone."""
    first, env = records[0].summary, records[0].env
    commit = str(first.get("commit") or env.get("commit") or "")
    asked = dict.fromkeys(portable(str(own.summary.get("command") or own.env.get("command"))) for own in records)
    torch = str(env.get("torch", "")).partition("+")[0]
    seconds = sum(value for own in records if (value := own.number("seconds")) == value)
    size, unit = next((item for item in SECONDS if seconds >= 2 * item[0]), SECONDS[-1])
    return Repeat(
        version=str(first.get("version") or env.get("pfed1bs") or ""),
        commit=commit.rstrip("+"),
        changed=commit.endswith("+"),
        torch=f"torch=={torch}" if torch else "torch",
        recipe=need("tomli_w", "cli").dumps(recipe(found)),
        commands=commands(found),
        asked=[*asked],
        needed=needed(found),
        took=f"{seconds / size:.0f} {unit}" if seconds else "",
    )


def recipe(found: Sequence[Group]) -> Json:
    """The settings of the first run, the methods with options that are not their defaults, and the seeds."""
    config = _kept(found[0].records[0].config)
    data = cast(Json, config.get("data", {}))
    if _own_file(data.get("name")):
        config["data"] = {**data, "name": PurePath(str(data["name"])).name}
    if len(found) == 1 and len(found[0].records) == 1:
        return {"seed": found[0].records[0].seed, **config, "algorithm": found[0].records[0].config["algorithm"]}
    firsts = [group for group in found if not group.variant]
    seeds = sorted({record.seed for group in found for record in group.records})
    options = {group.algorithm: own for group in firsts if (own := chosen(group.records[0]))}
    return {
        **config,
        "compare": {"algorithms": [group.algorithm for group in firsts], "seeds": seeds},
        **({"options": options} if options else {}),
    }


def commands(found: Sequence[Group]) -> list[str]:
    """One for all; where more than methods and their options differ, one for each, with what is its own."""
    if len(found) == 1:
        return [shlex.join(["pfed1bs", "run" if len(found[0].records) == 1 else "compare", FILE])]
    keys = [key for key in differing([group.settings for group in found]) if not key.startswith("algorithm.")]
    words = ["pfed1bs", "compare", FILE]
    if not keys:
        more = [group.label for group in found if group.variant]
        return [shlex.join([*words, *(["--runs", *more] if more else [])])]
    told = []
    for group in found:
        options = " ".join(f"{key}={shown(value)}" for key, value in chosen(group.records[0]).items())
        seeds = ",".join(str(record.seed) for record in group.records)
        flags = [f"--{key}={shown(group.settings[key])}" for key in keys if group.settings.get(key) is not None]
        own = [*words, "--algorithms", "", "--runs", f"{group.algorithm} {options}".strip()]
        told.append(shlex.join([*own, *flags, "--seeds", seeds]))
    return told


def needed(found: Sequence[Group]) -> list[str]:
    """Files and modules that whoever repeats it must be given."""
    names = [str(group.settings.get(f"{table}.name")) for group in found for table in ("data", "model", "algorithm")]
    files = [f"the file {PurePath(name).name}" for name in names if _own_file(name)]
    modules = [f"the module {name.partition(':')[0]}" for name in names if re.fullmatch(r"[\w.]+:[A-Za-z_]\w*", name)]
    return [*dict.fromkeys(files + modules)]


def portable(command: str) -> str:
    """A command without the folders of whoever gave it, and without --resume."""
    try:
        words = shlex.split(command)
    except ValueError:  # written down without its quotes
        words = command.split()
    own = [re.sub(r"^(--[\w.]+=)?([~/].*)$", _last, word) for word in words if word != "--resume"]
    return shlex.join(own)


def _last(word: re.Match[str]) -> str:
    """The last name of a path, behind its flag."""
    return (word[1] or "") + (Path(word[2]).name or word[2])


def _own_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".npz")


def _kept(config: Json, prefix: str = "") -> Json:
    """The tables without what is a machine's, or another run's."""
    kept: Json = {}
    for key, value in config.items():
        if isinstance(value, dict):
            if prefix + key not in LEFT and prefix + key != "algorithm":
                kept[key] = _kept(value, f"{prefix}{key}.")
        elif prefix + key not in LEFT and value is not None:
            kept[key] = value
    return kept
