"""A run on disk: one safetensors file, written under a temporary name, then renamed."""

import json
import os
from pathlib import Path

import torch

from pfed1bs.algorithm import State
from pfed1bs.errors import UserError
from pfed1bs.extras import need
from pfed1bs.simulate import Progress

FORMAT = "1"


def save(path: Path, progress: Progress, identity: str) -> None:
    """Write the state atomically; `identity` says which configuration it belongs to."""
    tensors = {
        **{f"server/{name}": value for name, value in progress.server.items()},
        **{f"clients/{name}": value for name, value in progress.clients.items()},
        **{
            f"history/{r}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for r, data in progress.history.items()
        },
        "seen": progress.seen,
    }
    write(path, tensors, {"round": str(progress.round), "identity": identity})


def load(path: Path, identity: str) -> Progress:
    """The state of a run of the same configuration, or a ValueError that says what is wrong."""
    if not path.exists():
        raise UserError(f"there is no checkpoint {path}", "leave --resume out to begin anew in another folder")
    tensors, metadata = read(path, identity)

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    history = {int(r): value.numpy().tobytes() for r, value in part("history/").items()}
    return Progress(int(metadata["round"]), part("server/"), part("clients/"), tensors["seen"], history)


def write(path: Path, tensors: State, metadata: dict[str, str]) -> None:
    """Write a file of tensors atomically: whoever reads it finds the old one or the new one, whole."""
    part = path.with_suffix(".part")
    try:
        contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        need("safetensors.torch", "cli").save_file(contiguous, part, {"format": FORMAT, **metadata})
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _settle(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Make a rename outlive a power cut, where the system lets a folder be opened."""
    if hasattr(os, "O_DIRECTORY"):
        number = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read(path: Path, identity: str) -> tuple[State, dict[str, str]]:
    """The tensors and the metadata of a file that belongs to this configuration."""
    safetensors = need("safetensors", "cli")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or cut off ({error})", "restore it from a copy or begin anew") from error
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} has format {metadata.get('format')}, this version reads {FORMAT}")
    if "identity" not in metadata:
        raise UserError(f"{path} does not say which run it belongs to", "restore it from a copy or begin anew")
    different = _different(metadata["identity"], identity)
    if different:
        raise UserError(f"{path} belongs to another configuration: {different}", "use that one or another folder")
    return tensors, metadata


def _different(theirs: str, ours: str) -> str:
    """The keys in which two configurations differ."""
    old, new = json.loads(theirs), json.loads(ours)
    return ", ".join(
        f"{key} was {old.get(key)}, now {new.get(key)}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    )
