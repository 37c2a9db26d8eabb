"""Readers for the files image data sets come in: IDX, CIFAR pickles and binaries, MATLAB, lossless WebP strips."""

import gzip
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.data.arrays import matlab, npy
from pfed1bs.data.dataset import Arrays
from pfed1bs.data.unpickle import batch

Bytes = NDArray[np.uint8]
IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file when anything is wrong with its content."""
    try:
        yield
    except (MemoryError, PermissionError):
        raise
    except Exception as error:
        raise UserError(
            f"{path} is damaged or not what its name says: {error or type(error).__name__}",
            "remove it, then copy or download it again",
        ) from error


def idx(path: Path) -> Bytes:
    """An IDX file of unsigned bytes, plain or gzip: magic 0, 0, 8, rank; big-endian sizes; values."""
    with reading(path):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if len(data) < 4 or data[:3] != b"\0\0\x08" or data[3] not in (1, 3):
            raise ValueError(f"an IDX file of bytes begins with 00 00 08 and 01 or 03, got {data[:4].hex(' ')}")
        start = 4 + 4 * data[3]
        if len(data) < start:
            raise ValueError(f"its header ends after {len(data)} of {start} bytes")
        shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
        if len(data) - start != int(np.prod(shape)):
            raise ValueError(f"its header promises {shape} values, it holds {len(data) - start}")
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def array(path: Path) -> NDArray[np.generic]:
    """An .npy file."""
    with reading(path), path.open("rb") as file:
        return npy(file, path.stat().st_size)


def read_idx(folder: Path) -> Arrays:
    """The four files of MNIST and its relatives."""
    images, labels, test_images, test_labels = (idx(existing(folder, name)) for name in IDX)
    return images, labels, test_images, test_labels


def existing(folder: Path, name: str) -> Path:
    """The file itself or its gzip."""
    return folder / name if (folder / name).is_file() else folder / f"{name}.gz"


def _pickled(data: bytes, label: bytes) -> tuple[Bytes, NDArray[np.int64]]:
    content = batch(data)
    images, labels = content.get(b"data"), content.get(label)
    if not isinstance(images, np.ndarray) or not isinstance(labels, list) or not {type(n) for n in labels} <= {int}:
        raise ValueError(f"a batch needs arrays of bytes (data) and whole numbers ({label.decode()})")
    return images.reshape(-1, 3, 32, 32), np.asarray(labels, np.int64)


def _binary(data: bytes, label: bytes) -> tuple[Bytes, NDArray[np.int64]]:
    """Records of one label byte (two, coarse then fine, for CIFAR-100) and 3,072 pixels."""
    front = 2 if label == b"fine_labels" else 1
    records = np.frombuffer(data, np.uint8).reshape(-1, front + 3072)
    return records[:, front:].reshape(-1, 3, 32, 32), records[:, front - 1].astype(np.int64)


def cifar(source: str, train: tuple[str, ...], test: str, label: str) -> Callable[[Path], Arrays]:
    """A reader of CIFAR batches in `source`: an extracted folder, or an archive that holds it; .bin or pickled."""

    def read(folder: Path) -> Arrays:
        path = folder / source
        parse = _binary if test.endswith(".bin") else _pickled
        parts = []
        for name, data in _members(path, (*train, test)):
            with reading(path if path.is_file() else path / name):
                parts.append(parse(data, label.encode()))
        images, labels = zip(*parts[:-1], strict=True)
        return np.concatenate(images), np.concatenate(labels), *parts[-1]

    return read


def _members(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Name and content of every batch, in the order asked for."""
    if path.is_dir():
        yield from ((name, (path / name).read_bytes()) for name in names)
        return
    with reading(path), tarfile.open(path) as archive:
        found = {Path(member.name).name: member for member in archive if member.isfile()}
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        contents = [(name, archive.extractfile(found[name])) for name in names]
        pairs = [(name, file.read()) for name, file in contents if file is not None]
    yield from pairs


def read_mat(folder: Path) -> Arrays:
    """SVHN's cropped digits; its label 10 is the digit 0."""
    parts: list[NDArray[np.generic]] = []
    for path in (folder / "train_32x32.mat", folder / "test_32x32.mat"):
        with reading(path):
            content = matlab(path.read_bytes(), ("X", "y"))
            parts += [content["X"].transpose(3, 2, 0, 1), content["y"].reshape(-1).astype(np.int64) % 10]
    return parts[0], parts[1], parts[2], parts[3]


def read_strips(folder: Path) -> Arrays:
    """SPLIT-NNN.webp, each a column of 32x32 images, and SPLIT-labels.npy."""
    return *_strips(folder, "train"), *_strips(folder, "test")


def _strips(folder: Path, split: str) -> tuple[Bytes, NDArray[np.generic]]:
    need("PIL", "data")
    from PIL import Image

    images = []
    for path in sorted(folder.glob(f"{split}-[0-9]*.webp")):
        with reading(path), Image.open(path, formats=("WEBP",)) as strip:
            if strip.width != 32:
                raise ValueError(f"a strip is 32 pixels wide, got {strip.width}")
            images.append(np.asarray(strip.convert("RGB")).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    path = folder / f"{split}-labels.npy"
    labels = array(path)
    count = sum(map(len, images))
    if labels.shape != (count,):
        raise UserError(
            f"{folder} holds {count} {split} images in {len(images)} strips, but {path.name} has shape {labels.shape}",
            "a strip is missing or too many: copy the folder again",
        )
    return np.concatenate(images), labels
