"""Which GPU there is, and why it cannot be used if it cannot."""

import re
import shutil
import subprocess
from pathlib import Path

import torch

from pfed1bs.core import nvrtc

DRIVER = Path("/proc/driver/nvidia/version")
ON_CPU = "leave --device out, or write --device cpu"
GIB = 2**30

sharers = 1  # processes that compute on the same GPU at the same time, this one among them


def trouble(index: int = 0) -> str | None:
    """Why torch cannot compute on a GPU; None: it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # no GPU, no driver, or a driver that does not match
        return f"torch {torch.__version__} finds none it can use: {str(error).splitlines()[0].rstrip('.')}"
    if index >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} of them, counted from 0"
    found, built = torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()
    if built and not any(_runs(name, found) for name in built):
        has = f"{torch.cuda.get_device_name(index)} has compute capability {'.'.join(map(str, found))}"
        return f"{has}, torch {torch.__version__} was built for {', '.join(built)}"
    return None


def facts(index: int = 0) -> dict[str, str]:
    """What results depend on, for the record of a run."""
    major, minor = torch.cuda.get_device_capability(index)
    return {
        "driver": driver(),
        "cuda": str(torch.version.cuda),
        "capability": f"{major}.{minor}",
        "gpu_memory": f"{torch.cuda.get_device_properties(index).total_memory / GIB:.1f} GiB",
        "gpu_kernels": nvrtc.trouble() or "compiled",
    }


def described(index: int = 0) -> str:
    """One line for `pfed1bs env`."""
    if reason := trouble(index):
        return f"none: {reason}"
    try:
        free, total = (bytes / GIB for bytes in torch.cuda.mem_get_info(index))
    except RuntimeError as error:  # others have it for themselves, or it is broken
        return f"{torch.cuda.get_device_name(index)}, which does not answer: {str(error).splitlines()[0]}"
    known = facts(index)
    versions = f"driver {known['driver']}, CUDA {known['cuda']}, compute capability {known['capability']}"
    reason = nvrtc.trouble()
    kernels = f"our kernels cannot be used, slower torch operations are: {reason}" if reason else "our kernels compile"
    return f"{torch.cuda.get_device_name(index)}, {free:.1f} of {total:.1f} GiB free, {versions}; {kernels}"


def driver() -> str:
    """The version of NVIDIA's driver."""
    if DRIVER.exists() and (found := re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", DRIVER.read_text())):
        return found[0]
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    if shutil.which(ask[0]) is None:
        return "unknown"
    return (subprocess.run(ask, capture_output=True, text=True, check=False).stdout.split() or ["unknown"])[0]


def _runs(built: str, found: tuple[int, int]) -> bool:
    """Whether code that was built for a chip runs on one of this compute capability.

    sm_86 does on 8.6 and 8.9, sm_90a on 9.0 alone, and compute_90 is compiled anew for all later ones.
    """
    name = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", built)
    if name is None:
        return False
    kind, least = name[1], (int(name[2]), int(name[3]))
    if name[4] == "a":
        return found == least
    return found >= least and (kind == "compute" or found[0] == least[0])
