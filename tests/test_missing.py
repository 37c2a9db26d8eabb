"""The commands of tools/missing: each names recipes, variants and tables that are there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pfed1bs.runs.config import load
from pfed1bs.studies import comparison, plan

ROOT = Path(__file__).parent.parent
RECORD = "#!{}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"


@pytest.mark.parametrize("part", ["vgg16", "means", "mlp", "vgg8", "front", "bytes"])
def test_every_command_names_what_is_there(tmp_path, part):
    stub = tmp_path / "python"
    stub.write_text(RECORD.format(sys.executable))
    stub.chmod(0o755)
    told = subprocess.run(
        [ROOT / "tools/missing", part, "3"], env={"PYTHON": str(stub), "PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert told.returncode == 0 and not told.stderr
    for words in map(json.loads, told.stdout.splitlines()):
        said = dict(zip(words, words[1:], strict=False))
        if words[0] != "-m":
            rounds = {"0,1,2": "600", "0": "200"}[said["--seeds"]]
            assert (ROOT / words[0]).is_file() and said["--rounds"] == rounds, words
        elif words[2] == "reproduce":
            names = words[3 : next(i for i, word in enumerate(words) if word.startswith("--"))]
            assert names and {*names} <= {*plan.NAMES} and words[-5:-2] == ["--parallel", "3", "--device"]
            assert said["--join"] == "results" and said["--out"] == "runs/rows"
        else:  # a choice, on samples and seeds that no table has
            assert said["--seeds"] == "100,101" and (words[2] == "tune" or said["--data.validate"] == "true")
            assert (ROOT / words[3]).is_file(), words
            named = words[words.index("--runs") + 1 : words.index("--parallel")] if "--runs" in words else []
            flags = [
                word for key in ("--rounds", "--rest") if key in words for word in (key, words[words.index(key) + 1])
            ]
            for item in map(comparison.variant, named):
                load(str(ROOT / words[3]), flags, [item.name]).with_method(item.name, 0, item.options)


def test_a_part_that_is_not_there_is_refused():
    assert subprocess.run([ROOT / "tools/missing", "svm", "3"], capture_output=True).returncode == 2
