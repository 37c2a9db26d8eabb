"""The pictures of a report: what they name, where they put it, and that they repeat."""

from xml.etree import ElementTree

import pytest

from pfed1bs import report
from pfed1bs.algorithms import REGISTRY
from pfed1bs.report.groups import groups
from pfed1bs.report.results import significant
from pfed1bs.report.style import KNOWN, apart, pen, size
from run_folders import records_of


def test_every_method_has_its_own_look_in_every_picture(tmp_path):
    alone = {name: pen(groups(records_of(tmp_path / name, name))[0]) for name in KNOWN}
    assert len(set(alone.values())) == len(KNOWN) and {*KNOWN} == REGISTRY.keys() - {"local"}
    together = groups(records_of(tmp_path / "all", *reversed(KNOWN)))
    assert {group.algorithm: pen(group) for group in together} == alone


def test_texts_at_line_ends_move_until_none_covers_another():
    assert apart([(0, 1, 0.5), (0, 1, 0.5), (2, 3, 0.5)], gap=0.1) == [0.5, 0.4, 0.5]
    assert apart([(0, 1, 0.1), (0, 1, 0.0)], gap=0.25, floor=0.25) == [0.5, 0.25]


def test_bytes_and_numbers_read_well():
    assert [size(count) for count in (0.5, 512, 1024, 1536, 2**25, 2**40, 2**52)] == [
        *("0.5 B", "512 B", "1 KiB", "1.5 KiB", "32 MiB", "1 TiB", "4096 TiB")
    ]
    assert [significant(value) for value in (0, 0.0019302368, 31.0563, 23345.6)] == ["0", "0.001930", "31.06", "23346"]


@pytest.mark.parametrize("draw", [report.accuracy_bytes, report.accuracy_rounds, report.training_loss])
def test_a_picture_is_the_same_file_every_time_and_names_its_lines(tmp_path, draw):
    records = records_of(tmp_path, "pfed1bs", "local", "fedavg")
    draw(records, tmp_path / "a.svg"), draw(records, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "date" not in text.lower()
    words = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert {"pfed1bs", "fedavg"} <= set(words)
    assert ("local, 0 bytes" in words) == (draw is report.accuracy_bytes)
    assert ("local" in words) == (draw is not report.accuracy_bytes)
    assert ("256 KiB" in words) == (draw is report.accuracy_bytes)


def test_many_lines_get_a_legend_instead_of_labels(tmp_path):
    report.accuracy_rounds(records_of(tmp_path, *KNOWN[:9]), tmp_path / "many.svg")
    report.accuracy_rounds(records_of(tmp_path, *KNOWN[:8]), tmp_path / "few.svg")
    assert 'id="legend_1"' in (tmp_path / "many.svg").read_text()
    assert 'id="legend_1"' not in (tmp_path / "few.svg").read_text()


def test_a_picture_without_content_is_refused(tmp_path):
    records = records_of(tmp_path, "local")
    with pytest.raises(ValueError, match="after sending something"):
        report.accuracy_bytes(records, tmp_path / "a.svg")
    with pytest.raises(ValueError, match="no run has logged any of agreement, flips"):
        report.diagnostics(records, tmp_path / "a.svg")


def test_clients_are_sorted_by_local_training(tmp_path):
    report.accuracy_clients(records_of(tmp_path, "pfed1bs", "local"), tmp_path / "a.svg")
    assert "clients of seed 0, sorted by their accuracy under local" in (tmp_path / "a.svg").read_text()
