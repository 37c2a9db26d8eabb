"""A data set in memory: checked arrays, classes, and the statistics its inputs are normalised by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import words

Inputs = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
Targets = NDArray[np.int64] | NDArray[np.float32]
Arrays = tuple[NDArray[np.generic], ...]  # train inputs, train targets, test inputs, test targets [, owners of both]
RENUMBER = "renumber them; numbers that are no classes: save them as float32"
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel


@dataclass(frozen=True)
class Dataset:
    """Training and test samples; uint8 inputs mean value / 255, other whole numbers are tokens, floats as they are."""

    name: str
    train_inputs: Inputs  # (N, channels, height, width), (N, features), (N, length), ...
    train_labels: Targets  # (N,) in 0 .. num_classes - 1, or any other targets (N, ...)
    test_inputs: Inputs
    test_labels: Targets
    num_classes: int  # of real targets: how many numbers each has
    mean: tuple[float, ...]  # per channel (per feature without an image shape), of inputs in 0 .. 1; empty for tokens
    std: tuple[float, ...]
    owners: NDArray[np.generic] | None = None  # of all samples, training part first; None: nobody's

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_inputs.shape[1:]

    @property
    def labelled(self) -> bool:
        """Whether every sample has one class."""
        return self.train_labels.ndim == 1 and self.train_labels.dtype == np.int64


def dataset(name: str, arrays: Arrays, num_classes: int | None = None, statistics: Statistics | None = None) -> Dataset:
    """Check the arrays (train inputs and targets, test inputs and targets, owners) and put them into one form.

    Without `num_classes` class labels must use every number from 0 to the largest; without `statistics` they are those
    of the training inputs.
    """
    parts = [(inputs(f"{name}: {part} inputs", x), targets(f"{name}: {part} labels", y, len(x)))
             for part, x, y in (("train", arrays[0], arrays[1]), ("test", arrays[2], arrays[3]))]  # fmt: skip
    (train, train_labels), (test, test_labels) = parts
    for what, one, other in (("samples", train, test), ("targets", train_labels, test_labels)):
        if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
            raise UserError(
                f"{name}: train and test {what} must agree in shape and dtype, got {one.shape[1:]} {one.dtype} and "
                f"{other.shape[1:]} {other.dtype}",
                "convert one of them",
            )
    classes = count_classes(name, np.concatenate([train_labels, test_labels]), num_classes)
    mean, std = statistics or (((), ()) if train.dtype == np.int64 else statistics_of(train))
    owners = _owners(name, arrays[4:], (len(train), len(test)))
    return Dataset(name, train, train_labels, test, test_labels, classes, mean, std, owners)


def hold_out(x: NDArray[np.generic], y: NDArray[np.generic], *owners: NDArray[np.generic]) -> Arrays:
    """Split samples that have no official test part: a quarter, chosen once and for all by their number alone."""
    if len({len(x), len(y), *map(len, owners)}) > 1:
        what = "inputs, labels and owners" if owners else "inputs and labels"
        counts = " and ".join(str(len(array)) for array in (x, y, *owners))
        raise UserError(f"{what} must have one entry per sample, got {counts}", "save one of each for every sample")
    order = np.argsort(words(0, len(x)), kind="stable")
    train, test = np.sort(order[: len(x) * 3 // 4]), np.sort(order[len(x) * 3 // 4 :])
    return x[train], y[train], x[test], y[test], *(part[rows] for part in owners for rows in (train, test))


def _owners(name: str, owners: Arrays, samples: tuple[int, int]) -> NDArray[np.generic] | None:
    """The owners of all samples, if there are any."""
    if not owners:
        return None
    for part, found, count in zip(("train", "test"), owners, samples, strict=True):
        if found.shape != (count,) or found.dtype.kind not in "buiUS":
            raise UserError(
                f"{name}: owners of the {part} samples must be one whole number or text for each of {count} samples, "
                f"got shape {found.shape} of {found.dtype}",
                "save an array of owners of the length of the samples",
            )
    return np.concatenate(owners)


def inputs(what: str, x: NDArray[np.generic]) -> Inputs:
    """Images as (N, channels, height, width), anything else as it is; whole numbers kept, others as float32."""
    if x.ndim < 1 or x.size == 0:
        raise UserError(f"{what} must have shape (samples, ...) with at least one sample, got {x.shape}")
    if x.dtype.kind not in "buif":
        raise UserError(f"{what} must be numbers, got dtype {x.dtype}", "save them as uint8, float32, or int64 tokens")
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x, np.uint8)
    if x.dtype.kind in "ui":
        return np.ascontiguousarray(x, np.int64)
    return _real(what, x)


def _real(what: str, x: NDArray[np.generic]) -> NDArray[np.float32]:
    """The array as finite float32."""
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise UserError(
            f"{what} must be finite in float32, but sample {row} holds NaN or infinity", "remove or fill it"
        )
    return values


def targets(what: str, y: NDArray[np.generic], samples: int) -> Targets:
    """Whole numbers as int64, others as float32."""
    if y.ndim < 1 or len(y) != samples:
        raise UserError(f"{what} must have shape ({samples}, ...), one per sample, got {y.shape}")
    if y.dtype.kind in "ui":
        return y.astype(np.int64)
    if y.dtype.kind not in "bf":
        raise UserError(f"{what} must be numbers, got dtype {y.dtype}", "save them as int64 classes or float32")
    return _real(what, y)


def count_classes(name: str, labels: Targets, num_classes: int | None) -> int:
    """The number of classes; of real targets, how many numbers each has."""
    if labels.dtype != np.int64:
        return num_classes or math.prod(labels.shape[1:])
    if labels.min() < 0 or (num_classes is not None and labels.max() >= num_classes):
        top = "C" if num_classes is None else str(num_classes)
        raise UserError(f"{name}: labels must lie in 0 .. {top} - 1, got {labels.min()} .. {labels.max()}", RENUMBER)
    if num_classes is not None:
        return num_classes
    if labels.ndim > 1:
        return int(labels.max()) + 1
    used = np.unique(labels)
    if len(used) < 2:
        raise UserError(f"{name}: a data set needs at least two classes, got labels {used.tolist()}")
    if used[-1] != len(used) - 1:
        missing = int(np.flatnonzero(used != np.arange(len(used)))[0])
        raise UserError(f"{name}: labels must use every number 0 .. {used[-1]}, but {missing} does not occur", RENUMBER)
    return len(used)


def statistics_of(x: Inputs) -> Statistics:
    """Mean and standard deviation per channel (axis 1), in float64; a constant channel is only centred."""
    x = x.reshape(len(x), -1) if x.ndim == 1 else x
    axes = (0, *range(2, x.ndim))
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    mean, std = x.mean(axes, np.float64) / scale, x.std(axes, np.float64) / scale
    return _tuple(mean.tolist()), _tuple(np.where(std > 0, std, 1.0).tolist())


def _tuple(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
