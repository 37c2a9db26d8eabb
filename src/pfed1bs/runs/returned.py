"""What somebody's own Flower app last returned at a node, out of the file that OneBit keeps there."""

import json
from dataclasses import dataclass
from pathlib import Path

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import State, within
from pfed1bs.runs import checkpoint

MODEL = "model/"  # what the keys of its arrays begin with


@dataclass(frozen=True)
class Returned:
    """The personal model of a node, under the names that the app gives its arrays."""

    node: str  # run and partition
    steps: int  # of the shared weights before this training
    model: State
    code: dict[str, object]  # what both sides agreed on


def returned(path: Path) -> Returned | None:
    """The model in a file of OneBit; None: it is another file."""
    tensors, metadata = checkpoint.read(path)
    if not any(f"/{MODEL}" in name for name in tensors):
        return None
    found = {round: within(MODEL, state) for round, state in checkpoint.by_round(tensors).items()}
    steps, model = [(round, model) for round, model in found.items() if model][-1]
    return Returned(path.stem, steps, model, json.loads(metadata["identity"]))


def refused(path: Path) -> None:
    """Refuse a file of OneBit where a network is needed."""
    if returned(path):
        raise UserError(
            f"{path} holds the model of an app that has the network itself",
            f"`pfed1bs export {path} --out model.safetensors` writes what the network's load_state_dict takes",
        )
