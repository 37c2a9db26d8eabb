"""Targets: the files that data sets come in, checkpoints and clients' states, and configurations."""

import gzip
import io
import json
import pickle
import shutil
import tarfile
import tempfile
import tomllib
import wave
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as save_tensors
from scipy.io import savemat

from pfed1bs.core.errors import UserError
from pfed1bs.data.dataset import Arrays, dataset
from pfed1bs.data.files import cifar, idx, read_mat, read_strips
from pfed1bs.data.people import _picture, read_leaf, read_pictures, read_roles
from pfed1bs.data.sources import load
from pfed1bs.flower.states import Shelf
from pfed1bs.runs import checkpoint, config

IDENTITY = '{"batch": 8, "algorithm": {"name": "local", "lr": 0.1}}'


@cache
def folder() -> Path:
    """A folder for the file that is read."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def clean() -> None:
    """Remove it."""
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear()


def put(name: str, data: bytes) -> Path:
    """A file with this content."""
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def told(read: Callable[[], object]) -> None:
    """A file is read, or refused with a UserError."""
    try:
        read()
    except UserError as error:
        assert error.message


def whole(name: str, arrays: Arrays) -> None:
    """Arrays that a reader gave are a data set, or the user is told why not."""
    dataset(name, arrays, 10, ((0.5,), (0.5,)))


def idx_file(data: bytes) -> None:
    """An IDX file, plain or gzip."""
    if data:
        told(lambda: idx(put("x.gz" if data[0] & 1 else "x", data[1:])))


def _pickle_like(protocol: int) -> bytes:
    batch = {b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}
    return pickle.dumps(batch, protocol)


def _tar(member: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        info = tarfile.TarInfo("c/b")
        info.size = len(member)
        archive.addfile(info, io.BytesIO(member))
    return file.getvalue()


def cifar_file(data: bytes) -> None:
    """CIFAR's batches: pickled, binary, and as an archive."""
    if not data:
        return
    name, label = ("b.bin", "fine_labels") if data[0] & 2 else ("b", "labels")
    where = "c.tar.gz" if data[0] & 1 else "c"
    put(where if data[0] & 1 else f"c/{name}", data[1:])
    told(lambda: whole("cifar", cifar(where, (name,), name, label)(folder())))


def mat_file(data: bytes) -> None:
    """SVHN's MATLAB files."""
    put("train_32x32.mat", data)
    put("test_32x32.mat", _mat())
    told(lambda: whole("svhn", read_mat(folder())))


@cache
def _mat(compressed: bool = True, images: int = 2) -> bytes:
    file = io.BytesIO()
    content = {"X": np.zeros((32, 32, 3, images), np.uint8), "y": np.ones((images, 1), np.uint8)}
    savemat(file, content, do_compression=compressed)
    return file.getvalue()


def npz_file(data: bytes) -> None:
    """Somebody's own arrays, with owners; as a file, and as the content of one of its members."""
    if data:
        told(lambda: load(str(put("own.npz", data[1:] if data[0] & 1 else _zip(data[1:], data[0] >> 1 & 3)))))


def _zip(member: bytes, place: int) -> bytes:
    file, names = io.BytesIO(), ("x.npy", "y.npy", "owners.npy")
    with zipfile.ZipFile(file, "w") as archive:
        for i, name in enumerate(names):
            archive.writestr(name, member if i == place % 3 else _npy(np.arange(8) % 2))
    return file.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _image(form: str, size: tuple[int, int], mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, 7).save(file, form, **({"lossless": True} if form == "WEBP" else {}))
    return file.getvalue()


def strip_file(data: bytes) -> None:
    """WebP strips and their labels."""
    if not data:
        return
    strip, labels = (data[1:], _npy(np.arange(2))) if data[0] & 1 else (_image("WEBP", (32, 64)), data[1:])
    for name, content in (("train-000.webp", strip), ("train-labels.npy", labels)):
        put(f"strips/{name}", content)
    put("strips/test-000.webp", _image("WEBP", (32, 64)))
    put("strips/test-labels.npy", _npy(np.arange(2)))
    told(lambda: whole("strips", read_strips(folder() / "strips")))


def role_file(data: bytes) -> None:
    """Shakespeare by role, both forms, plain or gzip."""
    if not data:
        return
    if data[0] & 1:
        put("all_data/all_data.json", data[1:])
        return told(lambda: whole("leaf", read_leaf(folder())))
    for old in folder().glob("roles.json*"):
        old.unlink()
    put("roles.json.gz" if data[0] & 2 else "roles.json", data[1:])
    return told(lambda: whole("roles", read_roles(folder())))


def owner_file(data: bytes) -> None:
    """AudioMNIST: pictures with speakers, and recordings."""
    if not data:
        return None
    if data[0] & 1:
        return told(lambda: _picture(put("0_01_0.wav", data[1:])))
    small = {
        "images.png": _image("PNG", (3, 3), "L"),
        "labels.npy": _npy(np.arange(4)),
        "speakers.npy": _npy(np.arange(4)),
    }
    name = ("images.png", "labels.npy", "speakers.npy")[data[0] >> 1 & 1]
    for other, content in {**small, name: data[1:]}.items():
        put(f"people/{other}", content)
    return told(lambda: whole("audiomnist", read_pictures(folder() / "people")))


def _wav(samples: int, rate: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(2 * samples))
    return file.getvalue()


def checkpoint_file(data: bytes) -> None:
    """Checkpoints and clients' states: as they are, and with a checksum that is right."""
    if not data:
        return
    content = _summed(data[1:]) if data[0] & 1 else data[1:]
    path = put("f-0.safetensors", content)
    told(lambda: Shelf(path, IDENTITY).states() if data[0] & 2 else checkpoint.load(path, IDENTITY))


def _summed(data: bytes) -> bytes:
    """The file with its own checksum put right, if it is one at all."""
    from safetensors import SafetensorError, safe_open

    path = put("draft.safetensors", data)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = {key: value for key, value in (file.metadata() or {}).items() if key != "checksum"}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return save_tensors(tensors, {**metadata, "checksum": checkpoint.checksum(tensors, metadata)})
    except (SafetensorError, ValueError, RuntimeError, AttributeError, TypeError, KeyError):
        return data


def _checkpoint() -> bytes:
    tensors = {
        "seen": torch.arange(2),
        "server/w": torch.arange(3.0),
        "history/1": torch.tensor([3], dtype=torch.uint8),
    }
    tensors |= {"clients/w": torch.zeros(2, 3), "lost": torch.tensor([1])}
    metadata = {"format": checkpoint.FORMAT, "round": "2", "identity": IDENTITY}
    return save_tensors(tensors, {**metadata, "checksum": checkpoint.checksum(tensors, metadata)})


def config_file(data: bytes) -> None:
    """A recipe; classes of one's own would be imported, so they are left out."""
    path = put("recipe.toml", data)
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        tables = {}
    if ":" in json.dumps([tables.get("algorithm"), tables.get("options")], default=str).replace('": ', ""):
        return
    told(lambda: config.load(str(path)))


def seeds() -> dict[str, list[bytes]]:
    """Valid inputs of every target."""
    pictures = b"\0\0\x08\3" + b"".join(size.to_bytes(4, "big") for size in (2, 3, 4)) + bytes(24)
    record = bytes([3]) + bytes(3072)
    roles = json.dumps([{"play": "p", "role": "r", "text": "to be or not to be. " * 8}]).encode()
    leaf = json.dumps({"user_data": {"u": {"x": ["a" * 80, "a" * 80], "y": ["a", "b"]}}}).encode()
    x, y, who = np.zeros((8, 5), np.float32), np.arange(8) % 2, np.array(list("aabbccdd"))
    four = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "owners_train": who, "owners_test": who}
    recipes = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))]
    return {
        "idx": [b"\0" + pictures, b"\0" + b"\0\0\x08\1\0\0\0\2ab", b"\1" + gzip.compress(pictures, mtime=0)],
        "cifar": [
            *(b"\0" + _pickle_like(protocol) for protocol in (2, 4)),
            b"\2\0" + record,
            b"\1" + _tar(_pickle_like(2)),
        ],
        "mat": [_mat(), _mat(compressed=False, images=1)],
        "npz": [
            *(b"\1" + data for data in (_npz(x=x, y=y, owners=who), _npz(**four), _npz(x=x[:, None], y=y / 2))),
            *(bytes([2 * place]) + _npy(array) for place, array in enumerate((x, y, who))),
        ],
        "strips": [b"\1" + _image("WEBP", (32, 64)), b"\0" + _npy(np.arange(2)), b"\1" + _image("PNG", (32, 32))],
        "roles": [b"\0" + roles, b"\2" + gzip.compress(roles, mtime=0), b"\1" + leaf],
        "owners": [b"\1" + _wav(800, 8000), b"\0" + _image("PNG", (60, 50), "L"), b"\2" + _npy(np.arange(4))],
        "checkpoints": [bytes([flag]) + _checkpoint() for flag in (0, 1, 3)],
        "config": [*recipes, b'rounds = 3\n[algorithm]\nname = "eden"\nlr = 0.1\n[options.fedavg]\nlr = 0.2\n'],
    }


TARGETS: dict[str, Callable[[bytes], None]] = {
    "idx": idx_file,
    "cifar": cifar_file,
    "mat": mat_file,
    "npz": npz_file,
    "strips": strip_file,
    "roles": role_file,
    "owners": owner_file,
    "checkpoints": checkpoint_file,
    "config": config_file,
}
