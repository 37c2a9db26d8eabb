"""What the method's theory speaks about, as numbers: objectives, the potential, distances of sketches and models."""

from math import nan, prod

import torch
from torch import Tensor

from pfed1bs.core.votes import unpack
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, State, buffers_of
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rounds import Progress
from pfed1bs.engine.store import Clients, device_of
from pfed1bs.engine.workers import portions, spread
from pfed1bs.wire.messages import Layout

BLOCK = 1 << 16  # bytes of packed signs that are unpacked at once


def objectives(
    algorithm: Algorithm,
    data: Federation,
    server: State,
    clients: Clients,
    *,
    round: int = 1,
    size: int = 256,
    chunk: int | None = None,
) -> Tensor:
    """F~_k(w_k) = f_k(w_k) + what the method adds to it (`penalties`) of every client, (K,) in float64 on the CPU.

    f_k is the mean loss over all training samples of client k, `size` of them at a time, for `chunk` clients at once
    (None: all), in evaluation mode: BatchNorm uses the client's running statistics. `round` is the next one.
    """
    device = device_of(clients)
    data = data.to(device)

    def objective(ids: Tensor) -> Tensor:
        some = rows(clients, ids)
        w, total = some["w"], torch.zeros(len(ids), dtype=torch.float64, device=device)
        for x, y, mask in data.trained(ids, size):
            losses = algorithm.task.loss.samples(algorithm.task.logits(w, x, buffers_of(some)), y)
            total += (losses * mask).sum(1)
        return sum(algorithm.penalties(server, some, round).values(), total / data.sizes[ids].to(device))

    return torch.cat(spread(objective, portions(data.clients, chunk, device), device)).cpu()


def potential(
    algorithm: Algorithm,
    data: Federation,
    server: State,
    clients: Clients,
    *,
    round: int = 1,
    size: int = 256,
    chunk: int | None = None,
) -> float:
    """Psi = sum_k p_k F~_k(w_k; v) with p_k = N_k / sum N, over all clients and all their training samples (Eq. 28).

    `round` is the next one (Progress.round): 0 before anybody has voted, when v is v0. `size` and `chunk` bound the
    memory: samples of a client, and clients, computed at once.
    """
    shares = data.sizes.double() / data.sizes.sum()
    return float(shares @ objectives(algorithm, data, server, clients, round=round, size=size, chunk=chunk))


def potentials(algorithm: Algorithm, data: Federation, now: Progress, chunk: int | None) -> dict[str, float]:
    """Psi for the metrics; nothing for a method whose objective adds nothing to the losses."""
    if not algorithm.penalties(now.server, rows(now.clients, torch.tensor([0])), now.round):
        return {}
    return {"potential": potential(algorithm, data, now.server, now.clients, round=now.round, chunk=chunk)}


def apart(layout: Layout, log: State, groups: Tensor) -> dict[str, float]:
    """Mean distances of the packed signs in a round's log, within and between groups of its clients.

    `layout` says how many signs a field has. Where there are no pairs, there is no mean.
    """
    found: dict[str, float] = {}
    for name, signs in log.items():
        if signs.dtype == torch.uint8:
            within, between = group_hamming(hamming(signs, prod(layout[name].shape)), groups)
            found |= {"hamming_within": within, "hamming_between": between}
    return {name: value for name, value in found.items() if value == value}


def distance(models: Tensor) -> float:
    """The mean distance of two different rows of (S, n); nan where there is one alone."""
    return _mean(torch.pdist(models))


def hamming(sketches: Tensor, m: int | None = None) -> Tensor:
    """Fraction of differing bits of every pair, (S, S) in float64: (1 - <z_i, z_j> / m) / 2.

    Sketches are +-1 (S, m), or packed (S, ceil(m/8)) bytes together with their number of bits m.
    """
    if sketches.dtype != torch.uint8:
        m = sketches.shape[-1]
        products = [part.float() @ part.float().T for part in torch.split(sketches, 8 * BLOCK, -1)]
    elif m is None:
        raise ValueError("packed sketches do not say how many bits they have; pass m as well")
    else:
        blocks = zip(torch.split(sketches, BLOCK, -1), range(0, m, 8 * BLOCK), strict=True)
        signs = (unpack(part.contiguous(), min(8 * BLOCK, m - start)) for part, start in blocks)
        products = [part @ part.T for part in signs]
    return (1 - torch.stack(products).double().sum(0) / m) / 2


def label_groups(data: Federation) -> Tensor:
    """A number for every client, (K,), the same for clients whose training samples have the same set of labels."""
    held = data.table()[0] > 0
    groups: Tensor = torch.unique(held, dim=0, return_inverse=True)[1]
    return groups


def group_hamming(distances: Tensor, groups: Tensor) -> tuple[float, float]:
    """Mean distance over pairs of different clients in the same group, and in different groups; nan without pairs."""
    same = groups[:, None] == groups
    pairs = torch.ones_like(same).triu(1)
    return _mean(distances[same & pairs]), _mean(distances[~same & pairs])


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else nan
