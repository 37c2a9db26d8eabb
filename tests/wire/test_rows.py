"""Rows with counts, from bytes that a sender should not have written."""

import struct

import pytest
import torch

from pfed1bs.wire.rows import EXACT, CountedRows

CODEC = CountedRows(3, 1)


def records(*rows):
    """Bytes of (count, row, value) each."""
    return b"".join(struct.pack("<If", count * 3 + row, value) for count, row, value in rows)


def test_rows_come_with_their_counts():
    assert CODEC.decode(records((1, 0, 0.5), (7, 2, -1.0))).tolist() == [[1, 0.5], [0, 0], [7, -1]]
    assert CODEC.decode(records((EXACT, 1, 2.0))).tolist() == [[0, 0], [EXACT, 2], [0, 0]]


@pytest.mark.parametrize(
    "rows",
    [
        ((0, 1, 1.0),),
        ((1, 0, 1.0), (0, 1, 1.0)),
        ((EXACT + 1, 1, 1.0),),
        ((1, 2, 1.0), (1, 1, 1.0)),
        ((1, 1, 1.0),) * 2,
    ],
)
def test_rows_for_no_sample_for_too_many_or_out_of_order_are_refused(rows):
    with pytest.raises(ValueError, match="rows must ascend and stand for 1"):
        CODEC.decode(records(*rows))


def test_counts_that_would_not_fit_beside_their_row_are_refused():
    codec, table, most = CountedRows(512, 1), torch.zeros(512, 2), 2**32 // 512 - 1
    table[511] = torch.tensor([most, 1.5])
    assert torch.equal(codec.decode(codec.encode(table)), table)
    table[511, 0] = most + 1
    with pytest.raises(ValueError, match=f"whole numbers in 0 .. {most}"):
        codec.encode(table)
