"""What results depend on besides the configuration."""

import os
import platform
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch

from pfed1bs.core import gpu
from pfed1bs.core.origin import commit, release
from pfed1bs.core.reproducible import guarantee
from pfed1bs.core.transform import kernel
from pfed1bs.engine.rounds import choose

Facts = dict[str, object]


def environment(device: str = "auto") -> Facts:
    """What the results depend on besides the configuration."""
    chosen = choose(device)
    return {
        "command": argv(),
        "pfed1bs": release(),
        "commit": commit(),
        "kernel": kernel(),
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else processor(),
        "tf32": chosen.type == "cuda" and torch.backends.cuda.matmul.allow_tf32,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "bits": str(guarantee(chosen.type)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **(gpu.facts(chosen.index or 0) if chosen.type == "cuda" else {}),
    }


def starts(env: Facts) -> list[Facts]:
    """Every start of a run, from what env.json holds: the last one, with those that did rounds before it inside."""
    last = {key: value for key, value in env.items() if key != "earlier"}
    return [*cast(list[Facts], env.get("earlier", [])), last]


def started(device: str, begun: int, before: Facts) -> Facts:
    """The environment of a start at round `begun`; of the starts before it those whose rounds are kept."""
    kept = [start for start in starts(before) if start and cast(int, start.get("from_round", 0)) < begun]
    return {**environment(device), "from_round": begun, "earlier": kept}


def processor() -> str:
    """The CPU's name where the system tells it."""
    return (cpuinfo("model name") or [platform.processor() or platform.machine()])[0]


def cpuinfo(key: str) -> list[str]:
    """What the system tells of every core under this key; nothing where it tells nothing."""
    info = Path("/proc/cpuinfo")
    lines = [line.partition(":") for line in info.read_text().splitlines()] if info.exists() else []
    return [value.strip() for name, _, value in lines if name.strip() == key]


def argv() -> str:
    """The command that is running, to be written down with its results."""
    return shlex.join(["pfed1bs", *sys.argv[1:]])
