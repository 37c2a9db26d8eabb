"""What results depend on besides the configuration."""

import os
import platform
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from pfed1bs.core.reproducible import guarantee
from pfed1bs.core.transform import kernel
from pfed1bs.engine.rounds import choose

PROJECT = Path(__file__).parents[3] / "pyproject.toml"  # in a checkout; there is none beside an installed package


def environment(device: str = "auto") -> dict[str, object]:
    """What the results depend on besides the configuration."""
    chosen = choose(device)
    return {
        "command": argv(),
        "pfed1bs": release(),
        "commit": commit(),
        "kernel": kernel(),
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else processor(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "bits": str(guarantee(chosen.type)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def processor() -> str:
    """The CPU's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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


def argv() -> str:
    """The command that is running, to be written down with its results."""
    return " ".join(["pfed1bs", *sys.argv[1:]])
