"""What the method's theory speaks about, as numbers: the smoothed penalty, the potential, distances of sketches."""

from dataclasses import replace
from math import log as ln
from math import nan, prod

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.algorithms.pfed1bs import PFed1BS
from pfed1bs.core.sketch import Sketch
from pfed1bs.core.votes import sign, unpack
from pfed1bs.data import Federation
from pfed1bs.engine.contract import Algorithm, State, buffers_of
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rounds import Progress
from pfed1bs.engine.workers import portions, spread
from pfed1bs.wire.messages import Layout

BLOCK = 1 << 16  # bytes of packed signs that are unpacked at once


def smooth_l1(x: Tensor, gamma: float) -> Tensor:
    """l(x) = log(cosh(gamma x)) / gamma = |x| + (log1p(exp(-2 gamma |x|)) - log 2) / gamma, for every entry.

    The second form never overflows. |x| - ln(2) / gamma <= l(x) <= |x|, and l'(x) = tanh(gamma x).
    """
    return x.abs() + (torch.log1p(torch.exp(-2 * gamma * x.abs())) - ln(2)) / gamma


def penalty(sketch: Sketch, w: Tensor, v: Tensor, gamma: float, masked: bool = True) -> Tensor:
    """The smoothed one-sided penalty of weights w (..., n) against a consensus v (m,); result (...) in float64.

    With q = Phi w, masked: sum_i |v_i| l(q_i) - <v, q>, whose gradient is sketch.pull(w, v, gamma); literal, as printed
    (Eq. 5): sum_i l(q_i) - <v, q>. For v = -1, 0, +1 they differ only where v = 0. As gamma grows the masked one tends
    to 2 g(v, q) = 2 |[v q]_-|_1, the paper's one-sided norm (Eq. 2) without its factor 1/2.
    """
    q = sketch.forward(w)
    l1 = smooth_l1(q, gamma)
    return ((v.abs() * l1 if masked else l1) - v * q).sum(-1, dtype=torch.float64)


def consensus(algorithm: PFed1BS, server: State, round: int) -> Tensor:
    """The v (m,) that clients see in a round: 0, or the sketch of the first weights, before anybody has voted."""
    if round:
        return unpack(server["consensus"], algorithm.sketch.m)
    if algorithm.v0 == "sketch":
        return sign(algorithm.sketch.forward(algorithm.task.init(algorithm.seed)))
    return torch.zeros(algorithm.sketch.m)


def objectives(
    algorithm: PFed1BS, data: Federation, clients: State, v: Tensor, *, size: int = 256, chunk: int | None = None
) -> Tensor:
    """F~_k(w_k; v) = f_k(w_k) + lam penalty(w_k, v) + mu/2 |w_k|^2 of every client, (K,) in float64 on the CPU.

    f_k is the mean loss over all training samples of client k, `size` of them at a time, for `chunk` clients at once
    (None: all), in evaluation mode: BatchNorm uses the client's running statistics.
    """
    device = clients["w"].device
    data, v = replace(data, test=data.train).to(device), v.to(device)
    masked = algorithm.v0 != "zero_literal"

    def objective(ids: Tensor) -> Tensor:
        some = rows(clients, ids.to(device))
        w, total = some["w"], torch.zeros(len(ids), dtype=torch.float64, device=device)
        for x, y, mask in data.tests(ids, size):
            logits = algorithm.task.logits(w, x, buffers_of(some))
            entropy = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
            total += (entropy * mask).sum(1)
        risk = total / data.sizes[ids].to(device)
        misfit = penalty(algorithm.sketch, w, v, algorithm.gamma, masked)
        return risk + algorithm.lam * misfit + algorithm.mu / 2 * w.double().square().sum(1)

    return torch.cat(spread(objective, portions(data.clients, chunk, device), device)).cpu()


def potential(
    algorithm: PFed1BS,
    data: Federation,
    server: State,
    clients: State,
    *,
    round: int = 1,
    size: int = 256,
    chunk: int | None = None,
) -> float:
    """Psi = sum_k p_k F~_k(w_k; v) with p_k = N_k / sum N, over all clients and all their training samples (Eq. 28).

    `round` is the next one (Progress.round): 0 before anybody has voted, when v is v0. `size` and `chunk` bound the
    memory: samples of a client, and clients, computed at once.
    """
    v = consensus(algorithm, server, round)
    shares = data.sizes.double() / data.sizes.sum()
    return float(shares @ objectives(algorithm, data, clients, v, size=size, chunk=chunk))


def potentials(algorithm: Algorithm, data: Federation, now: Progress, chunk: int | None) -> dict[str, float]:
    """Psi for the metrics; nothing for a method that it is not defined for."""
    if not isinstance(algorithm, PFed1BS):
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
