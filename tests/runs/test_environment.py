"""What is written down about where results come from, also where the package was not installed."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from pfed1bs.core import origin

ROOT = Path(__file__).parents[2]


def uninstalled(name):
    raise PackageNotFoundError(name)


def test_without_an_installed_package_the_version_is_that_of_the_project(monkeypatch, tmp_path):
    monkeypatch.setattr("pfed1bs.core.origin.version", uninstalled)
    assert origin.release() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    monkeypatch.setattr("pfed1bs.core.origin.PROJECT", tmp_path / "pyproject.toml")
    assert origin.release() == "unknown"


def test_without_git_the_commit_is_what_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin.commit() == ""
    monkeypatch.setenv("PFED1BS_COMMIT", "0123456789")
    assert origin.commit() == "0123456789"


def test_the_commit_of_another_project_around_an_installed_package_is_not_ours(monkeypatch, tmp_path):
    monkeypatch.setattr("pfed1bs.core.origin.PROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: 1 / 0)
    assert origin.commit() == ""
