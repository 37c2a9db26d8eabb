"""Small files that promise much: each is refused, and takes no memory for the promise."""

import io
import pickle
import struct
import tracemalloc
import wave
import zipfile

import numpy as np
import pytest

from pfed1bs.core.errors import UserError
from pfed1bs.data.arrays import matlab
from pfed1bs.data.files import array, read_strips
from pfed1bs.data.people import _picture
from pfed1bs.data.sources import load
from pfed1bs.data.unpickle import batch

HEAD = b"MATLAB 5.0".ljust(124) + b"\0\1IM"


@pytest.fixture(autouse=True)
def little_memory():
    tracemalloc.start()
    yield
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < 8 << 20


def element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(name, sizes, values, kind=2):
    flags, shape = element(6, bytes([9, 0, 0, 0, 0, 0, 0, 0])), element(5, np.array(sizes, "<i4").tobytes())
    return element(14, flags + shape + element(1, name) + element(kind, values))


def npy(shape, dtype="<f4"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(64)


def test_an_array_that_promises_a_terabyte_is_refused(tmp_path):
    for shape, dtype in (((1 << 38,), "<f4"), ((2,), "<U1000000000"), ((-16,), "<f4")):
        (tmp_path / "a.npy").write_bytes(npy(shape, dtype))
        with pytest.raises(UserError, match="a.npy is damaged"):
            array(tmp_path / "a.npy")
        with zipfile.ZipFile(tmp_path / "own.npz", "w") as file:
            file.writestr("x.npy", npy(shape, dtype))
            file.writestr("y.npy", npy((16,)))
        with pytest.raises(UserError, match="own.npz is damaged"):
            load(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    ("elements", "told"),
    [
        (matrix(b"X", (1 << 20, 1 << 20), b"abc"), "promises"),
        (matrix(b"X", (-1, -3), b"abc"), "promises"),
        (matrix(b"X", (3,), b"abc")[:-9], "promises"),
        (matrix(b"X", (3,), b"abc", kind=14), "no array of real numbers"),
        (matrix(b"Y", (3,), b"abc"), "holds no array X"),
        (b"\1\0\xff\xff1234", "short element"),
        (element(15, b"x"), "what is compressed is one element, got 0"),
        (b"1234", "ends inside"),
    ],
)
def test_a_matlab_file_is_read_by_its_own_bytes_alone(elements, told):
    assert matlab(HEAD + matrix(b"X", (1, 3), b"abc"), ("X",))["X"].tolist() == [[97, 98, 99]]
    with pytest.raises(Exception, match=told):
        matlab(HEAD + elements, ("X",))


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\2}r\xff\xff\xff\x7f.",  # remembers number 2^31 - 1: the list of what is remembered would grow to it
        b"\x80\4\x8e\xff\xff\xff\xff\1\0\0\0.",  # eight gigabytes of text
        b"\x80\2}2.",  # the top of the stack, doubled
        pickle.dumps({b"data": {1, 2}}, 4),  # a set
    ],
)
def test_a_batch_is_refused_that_says_what_no_batch_says(data):
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        batch(data)


def test_a_strip_is_refused_before_it_is_unfolded(tmp_path):
    size = (16382 | 16382 << 14).to_bytes(4, "little")
    body = b"VP8L" + struct.pack("<I", 22) + b"/" + size + bytes(17)
    (tmp_path / "train-000.webp").write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body)
    with pytest.raises(UserError, match="train-000.webp is damaged"):
        read_strips(tmp_path)


def test_a_recording_is_refused_at_a_rate_that_nothing_records_at(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000 << 16, 0, "NONE", ""))
        file.writeframes(bytes(100))
    with pytest.raises(UserError, match="a.wav is damaged.*multiple of 8000 Hz"):
        _picture(tmp_path / "a.wav")


def test_labels_that_hold_each_other_are_refused(tmp_path):
    from pfed1bs.data.files import _pickled

    labels: list = [1]
    for _ in range(40):
        labels = [labels, labels]
    images = np.zeros((1, 3072), np.uint8)
    file = io.BytesIO()
    pickle.dump({b"data": images, b"labels": labels}, file, 4)
    with pytest.raises(ValueError, match="whole numbers"):
        _pickled(file.getvalue(), b"labels")
