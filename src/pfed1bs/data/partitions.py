"""Who holds which samples: label blocks, Dirichlet shares, an even deal, or whoever owns them."""

import re

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.rng import stream

Indices = NDArray[np.int64]
REDRAWS = 1000
SCHEMES = ("labels:2", "dirichlet:0.3", "iid", "natural")


def generator(seed: int, *name: str | int) -> np.random.Generator:
    """A numpy generator of its own for one purpose."""
    return np.random.Generator(np.random.PCG64(stream(seed, *name).initial_seed() & (1 << 64) - 1))


def partition(labels: NDArray[np.generic], clients: int, scheme: str, seed: int, min_size: int = 10) -> list[Indices]:
    """Sample numbers of every client, disjoint, ascending; every client has at least `min_size`.

    "labels:c" gives client u the labels (u c + j) mod C, j < c; a label nobody owns is left out.
    "dirichlet:a" shares every label by weights from Dirichlet(a, ..., a). "iid" deals shuffled samples evenly. Where
    samples have owners see `chosen`.
    """
    if clients < 1:
        raise UserError(f"clients must be at least 1, got {clients}")
    kind, value = parse(scheme)
    if clients * min_size > len(labels):
        raise UserError(
            f"{clients} clients with {min_size} samples each are more than the {len(labels)} samples there are",
            f"use at most {len(labels) // min_size} clients, or a lower data.min_size",
        )
    if kind in ("labels", "dirichlet") and (labels.ndim > 1 or labels.dtype.kind == "f"):
        raise UserError(
            f"{scheme} deals samples by their class, and these have none: targets have shape {labels.shape[1:]} of "
            f"{labels.dtype}",
            "use data.partition = iid, or natural where samples have owners",
        )
    rng = generator(seed, "partition", scheme)
    if kind == "natural":
        raise UserError("these samples have no owners", "add an array owners, or use another data.partition")
    if kind == "labels":
        parts = _blocks(labels.astype(np.int64), clients, int(value), rng)
    elif kind == "dirichlet":
        parts = _shares(labels.astype(np.int64), clients, value, rng, min_size)
    else:
        parts = [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
    smallest = min(range(clients), key=lambda u: len(parts[u]))
    if len(parts[smallest]) < min_size:
        raise UserError(
            f"client {smallest} gets {len(parts[smallest])} samples, but every client needs {min_size}",
            "use fewer clients, another partition, or a lower min_size",
        )
    return parts


def chosen(owners: NDArray[np.generic], clients: int, seed: int, min_size: int) -> NDArray[np.generic]:
    """The owners that are clients, ascending: all with at least `min_size` samples, or so many of them, drawn."""
    names, counts = np.unique(owners, return_counts=True)
    able = names[counts >= min_size]
    if not 1 <= clients <= len(able):
        raise UserError(
            f"{len(able)} of {len(names)} owners have {min_size} samples or more, {clients} clients were asked for",
            f"use --clients {len(able)}, or a lower data.min_size",
        )
    return np.sort(generator(seed, "owners").permutation(able)[:clients]) if clients < len(able) else able


def parse(scheme: str) -> tuple[str, float]:
    """Name and number of a scheme."""
    kind, colon, text = scheme.partition(":")
    if kind not in ("labels", "dirichlet", "iid", "natural"):
        raise UserError(f"unknown partition {scheme!r}", nearest(scheme, SCHEMES))
    if kind in ("iid", "natural"):
        if colon:
            raise UserError(f"{kind} takes no number, got {scheme!r}", f"write {kind}")
        return kind, 0.0
    whole = kind == "labels"
    pattern = r"[0-9]{1,6}" if whole else r"([0-9]+\.?[0-9]*|\.[0-9]+)(e-?[0-9]{1,2})?"
    value = float(text) if re.fullmatch(pattern, text) else 0.0
    if not value > 0:
        rule = "labels:c needs a whole number c >= 1" if whole else "dirichlet:a needs a number a > 0"
        raise UserError(f"{rule}, got {scheme!r}", f"write for example {SCHEMES[0] if whole else SCHEMES[1]}")
    return kind, value


def _blocks(labels: Indices, clients: int, each: int, rng: np.random.Generator) -> list[Indices]:
    """Contiguous label blocks; a label with o owners is shuffled and cut into o pieces.

    The first o - 1 sizes are uniform integers in [total / (o + 1), total / max(2, o - 1)), or floor(total / o) where
    that holds no integer; the rest goes to the last owner: at least one sample, since o - 1 pieces each below
    total / (o - 1) never reach the total.
    """
    classes = int(labels.max()) + 1
    if each > classes:
        raise UserError(f"labels:{each} asks for more labels than the {classes} there are", f"use labels:{classes}")
    owners: list[list[int]] = [[] for _ in range(classes)]
    for u in range(clients):
        for j in range(each):
            owners[(u * each + j) % classes].append(u)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label, own in enumerate(owners):
        samples = rng.permutation(np.flatnonzero(labels == label))
        if len(own) == 0:
            continue
        for u, piece in zip(own, np.split(samples, np.cumsum(_sizes(label, len(samples), len(own), rng))), strict=True):
            parts[u].append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in parts]


def _sizes(label: int, total: int, owners: int, rng: np.random.Generator) -> Indices:
    """Sizes of all pieces but the last."""
    if total < owners:
        raise UserError(
            f"label {label} has {total} samples, too few to cut among {owners} clients",
            "use fewer clients or fewer labels per client",
        )
    low, high = -(-total // (owners + 1)), -(-total // max(2, owners - 1))
    return rng.integers(low, high, owners - 1) if low < high else np.full(owners - 1, total // owners)


def _shares(labels: Indices, clients: int, a: float, rng: np.random.Generator, min_size: int) -> list[Indices]:
    """Dirichlet shares of every label, redrawn until every client has `min_size` samples."""
    totals = np.bincount(labels)
    for _ in range(REDRAWS):
        weights = rng.dirichlet(np.full(clients, a), len(totals))  # (C, K)
        ends = np.rint(np.cumsum(weights, axis=1) * totals[:, None]).astype(np.int64)
        ends[:, -1] = totals
        sizes = np.diff(ends, axis=1, prepend=0)
        if sizes.sum(axis=0).min() >= min_size:
            break
    else:
        raise UserError(
            f"dirichlet:{a:g} left a client with fewer than {min_size} samples in each of {REDRAWS} draws",
            "use a larger number, fewer clients, or a lower min_size",
        )
    pieces = [
        np.split(rng.permutation(np.flatnonzero(labels == label)), ends[label, :-1]) for label in range(len(totals))
    ]
    return [np.sort(np.concatenate([row[u] for row in pieces])) for u in range(clients)]
