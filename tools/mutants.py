"""Small faults put into the code one by one, and which of them no test sees.

    python tools/mutants.py --count 300 --minutes 25 --seed 0 --out results/mutants.json

A mutant is one changed operator, comparison, condition or number in src/pfed1bs/algorithms, wire or core/votes.py. For
each, the tests of its room run in a copy of the sources, and of tests/test_every_algorithm.py those of the method. A
mutant is killed when a test fails or its time on the processor runs out. What errors say and the defaults of options
are left alone.
"""

import argparse
import ast
import compileall
import difflib
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src") / "pfed1bs"
DELTA = [f"tests/algorithms/test_{name}.py" for name in ("keeping", "delta_rounds", "pfed1bs_delta")]
USERS = {  # a method or two that stand for what several share
    "averaging": ("fedavg", "ditto"), "binarised": ("fedbat",), "companion": ("ditto", "apfl"), "masks": ("dispfl",),
    "finetuning": ("fedavg", "stc"), "keeping": ("pfed1bs-delta",), "trial": ("pfed1bs-delta",), "split": ("fedrep",),
    "onebit": ("pfed1bs-delta",), "replica": ("stc", "signsgd"), "voting": ("obda", "signsgd"), "method": ("local",),
}  # fmt: skip
SWAPS = {
    ast.Add: ["-"], ast.Sub: ["+"], ast.Mult: ["/"], ast.Div: ["*"], ast.FloorDiv: ["*"], ast.Mod: ["+"],
    ast.BitAnd: ["|"], ast.BitOr: ["&"], ast.LShift: [">>"], ast.RShift: ["<<"], ast.Pow: ["*"], ast.MatMult: [],
    ast.Lt: ["<=", ">"], ast.LtE: ["<", ">="], ast.Gt: [">=", "<"], ast.GtE: [">", "<="], ast.Eq: ["!="],
    ast.NotEq: ["=="], ast.Is: ["is not"], ast.IsNot: ["is"], ast.In: ["not in"], ast.NotIn: ["in"],
}  # fmt: skip


def text_of(source: str, node: ast.AST) -> str:
    """The words of a node, in brackets if it is more than one."""
    words = ast.get_source_segment(source, node) or ""
    return (
        words if isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript) else f"({words})"
    )


def changes(source: str, node: ast.AST) -> list[str]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.BinOp):
        left, right = text_of(source, node.left), text_of(source, node.right)
        return [f"({left} {new} {right})" for new in SWAPS.get(type(node.op), [])]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = text_of(source, node.left), text_of(source, node.comparators[0])
        return [f"({left} {new} {right})" for new in SWAPS[type(node.ops[0])]]
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return ["(" + word.join(text_of(source, value) for value in node.values) + ")"]
    if isinstance(node, ast.UnaryOp):
        return [text_of(source, node.operand)]
    if isinstance(node, ast.IfExp):
        return [f"({text_of(source, node.body)})", f"({text_of(source, node.orelse)})"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return [str(not node.value)]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return [repr(node.value + 1), *([repr(node.value - 1)] if node.value else [])]
    return []


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that may be changed: no annotations, no errors, no options, no formatted words."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            option = isinstance(child, ast.Call) and getattr(child.func, "id", "") == "option"
            if isinstance(child, ast.AST) and not option and not isinstance(child, ast.Raise | ast.JoinedStr):
                yield child
                yield from parts(child)


def mutants(path: Path) -> Iterator[str]:
    """The file with one fault, for every fault."""
    source = path.read_text()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in parts(ast.parse(source)):
        for new in changes(source, node):
            first = starts[node.lineno - 1] + node.col_offset  # the sources are ASCII
            last = starts[node.end_lineno - 1] + node.end_col_offset
            yield source[:first] + new + source[last:]


def tests(path: Path) -> list[list[str]]:
    """What runs for a file, one pytest after the other."""
    if path.parts[2] == "wire":
        return [["tests/wire"]]
    if path.parts[2] == "core":
        return [["tests/core/test_votes.py"]]
    users = USERS.get(path.stem, (path.stem.replace("_", "-"),))
    names = "|".join([f"(algorithms|base)[.]{path.stem} ", *(f'"{name}"|algorithms[.]{name} ' for name in users)])
    named = [file for file in (ROOT / "tests" / "algorithms").glob("test_*.py") if re.search(names, file.read_text())]
    own = DELTA if "pfed1bs-delta" in users else sorted(str(file.relative_to(ROOT)) for file in named)
    own = [*own, "tests/engine/test_differences_rounds.py"] if path.stem == "pfed1bs" else own  # code = entropy
    which = " or ".join(f"{name} and not delta" if name == "pfed1bs" else name for name in users)
    return [*([own] if own else []), ["tests/test_every_algorithm.py", "-k", which]]


def outcome(folder: Path, runs: list[list[str]], limit: int) -> str:
    """Run tests with the sources of `folder`, one pytest after the other: "killed", "survived" or "time"."""
    for run in runs:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
                code = _run(folder, run)
            finally:
                os._exit(code)  # nothing of the parent's is cleaned up here
        status = os.waitpid(child, 0)[1]
        if os.waitstatus_to_exitcode(status) > 2:
            sys.exit(f"pytest could not run {run}")
        if status:
            return "time" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU else "killed"
    return "survived"


class Steady:
    """The same examples for every mutant, and none that fails because the machine is slow."""

    def pytest_configure(self) -> None:
        """Before tests are collected."""
        from hypothesis import HealthCheck, settings

        settings.register_profile("mutants", deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
        settings.load_profile("mutants")


def _run(folder: Path, run: list[str]) -> int:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(folder / "src"))
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.dont_write_bytecode = True  # two mutants may have the same length and the same second
    import pytest

    return int(pytest.main([*run, "-x", "-p", "no:cacheprovider"], plugins=[Steady()]))


def judged(chosen: list[tuple[Path, str]], own: argparse.Namespace) -> Iterator[dict[str, object]]:
    """What becomes of each mutant, until time is over or somebody has had enough."""
    with tempfile.TemporaryDirectory() as name, suppress(KeyboardInterrupt):
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder / "src", quiet=1)
        if not own.unchecked:
            for run in {tuple(run[:1] if "-k" in run else run) for file, _ in chosen for run in tests(file)}:
                if outcome(folder, [list(run)], 3600) != "survived":
                    sys.exit(f"these tests fail without any fault: {run}")
        for file, text in chosen:
            if sum(os.times()[:4]) > 60 * own.minutes:
                return
            before = (ROOT / file).read_text()
            (folder / file).write_text(text)
            result = outcome(folder, tests(file), own.limit)
            (folder / file).write_text(before)
            diff = list(difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm=""))[2:]
            print(result, file, *diff, sep="\n  ", flush=True)
            yield {"file": str(file), "outcome": result, "diff": diff}


def main() -> None:
    """Sample, run, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=60, help="of the processor, for all of them")
    parser.add_argument("--limit", type=int, default=120, help="seconds of the processor for a pytest of one mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--only", default="", help="what paths must have, keeping|trial for instance")
    parser.add_argument("--out", type=Path)
    own = parser.parse_args()
    import torch  # once, before the processes part

    torch.set_num_threads(1)
    files = [*(ROOT / SOURCE / "algorithms").rglob("*.py"), *(ROOT / SOURCE / "wire").glob("*.py")]
    files = [file for file in [*files, ROOT / SOURCE / "core" / "votes.py"] if file.stem != "__init__"]
    files = sorted(file.relative_to(ROOT) for file in files if re.search(own.only, str(file.relative_to(ROOT))))
    possible = [(file, text) for file in files for text in mutants(ROOT / file)]
    found = list(judged(random.Random(own.seed).sample(possible, min(own.count, len(possible))), own))
    survivors = [item for item in found if item["outcome"] == "survived"]
    print(f"{len(found) - len(survivors)} of {len(found)} killed, {len(possible)} possible")
    if own.out:
        from pfed1bs.runs.environment import environment

        facts = {**environment("cpu"), "command": shlex.join(["python", *sys.argv]), "possible": len(possible)}
        facts |= {"run": len(found), "killed": len(found) - len(survivors)}
        by_file = {str(file): sum(str(file) == item["file"] for item in found) for file in files}
        own.out.write_text(json.dumps({**facts, "run_by_file": by_file, "survived": survivors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
