"""Whether a change of the code leaves every number as it was: metrics.jsonl of all methods, here and at another commit.

    python benchmarks/same_bits.py BASE [--apart up_bytes,down_bytes] [--rounds 6]

Every method runs on `digits`, with 5 of 8 clients in a round so that clients return, from this source tree and from a
work tree of BASE, one after the other on one machine. Seconds are never compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
RUN = ["--clients", "8", "--sampled", "5", "--steps", "3", "--evaluate_every", "2", "--device", "cpu"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--apart", default="", help="keys that may differ, with commas between them")
    parser.add_argument("--rounds", default="6")
    parser.add_argument("--methods", default="", help="names, with commas between them; all by default")
    given = parser.parse_args()
    apart = {"seconds", *given.apart.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        subprocess.run(["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", base, given.base], check=True)
        try:
            names = given.methods.split(",") if given.methods else methods(base)
            different = [name for name in names if not same(name, base, Path(folder), given.rounds, apart)]
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", base], check=True)
    print(f"{len(names) - len(different)} of {len(names)} methods have the numbers of {given.base}")
    sys.exit(1 if different else 0)


def methods(tree):
    """The names of all methods that the tree has."""
    words = ["-c", "from pfed1bs.algorithms import REGISTRY; print(*REGISTRY)"]
    return python(tree, words).split()


def same(name, base, folder, rounds, apart):
    """Whether the two trees write the same lines; what differs is printed."""
    lines = []
    for label, tree in (("base", base), ("here", HERE)):
        out = folder / f"{name}-{label}"
        python(tree, ["-m", "pfed1bs", "run", "--algorithm.name", name, "--rounds", rounds, *RUN, "--out", str(out)])
        lines.append([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])
    for before, after in zip(*lines, strict=True):
        keys = sorted(key for key in {*before, *after} - apart if before.get(key) != after.get(key))
        for key in keys:
            print(f"{name}: round {before['round']}: {key} was {before.get(key)}, is {after.get(key)}")
        if keys:
            return False
    print(f"{name}: the same in {len(lines[0])} rounds", flush=True)
    return True


def python(tree, words):
    """What this Python prints with the package of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(words)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
