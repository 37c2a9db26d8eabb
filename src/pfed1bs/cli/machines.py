"""`pfed1bs flower`: the same methods on separate machines."""

from pathlib import Path

from pfed1bs.cli.help import ASKED, PARTS, parts
from pfed1bs.cli.words import parser_of, split
from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import need
from pfed1bs.runs import flags
from pfed1bs.runs.config import load


def flower_command(words: list[str]) -> None:
    """`pfed1bs flower init DIR`, `pfed1bs flower certificates DIR`, `pfed1bs flower gate DIR`."""
    if not words or words[0] in ASKED:
        print(parts("flower"))
        return
    if words[0] not in PARTS["flower"]:
        raise UserError(f"unknown command flower {words[0]}", nearest(words[0], PARTS["flower"]))
    given = [word for word in words[1:2] if not word.startswith("-")]
    if not given and not {*ASKED} & {*words}:
        raise UserError(f"flower {words[0]} needs to know the folder", f"write pfed1bs flower {words[0]} DIR")
    job = {"init": _init, "certificates": _certificates, "gate": _gate}[words[0]]
    job(Path(*given), words[1 + len(given) :])


def _init(folder: Path, words: list[str]) -> None:
    _, recipe, rest = split(words, "flower init", {})
    if recipe is None and flags.one(rest, "algorithm.name") is None:  # as published, pfed1bs moves hardly anything
        rest = [*rest, "--algorithm.name", "pfed1bs-delta"]
    from pfed1bs.flower import app_folder

    config = load(recipe, rest)
    path = app_folder.write_app(folder, config)
    print(f"{path}: {config.method}\nrun it with: flwr run {folder} SUPERLINK --stream")


def _certificates(folder: Path, words: list[str]) -> None:
    parser = parser_of("flower certificates")
    parser.add_argument("-h", "--help", action="help", help="show this")
    parser.add_argument("--hosts", default="127.0.0.1,localhost", help="names and addresses of the server")
    parser.add_argument("--nodes", type=int, default=3, help="key pairs to make")
    own = parser.parse_args(words)
    from pfed1bs.flower import app_folder

    for path in app_folder.write_certificates(folder, own.hosts.split(","), own.nodes):
        print(path)
    print(f"a network may only see the gate: pfed1bs flower gate {folder} --host ADDRESS (docs/flower.md, section 2)")


def _gate(folder: Path, words: list[str]) -> None:
    need("uvicorn", "flower")
    from pfed1bs.flower import gate

    parser = parser_of("flower gate")
    parser.add_argument("-h", "--help", action="help", help="show this")
    parser.add_argument("--host", required=True, help="address of this machine that devices connect to")
    parser.add_argument("--port", type=int, default=8000, help="and its port (default: 8000)")
    parser.add_argument("--superlink", default="127.0.0.1:8000", help="where the SuperLink listens (default: here)")
    parser.add_argument("--most", type=int, default=gate.MOST, help="MiB of one call; a longer one is cut off")
    own = parser.parse_args(words)
    for name in gate.FILES:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing", f"the gate needs {', '.join(gate.FILES)} in one folder")
    gate.serve(folder, (own.host, own.port), own.superlink, own.most)
