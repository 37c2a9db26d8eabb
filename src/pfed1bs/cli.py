"""The command line: arguments in, one job out, errors with the way out."""

import argparse
import errno
import json
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

RUN = "run one method: pfed1bs run [RECIPE.toml] [--rounds 50] [--algorithm.lam 1e-3] [--out DIR] [--resume]"
HELP = {
    "run": RUN,
    "compare": "run several methods and seeds: pfed1bs compare [RECIPE.toml] --algorithms pfed1bs,local --seeds 0,1,2",
    "report": "make report.html from run folders: pfed1bs report RUN...",
    "data": "show who holds what: pfed1bs data [RECIPE.toml] [--data.partition labels:2]",
    "list": "list the methods with what they send, what they keep and what they can do",
    "costs": "the cost column of the paper's table, recomputed, and which cells cannot be right",
    "flower": "real federations: pfed1bs flower init DIR [RECIPE.toml], pfed1bs flower certificates|gate DIR",
    "bench": "measure the kernels: pfed1bs bench kernels [--json]",
    "env": "versions, device, kernel: for bug reports",
}
FAILURE, MISTAKE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="pfed1bs", description="One-bit personalised federated learning, byte-exact.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in HELP.items():
        commands.add_parser(name, help=text, add_help=False)
    chosen, rest = parser.parse_known_args(words[:1])
    if chosen.version:
        from importlib.metadata import version

        print(version("pfed1bs"))
        return 0
    if chosen.command is None:
        parser.print_help()
        return 0 if not words else MISTAKE
    return _guarded(chosen.command, words[1:] + rest)


def _guarded(command: str, words: list[str]) -> int:
    """Run a command; mistakes and failures become two lines and an exit code."""
    from pfed1bs import commands
    from pfed1bs.config import UserError
    from pfed1bs.extras import Missing
    from pfed1bs.simulate import Diverged

    job: Callable[[list[str]], None] = getattr(commands, command + "_command")
    try:
        job(words)
    except UserError as error:
        return _told(str(error), error.hint, MISTAKE)
    except ValueError as error:
        message, _, hint = str(error).partition("; ")
        return _told(message, hint, MISTAKE)
    except (Diverged, Missing) as error:
        message, _, hint = str(error).partition("; ")
        return _told(message, hint, FAILURE)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free some space and go on with --resume; the last checkpoint is whole" if full else ""
        return _told(f"{'disk full' if full else 'cannot read or write'}: {error}", hint, FAILURE)
    except KeyboardInterrupt:
        return _told("interrupted", "go on with --resume --out and the folder of the run", INTERRUPTED)
    return 0


def _told(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def shown(value: object) -> None:
    """Print an object as JSON."""
    print(json.dumps(value, indent=2))


def script() -> NoReturn:
    """The installed command."""
    sys.exit(main())


if __name__ == "__main__":
    script()
