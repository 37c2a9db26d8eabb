"""The data sets that are known by name: what their samples look like, where they lie, and where they come from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pfed1bs.data.dataset import Arrays
from pfed1bs.data.files import IDX, cifar, read_idx, read_mat, read_strips
from pfed1bs.data.people import LETTERS, WINDOW, read_leaf, read_pictures, read_recordings, read_roles


@dataclass(frozen=True)
class Form:
    """One way a data set lies on disk: what must be there (a trailing .gz is optional), and how it is read."""

    files: tuple[str, ...]
    read: Callable[[Path], Arrays]
    telling: bool = True  # the file names alone tell which data set it is


@dataclass(frozen=True)
class Known:
    """A known data set.

    The MD5 sums of fmnist are the official ones; those of the others are the sums in common use for these files, and
    were not compared with a statement of their authors. MD5 finds damage, it does not prove who made a file.
    """

    shape: tuple[int, ...]  # of one sample
    num_classes: int
    mean: tuple[float, ...]  # per channel, of the full training part, inputs scaled to 0 .. 1
    std: tuple[float, ...]
    folders: tuple[str, ...] = ()  # it may lie in
    forms: tuple[Form, ...] = ()
    address: str = ""  # where it is published
    files: Mapping[str, str] = field(default_factory=dict)  # MD5 of every file there
    metric: str | None = None  # that models are judged by, where it is not accuracy


def _cifar(digits: str, train: tuple[str, ...], test: str, label: str) -> tuple[Form, ...]:
    """Extracted folder and archive, of pickles and of binaries."""
    forms = []
    for folder, archive, end in (
        (f"cifar-{digits}-batches-py" if digits == "10" else f"cifar-{digits}-python", "python", ""),
        (f"cifar-{digits}-batches-bin" if digits == "10" else f"cifar-{digits}-binary", "binary", ".bin"),
    ):
        names = tuple(f"{name}{end}" for name in train)
        for source, files in (
            (folder, tuple(f"{folder}/{name}" for name in (*names, f"{test}{end}"))),
            (f"cifar-{digits}-{archive}.tar.gz", (f"cifar-{digits}-{archive}.tar.gz",)),
        ):
            forms.append(Form(files, cifar(source, names, f"{test}{end}", label)))
    return tuple(forms)


STRIPS = Form(("train-000.webp", "train-labels.npy", "test-000.webp", "test-labels.npy"), read_strips, telling=False)
SPOKEN = ("data/01/0_01_0.wav", "data/60/9_60_49.wav")  # the first and the last of 30,000
FOUR = Form(IDX, read_idx, telling=False)
CATALOGUE = {
    "digits": Known((1, 8, 8), 10, (0.3054,), (0.3762,)),  # embedded in scikit-learn
    "mnist": Known(
        *((1, 28, 28), 10, (0.1307,), (0.3081,)),
        folders=("mnist", "MNIST/raw"),
        forms=(FOUR,),
        address="https://ossci-datasets.s3.amazonaws.com/mnist",
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fmnist": Known(
        *((1, 28, 28), 10, (0.2860,), (0.3530,)),
        folders=("fmnist", "fashion-mnist", "FashionMNIST/raw"),
        forms=(FOUR,),
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": Known(
        *((3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        folders=("cifar10",),
        forms=(*_cifar("10", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "labels"), STRIPS),
        address="https://www.cs.toronto.edu/~kriz",
        files={"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "cifar100": Known(
        *((3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        folders=("cifar100",),
        forms=(*_cifar("100", ("train",), "test", "fine_labels"), STRIPS),
        address="https://www.cs.toronto.edu/~kriz",
        files={"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ),
    "svhn": Known(
        *((3, 32, 32), 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        folders=("svhn",),
        forms=(Form(("train_32x32.mat", "test_32x32.mat"), read_mat), STRIPS),
        address="http://ufldl.stanford.edu/housenumbers",
        files={
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
    "audiomnist": Known(
        *((1, 32, 32), 10, (0.342,), (0.286,)),
        folders=("audiomnist", "AudioMNIST"),
        forms=(
            Form(("images.png", "labels.npy", "speakers.npy"), read_pictures, telling=False),
            Form(SPOKEN, read_recordings, telling=False),
        ),
        address="https://github.com/soerenab/AudioMNIST",
    ),
    "shakespeare": Known(
        *((WINDOW,), len(LETTERS), (), ()),
        folders=("shakespeare",),
        forms=(Form(("roles.json",), read_roles, telling=False), Form(("all_data/all_data.json",), read_leaf)),
        address="https://leaf.cmu.edu",
        metric="bits",
    ),
}
