"""Which tests run which lines, and processes that run some of them on copies of the sources (for tools/mutants.py)."""

import compileall
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path

from faults import ROOT, Mutant

SOURCE = Path("src") / "pfed1bs"
TESTS = ["wire/test_*.py", "algorithms/test_*.py", "engine/test_*.py", "core/test_votes.py"]
TESTS += ["facts/test_bytes_of_methods.py", "facts/test_c*.py", "test_every_algorithm.py"]


@dataclass
class Survey:
    """What the tests do without a fault: seconds of each, who runs a line of a file, and who fails."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)  # "file:line": tests
    failing: list[str] = field(default_factory=list)

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that run its lines, the shortest first.

        If those run at import, all tests of files that run any line of its file: what a class says of itself may be
        read by a test that calls none of its functions.
        """
        near = {f"{mutant.file}:{line}" for line in range(mutant.first, mutant.last + 1)}
        found = {test for place in near for test in self.lines.get(place, [])}
        if mutant.imported:
            run = (tests for place, tests in self.lines.items() if place.startswith(f"{mutant.file}:"))
            files = {test.split("::")[0] for tests in run for test in tests}
            found = {test for test in self.seconds if test.split("::")[0] in files}
        return sorted(found - {*self.failing}, key=lambda test: self.seconds[test])


class Steady:
    """The same examples for every mutant, and none that fails because the machine is slow."""

    def pytest_configure(self) -> None:
        """Before tests are collected."""
        from hypothesis import HealthCheck, settings

        settings.register_profile("mutants", deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
        settings.load_profile("mutants")


class Chosen(Steady):
    """These tests alone, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list) -> None:
        """After tests are collected."""
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])


class Watching(Steady):
    """Note the seconds and the lines of each test, into a file at the end."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.out, self.prefix, self.cut = out, str(folder / SOURCE), len(str(folder)) + 1
        self.survey, self.seen = Survey(), set()

    def trace(self, frame, event, _):  # noqa: ANN001, ANN201
        """Called by Python at calls and, where it returns itself, at lines."""
        code = frame.f_code
        if not (code.co_filename.startswith(self.prefix) and code.co_flags & CO_OPTIMIZED):  # of functions, no import
            return None
        self.seen.add((code.co_filename, frame.f_lineno))
        return self.trace

    def pytest_runtest_protocol(self, item) -> None:  # noqa: ANN001
        """Before each test."""
        self.seen = set()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After each test."""
        sys.settrace(None)
        for file, line in self.seen:
            self.survey.lines.setdefault(f"{file[self.cut :]}:{line}", []).append(nodeid)

    def pytest_runtest_logreport(self, report) -> None:  # noqa: ANN001
        """After each phase of a test."""
        self.survey.seconds[report.nodeid] = self.survey.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.survey.failing.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """At the end."""
        self.out.write_text(json.dumps(vars(self.survey)))


def start(folder: Path, files: list[str], plugin: Steady, limit: int) -> int:
    """Run tests with the sources of `folder` in a process of its own; its number."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        signal.alarm(5 * limit)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
        sys.dont_write_bytecode = isinstance(plugin, Chosen)  # two mutants may have the same length and second
        import pytest

        words = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]  # that it is imported
        words += ["-x"] if isinstance(plugin, Chosen) else []
        code = int(pytest.main([*files, *words], plugins=[plugin]))
    finally:
        os._exit(code)  # nothing of the parent's is cleaned up here


def side_by_side(jobs: Iterator[tuple[object, Callable[[Path], int]]], parallel: int) -> Iterator[tuple]:
    """Each job in a copy of the sources, so many at a time; what it was and how its process ended, as they end."""
    with tempfile.TemporaryDirectory() as name:
        free, running = [], {}
        for number in range(parallel):
            shutil.copytree(
                ROOT / "src", Path(name) / str(number) / "src", ignore=shutil.ignore_patterns("__pycache__")
            )
            compileall.compile_dir(Path(name) / str(number) / "src", quiet=1)
            free.append(Path(name) / str(number))
        try:
            while True:
                while free and (job := next(jobs, None)):
                    folder = free.pop()
                    running[job[1](folder)] = job[0], folder
                if not running:
                    return
                child, status = os.wait()
                what, folder = running.pop(child)
                free.append(folder)
                yield what, folder, status
        finally:
            for child in running:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def surveyed(parallel: int) -> Survey:
    """Every test file once, without a fault."""
    files = sorted(str(file.relative_to(ROOT)) for glob in TESTS for file in (ROOT / "tests").glob(glob))
    files.sort(key=lambda file: "every" not in file)  # the longest first
    with tempfile.TemporaryDirectory() as name:
        outs = {file: Path(name) / file.replace("/", "-") for file in files}
        jobs = ((file, lambda folder, f=file: start(folder, [f], Watching(folder, outs[f]), 3600)) for file in files)
        list(side_by_side(jobs, parallel))
        survey = Survey(failing=[file for file, out in outs.items() if not out.exists()])
        found = [json.loads(out.read_text()) for out in outs.values() if out.exists()]
    for one in found:
        survey.seconds |= one["seconds"]
        survey.failing += one["failing"]
        for place, tests in one["lines"].items():
            survey.lines.setdefault(place, []).extend(tests)
    return survey
