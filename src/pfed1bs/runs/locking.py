"""A file that one process at a time may hold."""

import sys
import warnings
from pathlib import Path
from time import sleep
from typing import IO, Any


def hold(path: Path, patience: int = 0) -> IO[str] | None:
    """The file, open and locked until it is closed, or None if another holds it for longer than `patience` seconds.

    The system ends a lock with its process, however that ends. The file stays: whoever waits for it has it open.
    """
    file = path.open("w")
    if claimed(file, patience):
        return file
    file.close()
    return None


def claimed(file: IO[Any], patience: int) -> bool:
    """Lock an open file for this process, if need be after so many seconds."""
    for _ in range(patience):
        if _locked(file):
            return True
        sleep(1)
    return _locked(file)


def _locked(file: IO[Any]) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(
            f"{file.name} cannot be locked ({error}); let no second process work in this folder", stacklevel=2
        )
    return True
