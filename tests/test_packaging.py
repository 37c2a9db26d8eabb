"""The package as it is built, and as it runs where parts of it are missing."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SMALL = ["--clients", "4", "--steps", "2", "--batch", "8", "--data.partition", "iid", "--data.cap", "20"]


def test_lower_bounds_are_the_versions_that_are_run():
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *sum(extras.values(), [])]
    found = (re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", need) for need in wanted if not need.startswith("pfed1bs["))
    bounds = dict(bound.groups() for bound in found)
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    run = dict(line.split("==") for line in lines if not line.startswith("#"))
    elsewhere = {"torch", "ruff", "mypy"}  # torch 2.11 ran on a GPU, the checkers run as constraints.txt has them
    for name in bounds.keys() - elsewhere:
        assert padded(bounds[name]) == padded(run[name]), name


def padded(version):
    return [*map(int, version.split(".")), 0, 0][:3]


def test_a_changed_header_rebuilds_the_kernels():
    (module,) = PROJECT["tool"]["setuptools"]["ext-modules"]
    (source,) = module["sources"]
    assert sorted(module["depends"]) == sorted(str(path.relative_to(ROOT)) for path in included(ROOT / source))


def included(source):
    """The headers of a C file, and theirs."""
    found = {source.parent / name for name in re.findall('#include "(.+)"', source.read_text())}
    return found.union(*map(included, found))


@pytest.mark.kernel
def test_without_a_compiler_runs_have_the_same_bits(tmp_path):
    native, torch = (metrics(("pfed1bs", "pfed1bs-delta"), tmp_path / kernel, kernel) for kernel in ("native", "torch"))
    assert native == torch and len(native) == 6


def metrics(methods, out, kernel):
    """The metrics of runs in a process of their own, which PFED1BS_KERNEL makes believe that nothing was compiled."""
    size = [*SMALL, "--rounds", "3", "--evaluate_every", "1"]
    runs = [["run", "--algorithm.name", name, *size, "--out", str(out / name)] for name in methods]
    code = f"from pfed1bs.cli.main import main; import sys; sys.exit(max(main(words) for words in {runs!r}))"
    around = {name: value for name, value in os.environ.items() if name != "PFED1BS_KERNEL"}
    forced = {"PFED1BS_KERNEL": "torch"} if kernel == "torch" else {}
    subprocess.run([sys.executable, "-c", code], env=around | forced, check=True, capture_output=True)
    for name in methods:
        assert (json.loads((out / name / "env.json").read_text())["kernel"] == "torch") == (kernel == "torch")
    lines = [json.loads(line) for name in methods for line in (out / name / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
