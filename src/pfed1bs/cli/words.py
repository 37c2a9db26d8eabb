"""Words of the command line: a command's own flags, its recipe, and the flags of the configuration."""

import argparse
from collections.abc import Mapping
from types import MappingProxyType

from pfed1bs.cli.help import HELP, PARTS, examples, purpose, usage
from pfed1bs.core.errors import UserError
from pfed1bs.engine.rounds import choose
from pfed1bs.runs import flags, recipes
from pfed1bs.runs.config import Config, known_keys, load

RESUME = {"--resume": "go on with the folder of --out"}
JSON = {"--json": "print JSON"}


def parser_of(command: str) -> flags.Flags:
    """A parser that says what a command is for, how it is written, and examples."""
    whole, _, part = command.partition(" ")
    told = PARTS[whole][part] if part else HELP[whole]
    return flags.Flags(examples(command), usage=usage(command), description=purpose(told))


def arguments(
    command: str,
    words: list[str],
    out: str = "",
    folders: dict[str, str] | None = None,
    switches: Mapping[str, str] = MappingProxyType({}),
) -> argparse.Namespace:
    """The flags of a command that takes no configuration; `out` says what --out is for, `folders` what it takes too."""
    parser = parser_of(command)
    parser.add_argument("-h", "--help", action="help", help="show this")
    if folders is not None:
        parser.add_argument(
            "folders",
            nargs="+",
            metavar="RUN",
            help="run folders, folders of them, or saved tables: table.json of compare, runs.jsonl of reproduce",
        )
        for name, text in folders.items():
            parser.add_argument(name, default=None, help=text)
    else:
        parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    for name, text in switches.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    if out:
        parser.add_argument("--out", default="", help=out)
    return parser.parse_args(words)


def split(
    words: list[str],
    command: str,
    switches: dict[str, str],
    values: dict[str, str] | None = None,
    lists: dict[str, str] | None = None,
) -> tuple[argparse.Namespace, str | None, list[str]]:
    """The command's own flags, the recipe, and the flags of the configuration."""
    parser = parser_of(command)
    parser.add_argument("-h", "--help", action="store_true", default=False, help="show this")
    for name, text in switches.items():
        parser.add_argument(name, action="store_true", default=False, help=text)
    for name, text in (values or {}).items():
        parser.add_argument(name, default=None, help=text)
    for name, text in (lists or {}).items():
        parser.add_argument(name, action="extend", nargs="+", default=[], help=text)
    recipe = words[0] if words and not words[0].startswith("-") else None
    own, rest = parser.parse_known_args(words[1:] if recipe else words)
    if own.help:
        first = (getattr(own, "algorithms", None) or "").split(",")[0]
        print(parser.format_help())
        print(flags.told(known_keys(flags.named(rest, first or load(recipe).method)), recipes.names()))
        raise SystemExit(0)
    return own, recipe, rest


def seeds(given: str | None, named: list[int], rest: list[str], config: Config) -> list[int]:
    """The seeds of a comparison: --seeds, or --seed, or those of the recipe."""
    one = flags.one(rest, "seed") is not None
    if given is None:
        return [config.seed] if one else named
    if one:
        raise UserError("a comparison takes --seed or --seeds, not both", f"write --seeds {given}")
    try:
        return [int(seed) for seed in given.split(",")]
    except ValueError:
        raise UserError(f"--seeds must be whole numbers, got {given}", "write --seeds 0,1,2") from None


def ready(config: Config, resume: bool) -> None:
    """Refuse what would fail after training: a folder that nobody named, a device that is not there."""
    if resume and not config.out:
        raise UserError("--resume needs to know the run folder", "add --out and the folder of the run")
    choose(config.device)


def whole(given: argparse.Namespace, flag: str, otherwise: int) -> int:
    """The number of a flag, at least 1."""
    text: str | None = getattr(given, flag)
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"--{flag} must be a whole number from 1 on, got {text}", f"write --{flag} 6")
    return int(text or otherwise)
