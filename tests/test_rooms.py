"""The rooms of the package: imports point one way, every module lives where it is used, and names mean one thing."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import pfed1bs
from pfed1bs.algorithms import REGISTRY

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "pfed1bs"
LAYERS = (  # a room imports from layers before its own; two rooms of one layer know nothing of each other
    *(("core",), ("wire",), ("nn", "data"), ("engine",), ("compressors",), ("algorithms",)),
    *(("runs",), ("facts",), ("report",), ("studies", "flower"), ("cli",)),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# What users open a room by: the public names and the commands. To be used by one of them alone misplaces nothing.
DOORS = ("", "cli")
BARE = ("core", "wire", "nn", "engine", "compressors", "algorithms")  # these need torch and numpy alone
EXTRAS = {"jsonargparse", "rich", "safetensors", "tomli_w", "sklearn", "scipy", "PIL", "matplotlib", "jinja2"}
SERVED = {"flwr", "cryptography", "starlette", "httpx", "uvicorn"}  # Flower, and what comes with it


def name_of(path):
    parts = ("pfed1bs", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def room(module):
    """The room of a module; empty for the top level, which holds rooms and doors."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else ""


def targets(tree):
    """Every module that a syntax tree imports, wherever it does; a name of a package that is a module counts as it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name their module in full"
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in FILES else node.module for name in inner)


@cache
def imports():
    """The modules of this package that each of them imports."""
    found = {module: set(targets(ast.parse(path.read_text()))) for module, path in FILES.items()}
    return {module: {target for target in all_ if target in FILES} - {module} for module, all_ in found.items()}


def at_load(tree):
    """The statements that run when a module is imported, those for the type checker left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from at_load(node)


def foreign(nodes):
    """Packages that are neither ours nor Python's."""
    found = {target.partition(".")[0] for node in nodes for target in targets(ast.Module([node], []))}
    return found - {"pfed1bs"} - sys.stdlib_module_names


def test_the_top_level_holds_rooms_and_doors():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(LEVEL)
    assert {path.stem for path in SOURCE.glob("*.py")} <= {"__init__", "__main__", "extend"}


def test_imports_point_one_way():
    wrong = [
        f"{module} imports {target}"
        for module, found in imports().items()
        for target in found
        if room(module) and room(module) != room(target) and not LEVEL.get(room(target), 99) < LEVEL[room(module)]
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_module_imports_itself_over_others():
    TopologicalSorter(imports()).prepare()


def test_a_module_that_only_one_other_uses_lives_beside_it():
    for module in FILES:
        users = [user for user, found in imports().items() if module in found]
        if len(users) == 1 and room(users[0]) not in DOORS:
            assert room(users[0]) == room(module), f"{module} is used by {users[0]} alone"


def test_every_module_is_used():
    texts = [path.read_text() for path in (*FILES.values(), *(ROOT / "benchmarks").glob("*.py"))]
    used = {target for text in texts for target in targets(ast.parse(text))}
    methods = {f"pfed1bs.algorithms.{place.partition(':')[0]}" for place in REGISTRY.values()}
    for module, path in FILES.items():
        if path.name not in ("__init__.py", "__main__.py") and module not in used | methods | {"pfed1bs.extend"}:
            assert any(f'"{module}:' in text for text in texts), f"nobody imports {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_what_exists(path):
    beside = {other.stem for folder in (path.parent, ROOT / "tests") for other in folder.glob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "pfed1bs":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                assert inner in FILES or hasattr(import_module(node.module), alias.name), inner
        elif isinstance(node, ast.ImportFrom) and node.module not in beside:
            assert node.module.partition(".")[0] in {*sys.stdlib_module_names, *EXTRAS, *SERVED, "torch", "numpy"}


def test_extras_are_imported_at_use():
    for module, path in FILES.items():
        allowed = {"torch", "numpy", *(SERVED if room(module) == "flower" else ())}
        assert foreign(at_load(ast.parse(path.read_text()))) <= allowed, module
        if room(module) in BARE:
            assert foreign(ast.walk(ast.parse(path.read_text()))) <= {"torch", "numpy"}, module


def test_importing_the_package_loads_neither_torch_nor_an_extra():
    names = sorted({*EXTRAS, *SERVED, "torch", "numpy"})
    code = f"import sys, pfed1bs; print(*(name for name in {names} if name in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


def test_no_module_has_the_name_of_a_public_function():
    assert not {path.stem for path in FILES.values()} & {*pfed1bs.__all__}


def test_two_modules_have_one_name_only_where_a_method_and_its_compressor_do():
    stems = [path.stem for path in FILES.values() if path.stem != "__init__"]
    twice = {stem for stem in stems if stems.count(stem) > 1}
    assert twice <= {path.stem for path in (SOURCE / "algorithms").glob("*.py")}


def test_no_two_classes_have_one_name():
    found = [
        node.name
        for path in FILES.values()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    aside = {"Pass"}  # over the memory of a GPU, as its kernels call it; through a network
    assert {name for name in found if found.count(name) > 1} <= aside
