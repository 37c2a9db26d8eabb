"""Data sets by name, from a .npz file, or from a function of your own."""

import importlib.util
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import need, parts
from pfed1bs.data.arrays import npy
from pfed1bs.data.catalogue import CATALOGUE, Form, Known
from pfed1bs.data.dataset import Arrays, Dataset, Inputs, Targets, count_classes, dataset, hold_out, inputs, targets
from pfed1bs.data.download import fetch
from pfed1bs.data.files import existing, reading

TWO, FOUR = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")


def load(name: str, root: str | Path | None = None, num_classes: int | None = None) -> Dataset:
    """The data set `name`: one of the catalogue, a path to a .npz file, or "package.module:function".

    Files of the known sets are looked for in `root`, the PFED1BS_DATA directory and the user cache, and downloaded
    to the cache when none has them. Own data are arrays x, y or x_train, y_train, x_test, y_test (a function returns
    them in that order); x, y are split as `hold_out` says. After them may come owners, or owners_train, owners_test:
    whose sample it is. `num_classes` of own data that do not show every label.
    """
    if root is not None and not Path(root).is_dir():
        raise UserError(f"data.root = {root} is no folder", "leave it out, or give the folder above the data sets'")
    if name in CATALOGUE:
        known = CATALOGUE[name]
        arrays = _digits() if name == "digits" else _known(name, root)
        return dataset(name, arrays, known.num_classes, (known.mean, known.std))
    if name.endswith(".npz"):
        return dataset(name, _npz(Path(name)), num_classes)
    if ":" in name:
        return dataset(name, _function(name), num_classes)
    own = "Your own: a path to a .npz file or package.module:function"
    raise UserError(f"unknown data set {name!r}", f"{nearest(name, CATALOGUE)} {own}")


def cache() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pfed1bs"


def _known(name: str, root: str | Path | None) -> Arrays:
    """Read the first complete copy, or download one; say everything that was tried when there is none."""
    places = {"data.root": root, "PFED1BS_DATA": os.environ.get("PFED1BS_DATA") or None, "user cache": cache()}
    tried = []
    for label, place in places.items():
        if place is None:
            tried.append(f"{label}: not given")
            continue
        found, lacking = _find(CATALOGUE[name], Path(place))
        if found is not None:
            form, folder = found
            return form.read(folder)
        tried.append(f"{label} {place}: {lacking}")
    known = CATALOGUE[name]
    if not known.files:
        forms = " or ".join(" ".join(form.files) for form in known.forms)
        raise UserError(
            "\n  ".join([f"no files of {name} were found, tried", *tried]),
            f"it is not downloaded: put {forms} ({known.address}) into a folder {name} below data.root or PFED1BS_DATA",
        )
    mirror = os.environ.get("PFED1BS_MIRROR") or None
    try:
        fetch(name, cache() / name, mirror)
    except ConnectionError as error:
        tried.append(f"download: {error}")
        raise UserError(
            "\n  ".join([f"no files of {name} were found, tried", *tried]),
            f"put {' '.join(CATALOGUE[name].files)} into a folder {name} and point data.root or PFED1BS_DATA to the "
            "folder above it, name a mirror in PFED1BS_MIRROR, or use the embedded data set digits (reproduce takes "
            "--quick for that)",
        ) from error
    form = next(form for form in CATALOGUE[name].forms if not _missing(form, cache() / name))
    return form.read(cache() / name)


def _find(known: Known, root: Path) -> tuple[tuple[Form, Path] | None, str]:
    """A complete form below `root` and its folder, or else what is lacking."""
    if not root.is_dir():
        return None, "no such directory"
    lacking = f"no folder {' or '.join(known.folders)}"
    own_name = root.name in known.folders or "/".join(root.parts[-2:]) in known.folders
    for folder in (*(root / name for name in known.folders), root):
        for form in known.forms:
            if folder == root and not (own_name or form.telling):
                continue
            missing = _missing(form, folder)
            if not missing:
                return (form, folder), ""
            if len(missing) < len(form.files):
                lacking = f"{folder} lacks {', '.join(missing)}"
    return None, lacking


def _missing(form: Form, folder: Path) -> list[str]:
    return [name for name in form.files if not existing(folder, name).is_file()]


def _digits() -> Arrays:
    """The 1,797 digits of 8x8 pixels that come with scikit-learn, values 0 .. 16 brought to 0 .. 1."""
    package = importlib.util.find_spec("sklearn")
    path = Path((package and package.origin) or "").parent / "datasets/data/digits.csv.gz"
    if path.is_file():  # to import all of scikit-learn takes a second, and a client starts anew for every message
        table = np.loadtxt(path, delimiter=",")
    else:
        content = need("sklearn.datasets", "data").load_digits()
        table = np.column_stack([content.data, content.target])
    return hold_out((table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32), table[:, -1].astype(np.int64))


def asked(path: Path, classes: int) -> tuple[Inputs, Targets | None]:
    """Inputs x out of a .npz file for a model that is trained, and targets y, of so many classes, if there are any."""
    arrays = _arrays(path, "give the path of a .npz file as seen from the current directory")
    if "x" not in arrays:
        raise UserError(f"{path} must hold an array x, and may hold y, got {', '.join(arrays) or 'none'}")
    x = inputs(f"{path}: inputs", arrays["x"])
    if "y" not in arrays:
        return x, None
    y = targets(f"{path}: targets", arrays["y"], len(x))
    count_classes(str(path), y, classes)
    return x, y


def _arrays(path: Path, hint: str) -> dict[str, NDArray[np.generic]]:
    if not path.is_file():
        raise UserError(f"no file {path}", hint)
    with reading(path), zipfile.ZipFile(path) as content:
        return {info.filename.removesuffix(".npy"): _member(content, info) for info in content.infolist()}


def _npz(path: Path) -> Arrays:
    arrays = _arrays(path, "data.name takes the path of a .npz file as seen from the current directory")
    for names in (TWO, FOUR):
        if set(names) <= set(arrays):
            more = tuple(name.replace("y", "owners") for name in names[1::2])
            return _four(str(path), [arrays[name] for name in (*names, *more) if name in arrays])
    raise UserError(
        f"{path} must hold arrays {', '.join(TWO)} or {', '.join(FOUR)}, and may hold owners, got "
        f"{', '.join(arrays) or 'none'}"
    )


def _member(content: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.generic]:
    """An array of a .npz file."""
    with content.open(info) as file:
        return npy(file, info.file_size)


def _function(name: str) -> Arrays:
    module, function = parts(name)
    try:
        make = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise UserError(f"{name}: {error}", "install the package or put its directory on PYTHONPATH") from error
    if not callable(make):
        raise UserError(f"{name}: module {module} has no function {function!r}")
    result = make()
    if not isinstance(result, tuple | list):
        raise UserError(f"{name} must return two to six arrays, got {type(result).__name__}")
    return _four(name, result)


def _four(name: str, arrays: Sequence[object]) -> Arrays:
    """Two arrays, or three with owners, are split; four, or six with owners, are taken as they are."""
    values = tuple(np.asarray(array) for array in arrays)
    if not all(value.ndim for value in values):
        raise UserError(f"{name}: inputs, targets and owners must be arrays with one entry per sample")
    if len(values) in (2, 3):
        return hold_out(*values)
    if len(values) not in (4, 6):
        raise UserError(
            f"{name} must give two or four arrays (x, y or train and test), or three or six with owners, got "
            f"{len(values)}"
        )
    return values
