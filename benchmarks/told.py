"""How a benchmark tells what it found: with the machine and the command, on stdout and, if asked to, in a file."""

import json
import shlex
import sys
from pathlib import Path

from pfed1bs.runs.environment import environment


def tell(found, out=None):
    """Print the findings, and write them to a file."""
    about = {**environment("cpu"), "command": shlex.join(["python", *sys.argv])}
    text = json.dumps({**about, **found}, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n")
