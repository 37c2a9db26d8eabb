"""Fetch the published files of a data set: checksum, progress bar, resume of what was cut off."""

import hashlib
import http.client
import importlib.util
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pfed1bs.core.errors import UserError
from pfed1bs.data.catalogue import CATALOGUE

PIECE = 1 << 18  # bytes read at a time
TIMEOUT = 30.0  # seconds without an answer


def fetch(name: str, folder: Path, base: str | None = None) -> None:
    """Bring every file of the data set `name` into `folder`; `base` is a mirror with one directory per data set."""
    known = CATALOGUE[name]
    address = known.address if base is None else f"{base.rstrip('/')}/{name}"
    for file, md5 in known.files.items():
        if not (folder / file).is_file():
            download(f"{address}/{file}", folder / file, md5)


def download(address: str, path: Path, md5: str) -> None:
    """Fetch one file to `path`; what has arrived waits in `path`.part, so a second call continues there."""
    if urlsplit(address).scheme not in ("http", "https"):
        raise UserError(f"only http and https addresses can be downloaded, got {address}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    _continue(address, part)
    with part.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise UserError(
            f"{address} arrived with MD5 {found}, but {md5} is expected; it was removed",
            "try again, or get the file elsewhere and put it into the PFED1BS_DATA directory",
        )
    part.replace(path)


def _continue(address: str, part: Path) -> None:
    """Bring `part` to its full length, from where it ends if the server can do that."""
    held = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={held}-"} if held else {})
    try:
        with _opener().open(request, timeout=TIMEOUT) as response:
            _receive(response, part, held if response.status == 206 else 0)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # nothing is left to send: the part is whole, and its checksum will tell
            raise ConnectionError(f"{address} answered {error.code} {error.reason}; {_advice(part)}") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise ConnectionError(f"{address} could not be downloaded: {reason}; {_advice(part)}") from error


def _receive(response: http.client.HTTPResponse, part: Path, start: int) -> None:
    """Append the body to the first `start` bytes of the part; fewer bytes than promised are an error."""
    length = response.headers.get("Content-Length")
    total = start + int(length) if length else None
    with part.open("r+b" if start else "wb") as file, _bar(part.stem, start, total) as advance:
        file.truncate(start)
        file.seek(start)
        while data := response.read(PIECE):
            file.write(data)
            advance(len(data))
        arrived = file.tell()
    if total is not None and arrived < total:
        raise ConnectionError(f"cut off after {arrived} of {total} bytes")


def _advice(part: Path) -> str:
    held = part.stat().st_size if part.exists() else 0
    again = f"the {held} bytes in {part} are kept, run the command again to continue" if held else "check the network"
    return f"{again}, or put the file by hand into the PFED1BS_DATA directory"


def _opener() -> urllib.request.OpenerDirector:
    """An opener that knows http and https only, so that no redirect leads to another kind of address."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


@contextmanager
def _bar(name: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr where there is a terminal and rich; yields how to advance it."""
    if importlib.util.find_spec("rich") is None:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total, completed=start)
        yield lambda count: progress.advance(task, count)
