"""Going on with a federation: what its folder holds stands, under what the user gives anew."""

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pfed1bs.flower.link import Content, text
from pfed1bs.flower.settings import Values, tables
from pfed1bs.runs.config import load

SERVER = "pfed1bs.flower.server_app:app"
OURS = ("out", "resume")  # what only the server needs


def resumed(values: Values, defaults: Values) -> Values:
    """The values of a run; of one that goes on those of its folder, but where the run config is not as the app has it.

    Flower hands over the app's defaults and what the user wrote in one table, so a value that is the app's own counts
    as not given.
    """
    folder = Path(str(values.get("out", "")))
    if not (values.get("resume") is True and values.get("out") and (folder / "config.toml").is_file()):
        return values
    given = {key: value for key, value in values.items() if key not in defaults or defaults[key] != value}
    about = json.loads((folder / "federation.json").read_text()) if (folder / "federation.json").exists() else {}
    return {**flat(tables(load(str(folder / "config.toml")), {})), **about.get("rules", {}), **given, "resume": True}


def defaults() -> Values:
    """The run config as the app has it, which Flower puts on the path beside its modules; empty where it is not."""
    for place in map(Path, sys.path):
        file = place / "pyproject.toml"
        app = tomllib.loads(file.read_text()).get("tool", {}).get("flwr", {}).get("app", {}) if file.is_file() else {}
        if app.get("components", {}).get("serverapp") == SERVER:
            return flat(app["config"])
    return {}


def flat(nested: Mapping[str, object]) -> Values:
    """The keys of tables as Flower hands them over."""
    found: dict[str, object] = {}
    for key, value in nested.items():
        found |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return cast(Values, found)


def told(values: Values, run: Values) -> str:
    """What clients have to be told of the values of a run, because Flower tells them something else; as JSON."""
    differing = {key: value for key, value in values.items() if key not in OURS and run.get(key) != value}
    return json.dumps(differing) if differing else ""


def heard(content: Content) -> Values:
    """The values that the server tells a client beside those of the run config, or a ValueError."""
    found = json.loads(text(content, "run")) if "run" in content else {}
    if not isinstance(found, dict) or not all(isinstance(value, bool | int | float | str) for value in found.values()):
        raise ValueError("what the server tells of the run must be single numbers, truth values and texts")
    return found
