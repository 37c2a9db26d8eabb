"""What a GPU cannot do, in words, with the way out."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pfed1bs.core import gpu
from pfed1bs.core.errors import Failure

LOOK = "look with nvidia-smi whether others use it, or write --device cpu"
GOES_ON = "what is saved is kept, and the same command with --resume goes on from there"
CALLS = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS", "CUDNN_STATUS", "No CUDA GPUs")
FULL = ("out of memory", "ALLOC_FAILED")  # said by the driver and the libraries, which have no class for it


@contextmanager
def explained(device: torch.device, doing: str, clients: int) -> Iterator[None]:
    """Turn the failures of a device that computes `clients` at once into a Failure that says what to do."""
    try:
        yield
    except RuntimeError as error:
        reason = unanswered(error)
        if full(error):
            raise Failure(f"{doing}: {_memory(device)}", smaller(clients)) from error
        if not reason:
            raise
        raise Failure(f"{doing}: the GPU does not answer ({reason})", f"{LOOK}; {GOES_ON}") from error


def unanswered(error: BaseException) -> str:
    """What a call of a GPU ended with, in one line; empty for any other error."""
    line = (str(error).strip().splitlines() or [""])[0]
    ours = isinstance(error, RuntimeError) and not isinstance(error, Failure)
    return line if ours and any(call in line for call in CALLS) else ""


def full(error: BaseException) -> bool:
    """Whether the memory of a GPU ran out."""
    return isinstance(error, torch.OutOfMemoryError) or any(word in unanswered(error) for word in FULL)


def _memory(device: torch.device) -> str:
    if device.type != "cuda" or not torch.cuda.is_available():
        return "the device has too little memory"
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info(device))
    ours = torch.cuda.memory_reserved(device) / 2**30
    return (
        f"{torch.cuda.get_device_name(device)} has too little memory: {total:.1f} GiB, of which this process has "
        f"{ours:.1f}, others {max(total - free - ours, 0):.1f}"
    )


def smaller(clients: int | None = None) -> str:
    """What to do when `clients` at once, or nobody knows how many, are too much."""
    chunk = f"compute fewer clients at once with --chunk {max(1, (clients or 2) // 2)}"
    ways = ["use a smaller batch or model" if clients == 1 else chunk]
    if gpu.sharers > 1:
        ways.append(f"fewer runs at once with --parallel {gpu.sharers // 2}")
    return f"{', '.join(ways)}, or write --device cpu; {GOES_ON}"
