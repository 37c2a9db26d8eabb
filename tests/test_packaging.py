"""The package as it is built, and as it runs where parts of it are missing."""

import json
import re
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


RUNS = """
from pfed1bs.runs.config import load
from pfed1bs.runs.run import Run
for name in METHODS:
    words = ["--algorithm.name", name, *SMALL, "--rounds", "3", "--evaluate_every", "1", "--out", f"{OUT}/{name}"]
    list(Run.prepare(load(None, words)).rounds())
"""


@pytest.mark.kernel
def test_without_a_compiler_runs_have_the_same_bits(tmp_path, fresh):
    """PFED1BS_KERNEL makes a process believe that nothing was compiled."""
    methods = "pfed1bs", "pfed1bs-delta"
    exec(RUNS, {"METHODS": methods, "SMALL": SMALL, "OUT": tmp_path / "native"})
    around = f"METHODS, SMALL, OUT = {methods!r}, {SMALL!r}, {str(tmp_path / 'torch')!r}"
    done = fresh(around + RUNS, PFED1BS_KERNEL="torch")
    assert done.returncode == 0, done.stderr
    native, torch = (metrics([tmp_path / kernel / name for name in methods]) for kernel in ("native", "torch"))
    assert native == torch and len(native) == 6
    kernels = [
        json.loads((tmp_path / at / "env.json").read_text())["kernel"] for at in ("native/pfed1bs", "torch/pfed1bs")
    ]
    assert kernels[0] != "torch" and kernels[1] == "torch"


def metrics(folders):
    lines = [json.loads(line) for folder in folders for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
