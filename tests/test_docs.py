"""What the documents show works, and the package imports with torch and numpy alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pfed1bs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(text, id=f"{page.name}-{i}")
    for page in PAGES
    for i, text in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]
EXTRAS = ("jsonargparse", "rich", "safetensors", "tomli_w", "sklearn", "scipy", "PIL", "matplotlib", "jinja2")


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_in_the_documents_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "example", "exec"), {})


def test_links_between_the_documents_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_core_needs_torch_and_numpy_only():
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
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_public_names_are_those_that_are_exported():
    assert sorted(pfed1bs.__all__) == sorted(name for names in pfed1bs.HOMES.values() for name in names)
    for name in pfed1bs.__all__:
        assert getattr(pfed1bs, name).__name__ in (name, "dict", "Mapping") or name in ("Layout", "Message", "State")
    assert set(pfed1bs.__all__) <= set(dir(pfed1bs))


def test_a_missing_extra_says_what_to_install():
    from pfed1bs.core.extras import Missing, need

    with pytest.raises(Missing, match=r"pip install 'pfed1bs\[cli\]'"):
        need("no_such_package_anywhere", "cli")
