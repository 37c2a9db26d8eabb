"""What the documents show works, what they name exists, and the package imports with torch and numpy alone."""

import ast
import json
import re
from pathlib import Path

import pytest
from torch import nn

import pfed1bs
from pfed1bs import Task, make
from pfed1bs.algorithms import REGISTRY, algorithm_class
from pfed1bs.core.options import keys

ROOT = Path(__file__).parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{i}")
    for page in PAGES
    for i, text in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]
OPTIONS = {
    "momentum": 0.9,
    "code": "entropy",
    "keep": "best",
    "feedback": True,
    "robust": "trimmed",
    "steady": True,
}  # with which states have more keys
EXTRAS = ("jsonargparse", "rich", "safetensors", "tomli_w", "sklearn", "scipy", "PIL", "matplotlib", "jinja2")


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_in_the_documents_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "example", "exec"), {})


def test_links_between_the_documents_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" not in target:
                found = page.parent / target if target else page
                assert found.exists(), f"{page.name} links to {target}"
                assert not anchor or anchor in anchors(found), f"{page.name} links to {target}#{anchor}"


def anchors(page):
    """What headings can be linked by: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: pfed1bs\.[\w.]+\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pfed1bs.__all__)


def test_bits_and_state_of_the_decision_table_are_those_of_all_methods():
    facts = {row[0]: row[2::2] + row[5:] for row in rows("algorithms.md", "| method | sends up |")}
    chosen = rows("choose.md", "| your situation |")
    assert len(chosen) == 10
    for _, method, up, down, keeps, gradients, _ in chosen:
        assert [up, down, keeps] == facts[method.strip("`")], method
        one = make(method.strip("`"), Task(nn.Sequential(nn.Flatten(), nn.Linear(9, 3))))
        assert one.gradients(10) == 10 * int(gradients), method


def rows(page, head):
    """The cells of a table."""
    text = (ROOT / "docs" / page).read_text()
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_files_that_documents_name_exist():
    for page in PAGES:
        for name in re.findall(
            r"\b((?:tests|benchmarks|recipes|docs|results)/[\w/-]+\.(?:py|toml|md|jsonl?))\b", page.read_text()
        ):
            past, any_processor = ("benchmarks/table.py", "benchmarks/gpu.py"), "results/kernels-PROCESSOR.json"
            gone = name in (*past, any_processor)
            assert gone or (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_tables_that_are_timed_are_those_of_the_page():
    page = (ROOT / "docs" / "gpu.md").read_text()
    timed = {run["command"]: run for run in json.loads((ROOT / "results" / "tables-gpu.json").read_text())["runs"]}
    shown = re.findall(r"^pfed1bs compare .*", page, re.MULTILINE)
    assert len(shown) == 2
    for command in shown:
        run = timed[command]
        assert f"{run['seconds']:.0f} s" in page and f"commit {run['commit'][:7]}" in page, command


def test_every_hop_is_where_the_document_says():
    hops = re.findall(r"`([\w/]+\.py): ([\w.]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(hops) > 80
    for file, name in hops:
        body = ast.parse((ROOT / "src" / "pfed1bs" / file).read_text()).body
        for part in name.split("."):
            found = [node for node in body if part in names(node)]
            assert found, f"{file} has no {name}"
            body = getattr(found[0], "body", [])


def names(node):
    """What a statement defines."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]


@pytest.mark.parametrize("method", REGISTRY)
@pytest.mark.parametrize("side", ["server", "clients"])
def test_the_keys_of_a_state_are_in_the_document(side, method):
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index(f"| {side} | what it is |") :].partition("\n\n")[0]
    named = set(re.findall(r"`([\w/]+)`", table))
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    options = keys(algorithm_class(method))
    chosen = {key: value for key, value in OPTIONS.items() if key in options}
    state = make(method, Task(model), **chosen).init(2)[side == "clients"]
    assert {re.sub(r"(buffer/).*", r"\1NAME", key) for key in state} <= named


def test_the_core_needs_torch_and_numpy_only(fresh):
    blocked = ", ".join(repr(name) for name in (*EXTRAS, "flwr"))
    code = f"""
import sys
for name in ({blocked}):
    sys.modules[name] = None  # importing it now fails
import pfed1bs, pfed1bs.extend
for name in pfed1bs.__all__:
    getattr(pfed1bs, name)
from pfed1bs.algorithms import REGISTRY, algorithm_class
for name in REGISTRY:
    algorithm_class(name)
"""
    answer = fresh(code)
    assert answer.returncode == 0, answer.stderr


def test_public_names_are_those_that_are_exported():
    assert sorted(pfed1bs.__all__) == sorted(name for names in pfed1bs.HOMES.values() for name in names)
    for name in pfed1bs.__all__:
        assert getattr(pfed1bs, name).__name__ in (name, "dict", "Mapping") or name in ("Layout", "Message", "State")
    assert set(pfed1bs.__all__) <= set(dir(pfed1bs))


def test_a_missing_extra_says_what_to_install():
    from pfed1bs.core.extras import Missing, need

    with pytest.raises(Missing, match=r"pip install no_such_package_anywhere .*'\.\[cli\]'"):
        need("no_such_package_anywhere", "cli")
