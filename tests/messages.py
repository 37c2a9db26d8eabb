"""What tests of messages share: the vectors of the document, and small tools."""

import json
import re
import struct
import zlib
from pathlib import Path

import torch

DOCUMENT = Path(__file__).parents[1] / "docs" / "wire.md"
VECTORS = json.loads(re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1])


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


def tensors(fields):
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in fields.items()}


def same(a, b):
    return list(a) == list(b) and all(
        a[name].shape == b[name].shape and a[name].numpy().tobytes() == b[name].numpy().tobytes() for name in a
    )


def signed(values, payload):
    """A message with the right checksum, whatever its header says: kind, layout, round, coordinates, samples."""
    head = struct.pack("<BBHIII", 2, *values)
    return head + struct.pack("<I", zlib.crc32(head + payload)) + payload
