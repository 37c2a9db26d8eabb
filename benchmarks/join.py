"""Joins tables that were made in pieces, one per seed or method say, into one file that names every command.

What is the same in all pieces stands once; what differs, the recipe say, stands in every run.

    python benchmarks/join.py PIECE.json... --out results/x.json
"""

import argparse
import json
import re
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="+")
    parser.add_argument("--out", required=True)
    own = parser.parse_args()
    pieces = [json.loads(Path(name).read_text()) for name in own.pieces]
    for piece in pieces:  # where the data lay and how often accuracy was looked at changes no result
        piece["command"] = re.sub(r" --(root|out) \S+", "", piece["command"])
        piece["recipe"].pop("evaluate_every", None)
    keys = [key for key in pieces[0] if key not in ("command", "runs")]
    common = {key: pieces[0][key] for key in keys if all(piece[key] == pieces[0][key] for piece in pieces)}
    for piece in pieces:
        for run in piece["runs"]:
            run |= {key: piece[key] for key in keys if key not in common}
    facts = {"commands": [piece["command"] for piece in pieces], **common}
    text = json.dumps({**facts, "runs": [run for piece in pieces for run in piece["runs"]]})
    Path(own.out).write_text(text.replace('{"algorithm"', '\n{"algorithm"') + "\n")


if __name__ == "__main__":
    main()
