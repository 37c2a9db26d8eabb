"""How many clients are computed at once where nobody says it, and where their states are: as memory allows."""

from pathlib import Path

import torch

from pfed1bs.core import gpu
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm
from pfed1bs.engine.slabs import Slabs
from pfed1bs.engine.store import Clients, Store, row_bytes
from pfed1bs.engine.workers import CPU

CACHE = 32 << 20  # bytes of the clients that one thread has before it; docs/performance.md, section 4
SHARE = 0.7  # of the free memory of a GPU
SMALL = 64 << 20  # bytes of all clients' states up to which they are tensors in memory
WHOLE = 4 << 30  # the same where all of them work in every round; on a GPU a quarter of its free memory
COPIES = 4  # of a client's state and of its weights: read, recorded, given back; gradient, sketch and what they need


def fitting(
    algorithm: Algorithm,
    clients: Clients,
    data: Federation,
    batch: int,
    sampled: int | None = None,
    device: torch.device = CPU,
) -> int:
    """The chunk for those of a federation that work in a round, with states such as these; turns are of equal length.

    On the CPU a thread gets CACHE bytes of them: stacking pays for small models alone. A GPU is asked.
    """
    weights: int = 4 * algorithm.task.n
    held: int = algorithm.task.held(data.shape, batch, device, data.inputs.dtype)
    if device.type == "cpu":
        most = torch.get_num_threads() * max(1, CACHE // (weights + held))
    else:
        most = max(1, int(SHARE * free(device)) // (2 * held + COPIES * (row_bytes(clients) + weights)))
    count = data.clients if algorithm.trains == "all" else sampled or data.clients
    turns = -(-count // most)
    return -(-count // turns)


def housed(clients: Clients, some: bool, device: torch.device, folder: Path | None = None) -> Clients:
    """The states of all clients where they are kept: on the device, or in files of a folder when that is too much.

    Where only `some` work in a round, tensors of all would be copied for them, so less is too much.
    """
    if isinstance(clients, Store):
        return clients.to(device)
    most = free(device) // 4 if device.type != "cpu" else SMALL if some else WHOLE
    total = row_bytes(clients) * max((len(value) for value in clients.values()), default=0)
    if total > most:
        return Store.of(clients, Slabs.new(folder)).to(device)
    return {name: value.to(device).contiguous() for name, value in clients.items()}


def free(device: torch.device) -> int:
    """Bytes of a GPU that nobody holds, or torch for later use; no more than this process's part of it."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    unused, total = torch.cuda.mem_get_info(device)
    return min(unused + idle, total // gpu.sharers)
