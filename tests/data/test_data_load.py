"""Data sets from files: every format, the order of search, and what is said when something is wrong."""

import gzip
import os
import pickle
import struct
import sys
import tarfile

import numpy as np
import pytest

from pfed1bs.data import load
from pfed1bs.data.files import IDX, idx
from pfed1bs.data.unpickle import batch


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data directory, an empty cache, and no way to the network."""
    monkeypatch.delenv("PFED1BS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PFED1BS_MIRROR", "http://127.0.0.1:1/nothing")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, first=0, zipped=True):
    """Twelve training and four test images; pixel (0, 0) of image i is first + i."""
    folder.mkdir(parents=True)
    for name, count in zip(IDX, (12, 12, 4, 4), strict=True):
        array = np.arange(count, dtype=np.uint8) % 2
        if "images" in name:
            array = np.zeros((count, 28, 28), np.uint8)
            array[:, 0, 0] = first + np.arange(count)
        data = idx_bytes(array)
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(data) if zipped else data)
    return folder


def old_pickle(images, label, labels):
    """The bytes Python 2 wrote for {"batch_label": ..., label: [...], "data": uint8 array}, protocol 2."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    rows, data = len(images), images.tobytes()
    return (
        b"\x80\x02}("
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(label) + b"](" + b"".join(b"K" + bytes([value]) for value in labels) + b"e"
        + text(b"data")
        + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        + b"(K\x01" + b"K" + bytes([rows]) + b"M\x00\x0c\x86"
        + b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<I", len(data)) + data + b"tbu."
    )  # fmt: skip


def colours(count, first=0):
    """(count, 3072) rows as CIFAR has them: all red, then all green, then all blue; red of image i is first + i."""
    images = np.zeros((count, 3, 1024), np.uint8)
    images[:, 0] = first + np.arange(count)[:, None]
    images[:, 2] = 7
    return images.reshape(count, 3072)


def cifar10(folder):
    folder.mkdir(parents=True)
    for number in range(1, 6):
        (folder / f"data_batch_{number}").write_bytes(old_pickle(colours(4, 10 * number), b"labels", [0, 1, 2, 9]))
    (folder / "test_batch").write_bytes(old_pickle(colours(2, 100), b"labels", [3, 4]))
    return folder


def tar(path, folder):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)


def check_cifar10(data):
    assert data.shape == (3, 32, 32) and data.num_classes == 10 and data.train_inputs.dtype == np.uint8
    assert data.train_inputs[:, 0, 5, 5].tolist() == [10 * n + i for n in range(1, 6) for i in range(4)]
    assert (data.train_inputs[:, 1] == 0).all() and (data.train_inputs[:, 2] == 7).all()
    assert data.train_labels.tolist() == [0, 1, 2, 9] * 5 and data.test_labels.tolist() == [3, 4]
    assert data.test_inputs[:, 0, 0, 0].tolist() == [100, 101]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_idx_files_are_read_plain_or_zipped_from_the_usual_folders(tmp_path, zipped, folder):
    root = tmp_path / "mnist" if folder == "." else tmp_path / "root"
    write_idx(root if folder == "." else root / folder, zipped=zipped)
    data = load("mnist", root)
    assert data.shape == (1, 28, 28) and data.num_classes == 10 and (data.mean, data.std) == ((0.1307,), (0.3081,))
    assert data.train_inputs[:, 0, 0, 0].tolist() == list(range(12))
    assert data.test_labels.tolist() == [0, 1, 0, 1] and data.test_labels.dtype == np.int64


def test_files_of_mnist_are_not_taken_for_fashion_mnist(tmp_path):
    with pytest.raises(ValueError, match="no folder fmnist or fashion-mnist"):
        load("fmnist", write_idx(tmp_path / "mnist"))


def test_root_comes_before_the_data_directory_and_that_before_the_cache(tmp_path, monkeypatch):
    write_idx(tmp_path / "root" / "fashion-mnist", first=100)
    write_idx(tmp_path / "env" / "fmnist", first=50)
    write_idx(tmp_path / "cache" / "pfed1bs" / "fmnist", first=0)
    monkeypatch.setenv("PFED1BS_DATA", str(tmp_path / "env"))
    first = [load("fmnist", tmp_path / "root")]
    first.append(load("fmnist"))
    monkeypatch.delenv("PFED1BS_DATA")
    first.append(load("fmnist"))
    assert [int(data.train_inputs[0, 0, 0, 0]) for data in first] == [100, 50, 0]


def test_when_nothing_is_found_everything_tried_is_said(tmp_path, monkeypatch):
    folder = write_idx(tmp_path / "root" / "mnist")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setenv("PFED1BS_DATA", str(tmp_path / "missing"))
    with pytest.raises(ValueError) as error:
        load("mnist", tmp_path / "root")
    text = str(error.value)
    assert f"data.root {tmp_path / 'root'}: {folder} lacks t10k-labels-idx1-ubyte" in text
    assert f"PFED1BS_DATA {tmp_path / 'missing'}: no such directory" in text
    assert f"user cache {tmp_path / 'cache' / 'pfed1bs'}: no such directory" in text
    assert "download: http://127.0.0.1:1/nothing/mnist/train-images-idx3-ubyte.gz could not be downloaded" in text
    assert "point data.root or PFED1BS_DATA to the folder above it" in text


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "begins with 00 00 08"),
        (b"\0\0\x0d\x01\0\0\0\0", "got 00 00 0d 01"),
        (idx_bytes(np.zeros(9, np.uint8))[:-2], r"promises \(9,\) values, it holds 7"),
        (idx_bytes(np.zeros(9, np.uint8)) + b"\0", r"promises \(9,\) values, it holds 10"),
        (b"\0\0\x08\x03\0\0", "header ends after 6 of 16 bytes"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path, content, wrong):
    path = tmp_path / "some-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some-ubyte is damaged.*{wrong}"):
        idx(path)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"\0" * 100)[:-12]])
def test_damaged_gzip_files_are_named(tmp_path, content):
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.gz is damaged .*; remove it, then copy or download it again"):
        idx(tmp_path / "x.gz")


def test_images_and_labels_must_be_equally_many(tmp_path):
    folder = write_idx(tmp_path / "mnist")
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(11, np.uint8))))
    with pytest.raises(ValueError, match=r"mnist: train labels must have shape \(12, ...\).*got \(11,\)"):
        load("mnist", tmp_path)


@pytest.mark.parametrize("place", ["cifar10", "."])
def test_cifar10_pickles_are_read_from_the_folder_and_from_the_archive(tmp_path, place):
    check_cifar10(load("cifar10", cifar10(tmp_path / place / "cifar-10-batches-py").parents[place != "."]))
    (tmp_path / "tar").mkdir()
    tar(tmp_path / "tar" / "cifar-10-python.tar.gz", tmp_path / place / "cifar-10-batches-py")
    check_cifar10(load("cifar10", tmp_path / "tar"))


@pytest.mark.parametrize("archived", [False, True])
def test_cifar10_binaries_are_read_too(tmp_path, archived):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, first, labels in [
        *((f"data_batch_{n}.bin", 10 * n, [0, 1, 2, 9]) for n in range(1, 6)),
        ("test_batch.bin", 100, [3, 4]),
    ]:
        rows = np.hstack([np.array(labels, np.uint8)[:, None], colours(len(labels), first)])
        (folder / name).write_bytes(rows.tobytes())
    if archived:
        (tmp_path / "tar").mkdir()
        tar(tmp_path / "tar" / "cifar-10-binary.tar.gz", folder)
    check_cifar10(load("cifar10", tmp_path / "tar" if archived else tmp_path))
    (folder / "test_batch.bin").write_bytes(b"\0" * 3072)
    if not archived:
        with pytest.raises(ValueError, match=r"test_batch\.bin is damaged"):
            load("cifar10", tmp_path)


def test_cifar100_has_fine_labels_and_may_be_pickled_by_python_3(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, labels in (("train", [0, 99, 5]), ("test", [7])):
        content = {b"fine_labels": labels, b"coarse_labels": [1] * len(labels), b"data": colours(len(labels))}
        (folder / name).write_bytes(pickle.dumps(content, protocol=4))
    data = load("cifar100", tmp_path)
    assert data.num_classes == 100 and data.train_labels.tolist() == [0, 99, 5] and data.test_labels.tolist() == [7]
    assert data.train_inputs[:, 0, 0, 0].tolist() == [0, 1, 2]


class Malicious:
    """Writes a file when it is unpickled by the ordinary loader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_runs_something_is_refused_and_nothing_runs(tmp_path, protocol):
    folder = cifar10(tmp_path / "cifar-10-batches-py")
    content = pickle.dumps({"labels": [1], "data": Malicious(tmp_path / "ran")}, protocol=protocol)
    (folder / "data_batch_3").write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_3 is damaged .*mkdir, which image batches have no use for"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists()  # so the refusal above was what prevented it


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cos\nsystem\n.",
        b"(i__builtin__\nlist\n.",
        pickle.dumps(np.arange(3, dtype=np.float32), protocol=4),
        pickle.dumps(np.array([{}], dtype=object), protocol=4),
        pickle.dumps([1, 2]),
        b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x01tb.",
        b"cnumpy\nndarray\n.",
        b"cnumpy\ndtype\n}b.",
        b"",
        b"garbage",
    ],
)
def test_only_batches_of_bytes_come_out_of_a_pickle(content):
    with pytest.raises((pickle.UnpicklingError, EOFError, TypeError, ValueError)):
        batch(content)


def test_cut_archives_and_archives_without_a_batch_are_named(tmp_path):
    folder = cifar10(tmp_path / "source" / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-python.tar.gz"
    tar(path, folder)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz is damaged"):
        load("cifar10", tmp_path)
    (folder / "data_batch_2").unlink()
    tar(path, folder)
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz is damaged .*it lacks data_batch_2"):
        load("cifar10", tmp_path)


def write_mat(folder):
    savemat = pytest.importorskip("scipy.io").savemat
    folder.mkdir(parents=True)
    for name, labels in (("train", [10, 1, 9]), ("test", [10, 2])):
        x = np.zeros((32, 32, 3, len(labels)), np.uint8)
        x[4, 6, 1] = np.arange(len(labels)) + 1  # row 4, column 6, green
        savemat(folder / f"{name}_32x32.mat", {"X": x, "y": np.array(labels, np.uint8)[:, None]})
    return folder


def test_svhn_writes_ten_for_the_digit_zero(tmp_path):
    write_mat(tmp_path / "svhn")
    data = load("svhn", tmp_path)
    assert data.train_labels.tolist() == [0, 1, 9] and data.test_labels.tolist() == [0, 2]
    assert data.train_inputs[:, 1, 4, 6].tolist() == [1, 2, 3] and data.train_inputs.sum() == 6


def test_a_cut_matlab_file_is_named(tmp_path):
    path = write_mat(tmp_path / "svhn") / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"test_32x32\.mat is damaged"):
        load("svhn", tmp_path)


def write_strips(folder):
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for split, counts in (("train", (3, 2)), ("test", (2,))):
        start = 0
        for number, count in enumerate(counts):
            x = np.zeros((count, 32, 32, 3), np.uint8)
            x[:, 4, 6, 1] = start + np.arange(count)
            image.fromarray(x.reshape(-1, 32, 3)).save(folder / f"{split}-{number:03}.webp", lossless=True)
            start += count
        np.save(folder / f"{split}-labels.npy", np.arange(start, dtype=np.uint8))
    return folder


def test_strips_are_read_in_order(tmp_path):
    write_strips(tmp_path / "cifar10")
    data = load("cifar10", tmp_path)
    assert data.train_inputs[:, 1, 4, 6].tolist() == [0, 1, 2, 3, 4] and data.train_labels.tolist() == [0, 1, 2, 3, 4]
    assert data.test_inputs[:, 1, 4, 6].tolist() == [0, 1]


def test_a_missing_strip_and_a_cut_strip_are_said(tmp_path):
    folder = write_strips(tmp_path / "cifar10")
    content = (folder / "train-001.webp").read_bytes()
    (folder / "train-001.webp").unlink()
    with pytest.raises(ValueError, match=r"3 train images in 1 strips, but train-labels\.npy has shape \(5,\)"):
        load("cifar10", tmp_path)
    (folder / "train-001.webp").write_bytes(content[:40])
    with pytest.raises(ValueError, match=r"train-001\.webp is damaged"):
        load("cifar10", tmp_path)


def own(tmp_path, **arrays):
    path = tmp_path / "own.npz"
    np.savez(path, **arrays)
    return str(path)


def test_own_arrays_are_read_with_their_test_part(tmp_path):
    x = np.arange(12, dtype=np.float64).reshape(6, 2)
    data = load(own(tmp_path, x_train=x, y_train=np.arange(6) % 3, x_test=x[:2], y_test=np.array([0, 2])))
    assert data.shape == (2,) and data.num_classes == 3 and data.train_inputs.dtype == np.float32
    assert data.mean == (5.0, 6.0) and data.std == pytest.approx((3.41565, 3.41565), abs=1e-5)
    assert data.test_inputs.tolist() == [[0, 1], [2, 3]]


def test_own_arrays_without_a_test_part_are_split_three_to_one_for_ever_alike(tmp_path):
    name = own(tmp_path, x=np.arange(16, dtype=np.uint8)[:, None], y=np.arange(16) % 2)
    data = load(name)
    assert data.train_inputs.dtype == np.uint8
    assert data.test_inputs[:, 0].tolist() == HELD_OUT
    assert sorted([*data.train_inputs[:, 0].tolist(), *HELD_OUT]) == list(range(16))


HELD_OUT = [0, 3, 7, 9]  # places of the four largest of the first 16 words of sequence 0


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((8, 5, 6), (1, 5, 6)), ((8, 5, 6, 3), (3, 5, 6)), ((8, 3, 5, 6), (3, 5, 6)), ((8, 1, 5, 3), (1, 5, 3))],
)
def test_own_images_become_channel_first(tmp_path, shape, expected):
    assert load(own(tmp_path, x=np.zeros(shape, np.uint8), y=np.arange(8) % 2)).shape == expected


def test_a_constant_feature_is_only_centred(tmp_path):
    data = load(own(tmp_path, x=np.full((8, 1), 5.0), y=np.arange(8) % 2))
    assert (data.mean, data.std) == ((5.0,), (1.0,))


EIGHT, TWO = np.zeros((8, 2), np.float32), np.arange(8) % 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": EIGHT}, "must hold arrays x, y or x_train, y_train, x_test, y_test, and may hold owners, got a"),
        ({"x": EIGHT, "y": TWO[:7]}, "one entry per sample, got 8 and 7"),
        ({"x": EIGHT, "y": TWO.astype(str)}, "must be numbers, got dtype <U21; save them as int64 classes or float32"),
        ({"x": EIGHT, "y": np.full(8, np.inf)}, "labels must be finite in float32"),
        (
            {"x": EIGHT, "y": TWO, "owners": TWO[:7]},
            "inputs, labels and owners must have one entry.* got 8 and 8 and 7",
        ),
        (
            {"x": EIGHT, "y": TWO, "owners": EIGHT},
            r"one whole number or text for each of 6 samples, got shape \(6, 2\)",
        ),
        ({"x": EIGHT, "y": TWO, "owners": TWO / 2}, "owners of the train samples must be one whole number or text"),
        ({"x": EIGHT, "y": TWO - 1}, "labels must lie in 0 .. C - 1, got -1 .. 0; renumber them"),
        ({"x": EIGHT, "y": TWO * 2}, "must use every number 0 .. 2, but 1 does not occur; renumber them"),
        ({"x": EIGHT, "y": TWO * 0}, "at least two classes"),
        ({"x": EIGHT, "y": np.int64(1)}, "must be arrays with one entry per sample"),
        ({"x": np.float32(1), "y": TWO}, "must be arrays with one entry per sample"),
        ({"x": EIGHT[:0], "y": TWO[:0]}, "at least one sample"),
        ({"x": np.full((8, 2), np.nan), "y": TWO}, "finite in float32, but sample 0 holds NaN or infinity"),
        ({"x": np.full((8, 2), 1e300), "y": TWO}, "finite in float32"),
        ({"x": np.full((8, 2), "a"), "y": TWO}, "must be numbers, got dtype <U1"),
        ({"x": np.full((8, 2), 1j), "y": TWO}, "must be numbers, got dtype complex128"),
        (
            {"x": np.full((8, 2), None), "y": TWO},
            "own.npz is damaged or not what its name says: an array holds numbers or texts",
        ),
        ({"x_train": EIGHT, "y_train": TWO, "x_test": EIGHT[:, :1], "y_test": TWO}, "agree in shape and dtype"),
    ],
)
def test_own_arrays_are_checked(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        load(own(tmp_path, **arrays))


def test_a_missing_or_damaged_own_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*nothing\.npz"):
        load(str(tmp_path / "nothing.npz"))
    path = tmp_path / "cut.npz"
    path.write_bytes(b"PK\3\4 cut")
    with pytest.raises(ValueError, match=r"cut\.npz is damaged"):
        load(str(path))


def test_own_functions_return_two_to_six_arrays(tmp_path, monkeypatch):
    (tmp_path / "own_samples.py").write_text(
        "import numpy as np\n"
        "x, y = np.zeros((8, 2)), np.arange(8) % 2\n"
        "def two(): return x, y\n"
        "def four(): return x, y, x[:2], y[:2]\n"
        "def three(): return x, y, y\n"
        "def five(): return x, y, x, y, y\n"
        "def one(): return x\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert len(load("own_samples:two").test_labels) == 2
    assert len(load("own_samples:four").train_labels) == 8
    assert load("own_samples:three").owners.tolist() == load("own_samples:three").train_labels.tolist() + [
        *load("own_samples:three").test_labels
    ]
    for name, message in [
        ("own_samples:five", "must give two or four arrays .*, or three or six with owners, got 5"),
        ("own_samples:one", "must return two to six arrays, got ndarray"),
        ("own_samples:number", "module own_samples has no function 'number'"),
        ("own_samples:nothing", "module own_samples has no function 'nothing'"),
        ("no_such_package.module:f", "No module named 'no_such_package'; install the package"),
        ("own_samples.more:f", "No module named 'own_samples.more'"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(name)
    sys.modules.pop("own_samples")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "unknown data set 'cifar'; did you mean cifar1"),
        ("nmist", r"did you mean f?mnist\?"),
        ("zzz", "known are digits, mnist, fmnist, cifar10, cifar100, svhn"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


def test_the_package_exports_what_it_says():
    import pfed1bs.data

    assert sorted(pfed1bs.data.__all__) == ["Dataset", "Federation", "federate", "load", "partition"]
    assert pfed1bs.data.load is pfed1bs.data.sources.load


@pytest.mark.parametrize(
    ("module", "package", "name"), [("sklearn", "scikit-learn", "digits"), ("PIL", "pillow", "cifar10")]
)
def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch, module, package, name):
    if name == "cifar10":
        write_strips(tmp_path / name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module}.*pip install {package} .*'\.\[data\]'"):
        load(name, tmp_path)
