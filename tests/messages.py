"""What tests of messages share: the vectors of the document, and small tools."""

import json
import re
import struct
import zlib
from pathlib import Path

import torch

from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs, Sparse
from pfed1bs.wire.either import Either
from pfed1bs.wire.rows import CountedRows, Rows

DOCUMENT = Path(__file__).parents[1] / "docs" / "wire.md"
VECTORS = json.loads(re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1])
CODECS = {  # by their words in the document; every number or shape comes as a tuple
    "signs": lambda count: Signs(*count),
    "floats": lambda shape=(): Floats(shape),
    "levels": lambda shape, levels: Levels(shape, *levels),
    "sparse": lambda n, count: Sparse(*n, *count),
    "differences": lambda count: Differences(*count),
    "either": lambda short, long: Either(*short, *long),
    "rows": lambda shape: Rows(*shape),
    "counted-rows": lambda shape: CountedRows(*shape),
}


class Text:
    """A codec of varying size: a number in decimal digits."""

    wire = "text"
    shape = (1,)
    size = None

    def encode(self, x, known=None):
        return str(int(x)).encode()

    def decode(self, data, known=None):
        if not data.isdigit() or len(data) > 9:
            raise ValueError("one to nine digits only")
        return torch.tensor([int(data)])


def codec(text):
    """The codec that a layout of the document names."""
    word, *numbers = text.split()
    found = CODECS[word](*(tuple(map(int, number.split("x"))) for number in numbers))
    assert found.wire == text
    return found


def fields(layout, written):
    """The fields of a message as the document writes them."""
    return {name: _field(layout[name], value) for name, value in written.items()}


def _field(codec, value):
    if isinstance(codec, Rows | CountedRows):  # a flag or a count is the first number, 0 where a row is missing
        flag = [1] if isinstance(codec, Rows) else []
        value = [[0] * codec.shape[1] if row is None else flag + row for row in value]
    return torch.tensor(value, dtype=torch.int32 if isinstance(codec, Levels) else torch.float32)


def tensors(fields):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in fields.items()}


def same(a, b):
    return list(a) == list(b) and all(
        a[name].shape == b[name].shape and a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a
    )


def signed(values, payload):
    """A message with the right checksum, whatever its header says: kind, layout, round, coordinates, samples."""
    head = struct.pack("<BBHIII", 3, *values)
    return head + struct.pack("<I", zlib.crc32(head + payload)) + payload
