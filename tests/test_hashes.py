"""The sums of the reproducible set-up are for the versions that it pins."""

import re
from pathlib import Path

import pytest
from audit import affects, pinned, weaknesses

ROOT = Path(__file__).parents[1]
BUILDING = {"build", "pyproject-hooks"}  # for wheels alone


def test_every_pinned_package_has_the_sum_of_its_file():
    pinned = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    summed = re.findall(
        r"^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$", (ROOT / "constraints-hashes.txt").read_text(), re.M
    )
    known = {name.lower().replace("_", "-"): version.removesuffix("+cpu") for name, version in summed}
    wanted = {name.lower().replace("_", "-"): version for name, version in pinned}
    assert known == {name: version for name, version in wanted.items() if name not in BUILDING}


@pytest.mark.parametrize(("version", "bad"), [("1.25", True), ("1.26.18", False), ("2.0.6", True), ("2.0.7", False)])
def test_a_weakness_is_found_by_the_ranges_of_its_advisory(tmp_path, version, bad):
    (tmp_path / "urllib3").mkdir()
    ranges = "[{introduced: 2.0.0}, {fixed: 2.0.7}, {introduced: '0'}, {fixed: 1.26.18}]"
    text = f"id: PYSEC-1\naffected:\n- ranges:\n  - {{type: ECOSYSTEM, events: {ranges}}}\n"
    (tmp_path / "urllib3" / "one.yaml").write_text(text)
    (tmp_path / "pins.txt").write_text(f"urllib3=={version}\nnumpy==2.0\n")
    found, seen = weaknesses(tmp_path, pinned(tmp_path / "pins.txt"))
    assert (bool(found), seen) == (bad, 1)


def test_a_version_that_an_advisory_lists_or_names_as_its_last_is_affected():
    assert affects({"versions": ["1.0"]}, "1.0") and not affects({"versions": ["1.0"]}, "1.1")
    last = {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "1"}, {"last_affected": "2"}]}]}
    assert [affects(last, version) for version in ("0.9", "1", "2", "2.1")] == [False, True, True, False]
