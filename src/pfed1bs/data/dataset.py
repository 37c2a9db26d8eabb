"""A data set in memory: checked arrays, classes, and the statistics its inputs are normalised by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError
from pfed1bs.core.rng import words

Inputs = NDArray[np.uint8] | NDArray[np.float32]
Arrays = tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.generic], NDArray[np.generic]]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation per channel


@dataclass(frozen=True)
class Dataset:
    """Training and test samples; uint8 inputs mean value / 255, float inputs are taken as they are."""

    name: str
    train_inputs: Inputs  # (N, channels, height, width), or (N, features)
    train_labels: NDArray[np.int64]  # (N,) in 0 .. num_classes - 1
    test_inputs: Inputs
    test_labels: NDArray[np.int64]
    num_classes: int
    mean: tuple[float, ...]  # per channel (per feature without an image shape), of inputs in 0 .. 1
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_inputs.shape[1:]


def dataset(name: str, arrays: Arrays, num_classes: int | None = None, statistics: Statistics | None = None) -> Dataset:
    """Check four arrays (train inputs and labels, test inputs and labels) and put them into one form.

    Without `num_classes` the labels must use every number from 0 to the largest; without `statistics` they are those
    of the training inputs.
    """
    parts = [(_inputs(f"{name}: {part} inputs", x), _labels(f"{name}: {part} labels", y, len(x)))
             for part, x, y in (("train", *arrays[:2]), ("test", *arrays[2:]))]  # fmt: skip
    (train, train_labels), (test, test_labels) = parts
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise UserError(
            f"{name}: train and test samples must agree in shape and dtype, got {train.shape[1:]} {train.dtype} and "
            f"{test.shape[1:]} {test.dtype}",
            "convert one of them",
        )
    classes = _classes(name, np.concatenate([train_labels, test_labels]), num_classes)
    mean, std = statistics or _statistics(train)
    return Dataset(name, train, train_labels, test, test_labels, classes, mean, std)


def hold_out(x: NDArray[np.generic], y: NDArray[np.generic]) -> Arrays:
    """Split samples that have no official test part: a quarter, chosen once and for all by their number alone."""
    if len(x) != len(y):
        raise UserError(f"inputs and labels must have one entry per sample, got {len(x)} and {len(y)}")
    order = np.argsort(words(0, len(x)), kind="stable")
    train, test = np.sort(order[: len(x) * 3 // 4]), np.sort(order[len(x) * 3 // 4 :])
    return x[train], y[train], x[test], y[test]


def _inputs(what: str, x: NDArray[np.generic]) -> Inputs:
    """Images as (N, channels, height, width), anything else as it is; uint8 kept, other numbers as float32."""
    if x.ndim < 2 or x.size == 0:
        raise UserError(f"{what} must have shape (samples, ...) with at least one sample, got {x.shape}")
    if x.dtype.kind not in "buif":
        raise UserError(f"{what} must be numbers, got dtype {x.dtype}", "save them as uint8 or float32")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x, np.uint8)
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise UserError(
            f"{what} must be finite in float32, but sample {row} holds NaN or infinity", "remove or fill it"
        )
    return values


def _labels(what: str, y: NDArray[np.generic], samples: int) -> NDArray[np.int64]:
    if y.shape != (samples,):
        raise UserError(f"{what} must have shape ({samples},), one per sample, got {y.shape}")
    if y.dtype.kind not in "ui":
        raise UserError(f"{what} must be whole numbers 0 .. C - 1, got dtype {y.dtype}", "save them as int64")
    return y.astype(np.int64)


def _classes(name: str, labels: NDArray[np.int64], num_classes: int | None) -> int:
    if labels.min() < 0 or (num_classes is not None and labels.max() >= num_classes):
        top = "C" if num_classes is None else str(num_classes)
        raise UserError(
            f"{name}: labels must lie in 0 .. {top} - 1, got {labels.min()} .. {labels.max()}", "renumber them"
        )
    if num_classes is not None:
        return num_classes
    used = np.unique(labels)
    if len(used) < 2:
        raise UserError(f"{name}: a data set needs at least two classes, got labels {used.tolist()}")
    if used[-1] != len(used) - 1:
        missing = int(np.flatnonzero(used != np.arange(len(used)))[0])
        raise UserError(
            f"{name}: labels must use every number 0 .. {used[-1]}, but {missing} does not occur", "renumber them"
        )
    return len(used)


def _statistics(x: Inputs) -> Statistics:
    """Mean and standard deviation per channel (axis 1), in float64; a constant channel is only centred."""
    axes = (0, *range(2, x.ndim))
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    mean, std = x.mean(axes, np.float64) / scale, x.std(axes, np.float64) / scale
    return _tuple(mean.tolist()), _tuple(np.where(std > 0, std, 1.0).tolist())


def _tuple(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
