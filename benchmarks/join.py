"""Joins tables that were made in pieces, one per seed or method say, into one file that names every command.

python benchmarks/join.py PIECE.json... --out results/x.json
"""

import argparse
import json
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="+")
    parser.add_argument("--out", required=True)
    own = parser.parse_args()
    pieces = [json.loads(Path(name).read_text()) for name in own.pieces]
    facts = {key: value for key, value in pieces[0].items() if key not in ("command", "runs")}
    for piece in pieces[1:]:
        other = {key: piece[key] for key in facts if piece[key] != facts[key]}
        if other:
            raise SystemExit(f"error: {piece['command']} differs in {other}\nhint: join only pieces of one experiment")
    facts = {"commands": [piece["command"] for piece in pieces], **facts}
    facts["runs"] = [run for piece in pieces for run in piece["runs"]]
    Path(own.out).write_text(json.dumps(facts).replace('{"algorithm"', '\n{"algorithm"') + "\n")


if __name__ == "__main__":
    main()
