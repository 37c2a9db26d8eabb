"""What results depend on besides the configuration."""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from pfed1bs.hadamard import kernel
from pfed1bs.reproducible import guarantee
from pfed1bs.simulate import choose


def environment(device: str = "auto") -> dict[str, object]:
    """What the results depend on besides the configuration."""
    chosen = choose(device)
    return {
        "command": argv(),
        "pfed1bs": version("pfed1bs"),
        "commit": commit(),
        "kernel": kernel(),
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else processor(),
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


def commit() -> str:
    """The commit of the source this runs from, with "+" if it was changed since; empty outside a checkout."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def argv() -> str:
    """The command that is running, to be written down with its results."""
    return " ".join(["pfed1bs", *sys.argv[1:]])
