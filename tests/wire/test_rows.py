"""Rows with counts, from bytes that a sender should not have written."""

import struct

import pytest

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
