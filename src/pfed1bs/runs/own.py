"""Files of a user's own that a run depends on besides its configuration: data, and code outside of the package."""

import hashlib
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pfed1bs.core.errors import UserError
from pfed1bs.runs.config import Config

DIGITS = 16


def own_files(config: Config) -> dict[str, str]:
    """Of the data, method, model and loss that a run names by file or module, what their SHA-256 begins with.

    A module is told by its own file; what it imports is not looked at.
    """
    names = [config.data.name, config.method, config.model.name, config.model.loss, config.metric]
    files = {name: path for name in names if name and (path := _file(name)) and path.is_file()}
    return {name: _digest(path, *_state(path)) for name, path in files.items()}


def unchanged(folder: Path, env: dict[str, object], config: Config) -> None:
    """Refuse to go on with a run whose own files are not those that it began with; runs that say nothing go on."""
    now = own_files(config)
    for name, digest in cast(dict[str, str], env.get("files", {})).items():
        if now.get(name, digest) != digest:
            raise UserError(f"{name} has changed since {folder} began", "restore it, or begin anew in another folder")


def _file(name: str) -> Path | None:
    module, colon, _ = name.partition(":")
    if name.endswith(".npz"):
        return Path(name)
    with suppress(ImportError, ValueError):  # of a name that is no module; whoever needs it says so
        spec = find_spec(module) if colon else None
        return Path(spec.origin) if spec and spec.origin else None
    return None


def _state(path: Path) -> tuple[int, int]:
    return (found := path.stat()).st_mtime_ns, found.st_size


@cache
def _digest(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
