"""Write the sums of the files that pip would install for the reproducible set-up.

python -m pip install --dry-run --ignore-installed --report report.json -c constraints.txt torch==2.13.0 -e '.[dev]'
python tools/hashes.py report.json > constraints-hashes.txt
"""

import json
import sys
from pathlib import Path


def lines(report: dict) -> list[str]:
    """name==version --hash=sha256:..., in the order of names."""
    found = [
        (item["metadata"]["name"].lower(), item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"])
        for item in report["install"]
        if "archive_info" in item["download_info"]
    ]
    return [f"{name}=={version} --hash=sha256:{hashes['sha256']}" for name, version, hashes in sorted(found)]


if __name__ == "__main__":
    print(*lines(json.loads(Path(sys.argv[1]).read_text())), sep="\n")
