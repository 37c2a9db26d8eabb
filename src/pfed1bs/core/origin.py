"""Which version and commit of this package runs, and how; also where it was not installed, and without torch."""

import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PROJECT = Path(__file__).parents[3] / "pyproject.toml"  # in a checkout; there is none beside an installed package


def release() -> str:
    """The version of this package, also where it was not installed."""
    try:
        return version("pfed1bs")
    except PackageNotFoundError:
        return str(tomllib.loads(PROJECT.read_text())["project"]["version"]) if PROJECT.exists() else "unknown"


def commit() -> str:
    """The commit of the source this runs from, with "+" if it was changed since; nothing outside a checkout.

    PFED1BS_COMMIT overrules it, for code that has travelled without its history.
    """
    if told := os.environ.get("PFED1BS_COMMIT"):
        return told
    words = ["git", "-C", str(PROJECT.parent), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    found = ""
    if PROJECT.exists():  # an installed package may lie in the checkout of something else
        try:
            found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:  # there is no git
            pass
    return found


def pasted(words: Iterable[str]) -> str:
    """A command to be pasted, called as this program was: by its name, or from a checkout as a module."""
    module = Path(sys.argv[0]).parts[-2:] == ("pfed1bs", "__main__.py")
    return shlex.join([*([sys.executable, "-m"] if module else []), "pfed1bs", *words])
