"""The sums of the reproducible set-up are for the versions that it pins."""

import re
from pathlib import Path

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
