"""A trained model for others: its weights under their plain names, and a card that says what it is."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import torch

from pfed1bs.core.errors import UserError
from pfed1bs.core.extras import need
from pfed1bs.core.origin import commit, release
from pfed1bs.engine.contract import State
from pfed1bs.runs.answering import Answering, Rule
from pfed1bs.runs.config import Options, as_tables
from pfed1bs.runs.folder import written
from pfed1bs.runs.returned import Returned
from pfed1bs.runs.trained import Trained

TABLE = """# {title}

| | |
|---|---|
{rows}
"""
LOAD = """
```python
from safetensors.torch import load_file

network.load_state_dict(load_file("{file}"))  # into {where}
network.eval()
```
"""
PAGE = """
Inputs have shape (samples, *{shape}): {how}; without constants above, as they are.
{load}
```
{network}
```
"""


def export(trained: Trained, shared: bool, out: Path) -> list[Path]:
    """Write the network's state_dict with the card as metadata, and the card as a page; both files."""
    _free(out)
    model = trained.model(shared)
    if isinstance(model.network, Rule):
        raise UserError(
            f"{trained.config.method} answers by more than a network, so its weights alone are not the model",
            "use `pfed1bs predict`, or pfed1bs.personal_model in Python",
        )
    facts = card(trained, shared)
    return _write(out, model.network.state_dict(), facts, _page(facts, model, out.name))


def export_returned(found: Returned, out: Path) -> list[Path]:
    """The same of what an app of its own last returned at a node: only the app has the network."""
    _free(out)
    facts: Options = {
        "of": found.node,
        "steps of the shared weights before its training": found.steps,
        "one-bit code": found.code,
        "versions": _versions(),
    }
    page = TABLE.format(title=f"The model of {found.node}", rows=_rows(facts))
    return _write(out, found.model, facts, page + LOAD.format(file=out.name, where="the network of the app"))


def _free(out: Path) -> None:
    if out.suffix != ".safetensors":
        raise UserError(f"--out must end in .safetensors, got {out}", "write --out model.safetensors")
    for path in (out, out.with_suffix(".md")):
        if path.exists():
            raise UserError(f"{path} exists", "choose another --out")


def _write(out: Path, model: State, facts: Options, page: str) -> list[Path]:
    state = {name: value.detach().clone().contiguous() for name, value in model.items()}
    told = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    need("safetensors.torch", "cli").save_file(state, out, {"format": "pt", **told})
    written(out.with_suffix(".md"), page)
    return [out, out.with_suffix(".md")]


def card(trained: Trained, shared: bool) -> Options:
    """What the model is: data, method, how good it was, versions, and what its inputs are normalised by."""
    config, client = trained.config, trained.client
    tables = as_tables(replace(config, data=replace(config.data, root=None)))  # it says nothing about the model
    return {
        "model": config.model.name,
        "of": "all clients" if shared else f"client {client}",
        "data": tables["data"],
        "method": tables["algorithm"],
        "rounds": trained.round,
        "seed": config.seed,
        "loss": config.model.loss,
        **_judged(trained, shared),
        "shape": trained.about["shape"],
        "classes": trained.about["classes"],
        "normalise": {key: trained.about[key] for key in ("normalise", "mean", "std") if key in trained.about},
        "versions": _versions(),
    }


def _versions() -> Options:
    return {"pfed1bs": release(), "commit": commit(), "torch": torch.__version__}


def _judged(trained: Trained, shared: bool) -> Options:
    """What the run wrote down about this model on the client's own test samples, if it judged these weights."""
    metric, folder = trained.algorithm.task.loss.metrics[0], trained.path
    lines = folder / "metrics.jsonl"
    if not lines.is_file() or not (folder / "clients.csv").is_file():
        return {metric: "not known here: the run's folder has it"}
    judged = [line["round"] + 1 for line in map(json.loads, lines.read_text().splitlines()) if metric in line]
    if judged[-1] != trained.round:
        return {metric: f"not judged after round {trained.round}; the last time after round {judged[-1]}"}
    with (folder / "clients.csv").open(newline="") as file:
        own = {int(row["client"]): row for row in csv.DictReader(file)}.get(trained.client)
    column = f"{metric}_global" if shared else metric
    if own is None or column not in own:
        return {metric: "not judged"}
    return {metric: float(own[column]), "judged_on": f"{own['test_samples']} test samples of client {trained.client}"}


def _rows(facts: Options) -> str:
    return "\n".join(
        f"| {name} | {value if isinstance(value, str) else json.dumps(value)} |" for name, value in facts.items()
    )


def _page(facts: Options, model: Answering, file: str) -> str:
    """The card to be read."""
    how = "whole numbers as they are" if model.tokens else "uint8 pixels as value / 255, then (value - mean) / std"
    load = LOAD.format(file=file, where="the network below")
    text = TABLE.format(title=f"{facts['model']} of {facts['of']}", rows=_rows(facts))
    return text + PAGE.format(shape=model.shape, how=how, load=load, network=model.network)
