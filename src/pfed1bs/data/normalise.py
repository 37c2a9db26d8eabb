"""Inputs on one scale: by the mean and deviation of all training samples, of each client's own, or as they are."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError
from pfed1bs.data.dataset import Dataset, Inputs, statistics_of
from pfed1bs.data.partitions import Indices

Constants = dict[str, object]  # normalise, scale, mean, std; of "client" a mean and a deviation for every client
PIECE = 4096  # samples converted at a time


def constants_of(dataset: Dataset, train: Sequence[Indices], normalise: str) -> Constants:
    """What the inputs of clients with these training samples are normalised by; nothing for tokens."""
    if normalise not in ("none", "client", "shared"):
        raise UserError(f"data.normalise must be none, client or shared, got {normalise!r}")
    if dataset.train_inputs.dtype == np.int64:
        return {"normalise": "none"}
    own: Constants = {"normalise": normalise, "scale": 255.0 if dataset.train_inputs.dtype == np.uint8 else 1.0}
    if normalise == "shared":
        return {**own, "mean": list(dataset.mean), "std": list(dataset.std)}
    if normalise == "client":
        found = [statistics_of(samples(dataset, rows)) for rows in train]
        return {**own, "mean": [list(mean) for mean, _ in found], "std": [list(std) for _, std in found]}
    return own


def normalised(
    dataset: Dataset, order: Indices, clients: Sequence[tuple[int, int]], constants: Constants
) -> NDArray[np.float32] | NDArray[np.int64]:
    """The samples `order`, client k's at clients[k] = (start, end); a piece at a time needs no second copy."""
    if dataset.train_inputs.dtype == np.int64:
        return np.asarray(samples(dataset, order), np.int64)
    result = np.empty((len(order), *dataset.shape), np.float32)
    for client, (first, last) in enumerate(clients):
        mean, std = _scaled(dataset, constants, client)
        for start in range(first, last, PIECE):
            piece = result[start : min(start + PIECE, last)]
            piece[...] = samples(dataset, order[start : start + len(piece)])
            piece -= mean
            piece /= std
    return result


def samples(dataset: Dataset, rows: Indices) -> Inputs:
    """Inputs by their number in the whole data set: training part first, then test part."""
    border = len(dataset.train_inputs)
    values = np.empty((len(rows), *dataset.shape), dataset.train_inputs.dtype)
    values[rows < border] = dataset.train_inputs[rows[rows < border]]
    values[rows >= border] = dataset.test_inputs[rows[rows >= border] - border]
    return values


def with_constants(dataset: Dataset, path: str) -> Dataset:
    """The data set with the shared mean and deviation that an earlier run wrote down."""
    try:
        known = json.loads(Path(path).read_text())
        mean, std = (tuple(float(value) for value in known[key]) for key in ("mean", "std"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"data.constants = {path} holds no mean and std ({error})",
            "give the normalise.json of a run with data.normalise = shared",
        ) from error
    if len(mean) != len(dataset.mean) or len(std) != len(mean):
        raise UserError(f"{path} has constants for {len(mean)} channels, the inputs have {len(dataset.mean)}")
    return replace(dataset, mean=mean, std=std)


def of_client(constants: Constants, client: int) -> Constants:
    """What the inputs of one client are normalised by."""
    if constants["normalise"] != "client":
        return constants
    return {**constants, **{key: constants[key][client] for key in ("mean", "std")}}  # type: ignore[index]


def _scaled(dataset: Dataset, constants: Constants, client: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and deviation of a client's inputs in their own units, to be subtracted and divided by."""
    own, scale = {"mean": 0.0, "std": 1.0, **of_client(constants, client)}, float(str(constants["scale"]))
    broadcast = (-1, *(1 for _ in dataset.shape[1:]))
    mean, std = ((np.asarray(own[key]) * scale).astype(np.float32).reshape(broadcast) for key in ("mean", "std"))
    return mean, std
