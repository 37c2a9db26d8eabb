"""`pfed1bs export`, `pfed1bs predict`: models after training."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pfed1bs.cli.words import parser_of
from pfed1bs.core.errors import UserError
from pfed1bs.data.sources import asked
from pfed1bs.engine.scores import answered
from pfed1bs.engine.workers import alone
from pfed1bs.runs import card
from pfed1bs.runs.answering import Answering
from pfed1bs.runs.returned import returned
from pfed1bs.runs.trained import opened

PIECE = 256  # samples at a time


def export_command(words: list[str]) -> None:
    """`pfed1bs export RUN --client 3 --out model.safetensors`."""
    own = _asked("export", words, ["run"], "the file to write, NAME.safetensors; its card is NAME.md")
    if not own.out:
        raise UserError("where to?", "add --out model.safetensors")
    path, out = Path(own.run), Path(own.out)
    if path.is_file() and (found := returned(path)):
        if own.shared or own.client is not None:
            raise UserError(f"{path} holds one model, that of {found.node}", "leave out --client and --shared")
        files = card.export_returned(found, out)
    else:
        files = card.export(opened(path, own.client), own.shared, out)
    for file in files:
        print(file)


def predict_command(words: list[str]) -> None:
    """`pfed1bs predict RUN --client 3 FILE.npz`: answers on stdout, one line a sample."""
    own = _asked("predict", words, ["run", "file"], "a .npz file for arrays answers and outputs", json=True)
    trained = opened(own.run, own.client)
    x, y = asked(Path(own.file), trained.problem[1])
    outputs, loss = _outputs(trained.model(own.shared), torch.tensor(x)), trained.algorithm.task.loss
    answers, metrics = loss.answers(outputs).numpy(), dict[str, float]()
    if y is not None:
        score = answered(loss, [(outputs[None], torch.tensor(y)[None], torch.ones(1, len(y), dtype=torch.bool))])
        metrics = {name: score.pooled(name) for name in score.metrics}
    if own.out:
        np.savez(own.out, answers=answers, outputs=outputs.numpy())
    if own.json:
        print(json.dumps({"answers": answers.tolist(), **metrics}))
        return
    if not own.out:
        print("\n".join(" ".join(f"{value:g}" for value in row.reshape(-1).tolist()) for row in answers))
    for name, value in metrics.items():
        print(f"{name} {value:.4f}", file=sys.stderr)


def _asked(command: str, words: list[str], places: list[str], out: str, json: bool = False) -> Namespace:
    """The flags of a command."""
    parser = parser_of(command)
    parser.add_argument("-h", "--help", action="help", help="show this")
    texts = {
        "run": "a run folder, or the file of a client on Flower",
        "file": "a .npz file with inputs x, and targets y",
    }
    for place in places:
        parser.add_argument(place, metavar=place.upper(), help=texts[place])
    parser.add_argument("--client", type=int, default=None, help="whose model")
    parser.add_argument("--shared", action="store_true", default=False, help="the shared model in its place")
    parser.add_argument("--out", default="", help=out)
    if json:
        parser.add_argument("--json", action="store_true", default=False, help="print JSON")
    own = parser.parse_args(words)
    if own.client is None and not own.shared and not Path(own.run).is_file():
        raise UserError("whose model?", "add --client 0, or --shared for the model that all share")
    return own


def _outputs(model: Answering, x: Tensor) -> Tensor:
    """Outputs of all samples; what a model cannot take is the user's mistake."""
    try:
        with torch.no_grad(), alone():
            return torch.cat([model(part) for part in torch.split(x, PIECE)])
    except (IndexError, RuntimeError) as error:  # a token beyond the vocabulary
        raise UserError(
            f"the model cannot take these inputs: {error}", "give them as the data of the run were"
        ) from error
