"""A run on disk: one safetensors file, written under a temporary name, then renamed."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pfed1bs.core.checks import crc32
from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.engine.contract import State, under, within
from pfed1bs.engine.rounds import Progress
from pfed1bs.engine.store import Clients, Store
from pfed1bs.wire.messages import VERSION

FORMAT = "2"  # 2: with a checksum
ROWS = "3"  # 3: the clients' states are rows in files beside it, and here is where
STATES = "states"  # the folder of those files
SETS = ("lost", "resting")  # of clients; an empty one is not written
ANEW = "finish it with the release that began it, or begin anew in another folder"
ELSEWHERE = "restore it from a copy, begin anew in another folder, or remove the run's and begin it again"


def save(path: Path, progress: Progress, identity: str) -> None:
    """Write the state atomically; `identity` says which configuration it belongs to.

    Of states in files only those that have changed are written, which was done already; the checkpoint says where.
    """
    clients, form = progress.clients, FORMAT
    if isinstance(clients, Store):
        form, states = ROWS, under("store/", clients.saved(path.parent / STATES))
        _settle(path.parent / STATES)
    else:
        states = under("clients/", clients)
    tensors = {
        **under("server/", progress.server),
        **states,
        **{
            f"history/{r}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for r, data in progress.history.items()
        },
        "seen": progress.seen,
        **{name: torch.tensor(sorted(who)) for name in SETS if (who := getattr(progress, name))},
    }
    write(path, tensors, {"round": str(progress.round), "identity": identity, "format": form})
    if isinstance(clients, Store):
        clients.keep()


def load(path: Path, identity: str) -> Progress:
    """The state of a run of the same configuration, or a UserError that says what is wrong."""
    tensors, metadata = read(path, identity)
    try:
        return _progress(path, tensors, metadata)
    except (KeyError, TypeError, IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is no checkpoint of a run ({error})", ELSEWHERE) from error


def _progress(path: Path, tensors: State, metadata: Mapping[str, str]) -> Progress:
    """The state of a run out of the tensors of its file."""
    history = {int(r): value.numpy().tobytes() for r, value in within("history/", tensors).items()}
    for version in {data[0] for data in history.values()} - {VERSION}:
        raise UserError(f"{path} holds broadcasts of version {version}, this release sends version {VERSION}", ANEW)
    sets = {name: frozenset(tensors[name].tolist()) for name in SETS if name in tensors}
    seen: Tensor = tensors["seen"]
    clients: Clients = within("clients/", tensors)
    if metadata["format"] == ROWS:
        clients = _stored(path, within("store/", tensors), len(seen))
    return Progress(int(metadata["round"]), within("server/", tensors), clients, seen, history, **sets)


def _stored(path: Path, index: State, clients: int) -> Store:
    """The clients' states in the files beside a checkpoint."""
    try:
        return Store.found(index, clients, path.parent / STATES)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, OSError) as error:
        raise UserError(f"{path} does not say where the clients' states are ({error!r:.80})", ELSEWHERE) from error


def discard(folder: Path) -> None:
    """Remove the state of a run, which then cannot go on."""
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    shutil.rmtree(folder / STATES, ignore_errors=True)


def write(path: Path, tensors: State, metadata: dict[str, str]) -> None:
    """Write a file of tensors atomically: whoever reads it finds the old one or the new one, whole."""
    part = path.with_suffix(".part")
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"format": FORMAT, **metadata}
    try:
        _save(part, contiguous, {**metadata, "checksum": checksum(contiguous, metadata)})
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _settle(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _save(path: Path, tensors: State, metadata: dict[str, str]) -> None:
    """Write a file; a disk that fails is an OSError, which the library's own error is not."""
    try:
        need("safetensors.torch", "cli").save_file(tensors, path, metadata)
    except need("safetensors", "cli").SafetensorError as error:
        full = shutil.disk_usage(path.parent).free < sum(value.nbytes for value in tensors.values())
        reason = os.strerror(errno.ENOSPC) if full else str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, reason, str(path)) from error


def checksum(tensors: State, metadata: Mapping[str, str]) -> str:
    """CRC-32 of everything that a file holds, in hexadecimal digits."""
    crc = crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        crc = crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), crc)
        crc = crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _settle(folder: Path) -> None:
    """Make a rename outlive a power cut, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        number = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def by_round(tensors: State) -> dict[int, State]:
    """The states of a Flower client's file, by the round they were reached in, ascending."""
    begins = {key.partition("/")[0] for key in tensors}
    if not all(begin.isdecimal() for begin in begins):
        raise UserError("a client's file holds states by their round, this one does not", ELSEWHERE)
    rounds = sorted(map(int, begins))
    return {round: within(f"{round}/", tensors) for round in rounds}


def read(path: Path, identity: str | None = None) -> tuple[State, dict[str, str]]:
    """The tensors and the metadata of a file that belongs to this configuration; None: to any."""
    safetensors = need("safetensors", "cli")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError, ValueError, AttributeError, TypeError, RuntimeError) as error:
        raise UserError(f"{path} is damaged or cut off ({error})", ELSEWHERE) from error
    if metadata.get("format") not in (FORMAT, ROWS):
        found = f"format {metadata['format']}" if "format" in metadata else "no format"
        raise UserError(f"{path} has {found}, this version reads {FORMAT} and {ROWS}", ELSEWHERE)
    if checksum(tensors, {k: v for k, v in metadata.items() if k != "checksum"}) != metadata.get("checksum"):
        raise UserError(f"{path} is damaged: its checksum is not that of its content", ELSEWHERE)
    if "identity" not in metadata:
        raise UserError(f"{path} does not say which configuration it belongs to", ELSEWHERE)
    agree(path, metadata["identity"], metadata["identity"] if identity is None else identity)
    return tensors, metadata


def agree(path: Path, theirs: str, ours: str) -> None:
    """Refuse a file of another configuration, naming the keys in which the two differ."""
    try:
        old, new = (_flat(json.loads(identity)) for identity in (theirs, ours))
    except (ValueError, AttributeError, RecursionError):
        raise UserError(f"{path} does not say which configuration it belongs to", ELSEWHERE) from None
    different = ", ".join(
        f"{key} was {old.get(key, 'not set')}, now {new.get(key, 'not set')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    )
    if different:
        raise UserError(f"{path} belongs to another configuration: {different}", "use that one, or another folder")


def _flat(tables: Mapping[str, object]) -> dict[str, object]:
    """The keys of tables as they are written in flags."""
    inner = {f"{key}.{k}": v for key, value in tables.items() if isinstance(value, dict) for k, v in value.items()}
    return {key: value for key, value in tables.items() if not isinstance(value, dict)} | inner
