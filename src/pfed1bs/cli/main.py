"""The command line: arguments in, one job out, errors with the way out."""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import NoReturn

from pfed1bs.cli.help import ASKED, HELP, overview
from pfed1bs.core.errors import Told, UserError, nearest
from pfed1bs.core.extras import need_all
from pfed1bs.core.origin import release

LIBRARIES = {"numpy", "torch", "safetensors", "matplotlib", "jinja2", "rich", "tomli_w", "PIL", "scipy", "sklearn"}
TERMINAL, PAGE = ("jsonargparse", "rich", "safetensors", "tomli_w"), ("matplotlib", "jinja2")
DATA = ("sklearn", "scipy", "PIL")  # of some data sets
BARE, DRAWING = ("env", "flower"), ("run", "compare", "reproduce", "report")  # commands that need none, and all of them
FAILURE, MISTAKE, INTERRUPTED, PIPE = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    return _guarded(list(sys.argv[1:] if arguments is None else arguments))


def _do(words: list[str]) -> None:
    if not words or words[0] in ASKED:
        print(overview())
    elif words[0] == "--version":
        print(release())
    elif words[0] not in HELP:
        raise UserError(f"unknown command {words[0]}", nearest(words[0], HELP))
    else:
        needed = [*(TERMINAL if words[0] not in BARE else ()), *(PAGE if words[0] in DRAWING else ())]
        need_all(needed, "cli", DATA if words[0] in DRAWING else ())
        from pfed1bs.cli import commands

        job: Callable[[list[str]], None] = getattr(commands, words[0] + "_command")
        job(words[1:])


def _guarded(words: list[str]) -> int:
    """Do what the words say; mistakes and failures become two lines and an exit code, bugs keep their traceback."""
    try:
        _do(words)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        return _told(getattr(error, "message", "interrupted"), getattr(error, "hint", ""), INTERRUPTED)
    except Told as error:
        return _told(error.message, error.hint, MISTAKE if isinstance(error, UserError) else FAILURE)
    except BrokenPipeError:  # whoever read the output has enough; without this Python complains when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE
    except OSError as error:
        if not _ours(error):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "choose a folder that exists and that you may write to, with --out; nothing that was there is lost"
        hint = "free some space and go on with --resume; the last checkpoint is whole" if full else hint
        return _told(f"{'disk full' if full else 'cannot read or write'}: {error}", hint, FAILURE)
    except (MemoryError, RuntimeError) as error:
        from pfed1bs.core import failing  # with torch, which most mistakes need not wait for

        if failing.full(error):
            return _told(f"not enough memory: {str(error).splitlines()[0]}", failing.smaller(), FAILURE)
        if reason := failing.unanswered(error):
            return _told(f"the GPU does not answer ({reason})", failing.LOOK, FAILURE)
        if not _memory(error):
            raise
        hint = f"compute fewer clients at once with --chunk 1; {failing.GOES_ON}"
        return _told(f"not enough memory: {error}", hint, FAILURE)
    return 0


def _ours(error: OSError) -> bool:
    """Whether we opened the file: below our last frame there are libraries that we call, and no code of somebody's."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    rooms = [name.partition(".")[0] for name in frames]
    below = rooms[len(rooms) - rooms[::-1].index(__name__.partition(".")[0]) :]
    return LIBRARIES.union(sys.stdlib_module_names).issuperset(below)


def _memory(error: Exception) -> bool:
    """Whether the CPU's memory ran out; torch has no class for that, only these words."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


def _told(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code


def script() -> NoReturn:
    """The installed command; it finds modules in the folder that it is called from, after those that are installed."""
    sys.path.append(os.getcwd())
    sys.exit(main())


if __name__ == "__main__":
    script()
