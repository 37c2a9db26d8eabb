"""Bytes of a round of every method on the paper's networks, beside those that the sheets of the rivals print."""

import pytest

from pfed1bs.algorithms import REGISTRY
from pfed1bs.facts.traffic import SHAPES, lines, table, traffic

RIVALS = [  # method, options, and bits of a message each way and MiB of a round, for the three networks
    ("decomfl", {}, ((3_200, "0.015"),) * 3),
    ("decomfl", {"directions": 20}, ((6_400, "0.031"),) * 3),
    ("ferret", {}, ((20_352, "0.097"), (28_000, "0.134"), (1_529_984, "7.296"))),
    ("powersgd", {"rank": 1}, ((50_304, "0.240"), (146_400, "0.698"), (1_731_680, "8.257"))),
    ("powersgd", {}, ((92_096, "0.439"), (248_960, "1.187"), (3_021_888, "14.409"))),
    ("powersgd", {"rank": 4}, ((175_680, "0.838"), (454_080, "2.165"), (5_602_304, "26.714"))),
    ("powersgd", {"rank": 1, "factors": "half"}, ((29_408, "0.140"), (95_120, "0.454"), (1_086_576, "5.181"))),
    ("eden-two", {}, ((26_246, "0.125"), (52_461, "0.250"), (1_677_754, "8.000"))),
    ("eden-two", {"bits": 0.3}, ((78_675, "0.375"), (157_318, "0.750"), (5_033_197, "24.000"))),
    ("eden-two", {"bits": 1.0}, ((262_176, "1.250"), (524_320, "2.500"), (16_777_248, "80.000"))),
    ("fedbn", {}, ((6_512_960, "31.056"), (8_938_816, "42.624"), (489_321_600, "2333.267"))),
    ("knnper", {}, ((6_512_960, "31.056"), (8_962_368, "42.736"), (489_591_936, "2334.556"))),
    ("scaffold", {}, ((13_025_920, "62.112"), (17_924_736, "85.472"), (979_183_872, "4669.113"))),
]


@pytest.mark.parametrize(("method", "options", "told"), RIVALS)
def test_rivals_send_what_their_sheets_say(method, options, told):
    for net, (bits, mib) in zip(SHAPES, told, strict=True):
        found = traffic(method, net, **options)
        assert found.up == found.down == -(-bits // 8) and f"{found.mib:.3f}" == mib
        assert found.varies == ("factors" in options)  # its rounds, in the mean


def test_every_method_stands_in_one_line_with_all_networks():
    rows = table()
    assert [row.method for row in rows[:: len(SHAPES)]] == [*REGISTRY]
    found = {line[0]: line for line in lines(rows)}
    assert [*found] == [*REGISTRY] and {len(line) for line in found.values()} == {1 + 3 * len(SHAPES)}
    assert found["eden-two"][1:4] == ("3,281", "3,281", "0.125") and found["stc"][1].startswith("~")
