"""How many clients are computed at once where nobody says it: as many as there is memory for."""

import torch

from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, State
from pfed1bs.engine.workers import CPU

CACHE = 32 << 20  # bytes of the clients that one thread has before it; docs/performance.md, section 4
SHARE = 0.7  # of the free memory of a GPU
sharers = 1  # processes that compute on the same GPU at the same time, this one among them
COPIES = 4  # of a client's state and of its weights: read, recorded, given back; gradient, sketch and what they need


def fitting(
    algorithm: Algorithm,
    clients: State,
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
        states = sum(value[0].numel() * value.element_size() for value in clients.values())
        most = max(1, int(SHARE * free(device)) // (2 * held + COPIES * (states + weights)))
    count = data.clients if algorithm.trains == "all" else sampled or data.clients
    turns = -(-count // most)
    return -(-count // turns)


def free(device: torch.device) -> int:
    """Bytes of a GPU that nobody holds, or torch for later use; no more than this process's part of it."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    unused, total = torch.cuda.mem_get_info(device)
    return min(unused + idle, total // sharers)
