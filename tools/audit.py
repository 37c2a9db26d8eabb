"""Known weaknesses of the pinned packages, from a copy of the PyPA advisory database: no network is needed.

git clone https://github.com/pypa/advisory-database
python tools/audit.py advisory-database/vulns constraints.txt --out results/audit.json
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from pfed1bs.core.origin import commit


def pinned(path: Path) -> dict[str, str]:
    """Names and versions of a file of constraints."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in found}


def affects(affected: dict, version: str) -> bool:
    """Whether a version is in an advisory's list, or in one of its ranges."""
    if version in map(str, affected.get("versions", [])):
        return True
    events = [one for item in affected.get("ranges", []) if item["type"] == "ECOSYSTEM" for one in item["events"]]
    here, inside = Version(version), False
    for event in sorted(events, key=lambda one: Version(str(next(iter(one.values()))))):
        kind, at = next(iter(event.items()))
        if Version(str(at)) < here or (Version(str(at)) == here and kind != "last_affected"):
            inside = kind == "introduced"
    return inside


def weaknesses(folder: Path, packages: dict[str, str]) -> tuple[list[str], int]:
    """Advisories that affect a pinned version, and how many there are of these packages."""
    found, seen = [], 0
    for name, version in sorted(packages.items()):
        for path in sorted((folder / name).glob("*.yaml")):
            advisory = yaml.safe_load(path.read_text())
            seen += 1
            try:
                if not advisory.get("withdrawn") and any(affects(one, version) for one in advisory["affected"]):
                    found.append(f"{name} {version}: {advisory['id']}")
            except InvalidVersion as error:
                found.append(f"{name} {version}: {advisory['id']} cannot be judged: {error}")
    return found, seen


def main() -> int:
    """Say which there are; the exit status is 1 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="vulns of the advisory database")
    parser.add_argument("constraints", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    packages = pinned(given.constraints)
    found, seen = weaknesses(given.folder, packages)
    words = ["git", "-C", str(given.folder), "log", "-1", "--format=%h %cs"]
    state = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    command = f"python tools/audit.py advisory-database/vulns {given.constraints.name}"
    about = {
        "command": command,
        "commit": commit(),
        "database": state,
        "packages": len(packages),
        "advisories": seen,
        "found": found,
    }
    print(json.dumps(about, indent=1))
    if given.out:
        given.out.write_text(json.dumps(about, indent=1) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
