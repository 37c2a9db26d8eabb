"""Models after training: out of the folder of a run, or out of the file that a client on Flower keeps."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import torch
from torch import nn

from pfed1bs.core.errors import UserError
from pfed1bs.data import Federation
from pfed1bs.data.normalise import Constants, of_client
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, State
from pfed1bs.engine.exchange import rows
from pfed1bs.engine.rest import own_models
from pfed1bs.engine.workers import alone
from pfed1bs.nn.models import build
from pfed1bs.runs import checkpoint
from pfed1bs.runs.answering import Answering, answering
from pfed1bs.runs.config import Config, load, of_tables
from pfed1bs.runs.folder import identity
from pfed1bs.runs.returned import refused
from pfed1bs.runs.run import federation, method

GIVE = "give the folder that `pfed1bs run` printed, or the file of a client on Flower"


class Later:
    """Batches that are made when somebody asks for them, so that data are loaded only where they are needed."""

    def __init__(self, make: Callable[[], Batches]) -> None:
        self._make = cache(make)

    def __call__(self, *words: object, **more: object) -> object:
        """The batches of one purpose."""
        return self._make()(*words, **more)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._make(), name)


@dataclass(frozen=True)
class Trained:
    """What training left of one client, and where it is known of the server."""

    path: Path
    config: Config
    client: int
    round: int  # rounds done
    server: State | None  # None: not known, in a client's own file
    state: State  # the client's, (1, ...) each; empty in a folder whose clients are elsewhere
    seen: int  # the last broadcast that it holds
    about: Constants  # shape, classes, samples, and what the client's inputs are normalised by

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method on the model."""
        return method(self.config, *self.problem)

    @property
    def problem(self) -> tuple[tuple[int, ...], int]:
        """Shape of one sample and number of classes."""
        return tuple(cast(list[int], self.about["shape"])), cast(int, self.about["classes"])

    @cached_property
    def data(self) -> Federation:
        """The samples, for methods that train once more before their models are judged."""
        return federation(self.config)

    def model(self, shared: bool = False) -> Answering:
        """The client's own model, or the shared one, as it was judged."""
        if "mean" not in self.about and self.about["normalise"] != "none":
            raise UserError(
                f"{self.path} does not say what inputs were normalised by: that is with the clients",
                "take the file of a client",
            )
        with alone():
            model = self._weights("global" if shared else "personal")
            network = build(self.config.model.name, *self.problem)
            return answering(network, self.algorithm.task.parts, model, self.algorithm.predict, self.about)

    def _weights(self, name: str) -> State:
        """A model as the method judges it; of a client's own file what the client keeps."""
        if self.server is None:
            return self._kept(name)
        if name == "personal" and not self.state:
            raise UserError(
                f"{self.path} is the server's: the models of its clients are with them",
                "give a client's own file, STATE/NAME-CLIENT.safetensors",
            )
        own = self.state or self.algorithm.init(1)[1]
        ids, seed = torch.tensor([self.client]), self.config.seed_of("batches")
        cohort = Cohort(seed, self.round, ids, torch.tensor([self.about["samples"]]), torch.tensor([self.seen]))
        size = (seed, self.config.steps, self.config.batch)
        batches = cast(Batches, Later(lambda: self.data.batches(ids, self.round, *size)))
        models = self.algorithm.personal(self.server, own, cohort, batches)
        if name not in models:
            raise UserError(f"{self.config.method} has no shared model", "leave it at the client's own")
        return models[name]

    def _kept(self, name: str) -> State:
        if name == "personal" and getattr(self.algorithm, "kept", False):
            return own_models(self.state)
        what = "the shared model" if name == "global" else f"the personal model of {self.config.method}"
        raise UserError(
            f"{what} is not in {self.path}: it takes what the server knows",
            "such a file holds the model that its client trains; the server's folder has the shared one, "
            "`pfed1bs export RUN --shared`",
        )


def personal_model(run: str | Path, client: int, *, shared: bool = False) -> nn.Module:
    """The model of a client after training, or the shared one as it stands there: inputs as they come, outputs out.

    `run` is the folder of a run, or the file that a client on Flower keeps. The module is in evaluation mode, on the
    CPU, and normalises its inputs as the run did; `module.network` is the plain network, where the method has no rule
    of its own.
    """
    return opened(run, client).model(shared)


def opened(path: str | Path, client: int | None = None) -> Trained:
    """What a run, or a client's own file, holds of a client; None: of the one it belongs to, or of the first."""
    path = Path(path)
    if path.is_file():
        return _file(path, client)
    if not (path / "config.toml").is_file():
        raise UserError(f"{path} is no run folder", GIVE)
    if not (path / "checkpoint.safetensors").is_file():
        raise UserError(f"{path} has no checkpoint yet", "let the run come to its first one, or to its end")
    config, number = load(str(path / "config.toml")), client or 0
    if not 0 <= number < config.clients:
        raise UserError(f"there is no client {number}", f"{path} has clients 0 .. {config.clients - 1}")
    progress = checkpoint.load(path / "checkpoint.safetensors", identity(config))
    about = _about(path, config)
    if number in cast(list[int], about.get("newcomers", [])) and client is not None:
        raise UserError(f"client {number} is a newcomer: of its visit no model is kept", "choose a client that trained")
    if client is None and about["normalise"] == "client":
        raise UserError("inputs are normalised by each client's own mean and deviation", "say whose with --client")
    state, seen = rows(progress.clients, torch.tensor([number])), int(progress.seen[number])
    samples = cast(dict[str, list[int]], about).get("samples", [1] * config.clients)[number]
    mine = {**of_client(about, number), "samples": samples}
    found = Trained(path, config, number, progress.round, progress.server, state, seen, mine)
    if client is None and config.model.bn == "local" and [*build(config.model.name, *found.problem).buffers()]:
        raise UserError("the statistics of this model's layers are each client's own", "say whose with --client")
    return found


def _about(folder: Path, config: Config) -> Constants:
    """What the data of a run were, as it wrote it down, or from the data themselves."""
    file = folder / "normalise.json"
    known: Constants = json.loads(file.read_text()) if file.exists() else {}
    return known if "shape" in known else federation(config).described


def _file(path: Path, client: int | None) -> Trained:
    """The model in the file of a client on Flower, after the last round that it did."""
    tensors, metadata = checkpoint.read(path)
    about: Mapping[str, object] = json.loads(metadata.get("about", "{}"))
    if not about:
        refused(path)
        raise UserError(f"{path} does not say what its model needs", f"{GIVE}, written by this release")
    number = cast(int, about["client"])
    if client is not None and client != number:
        raise UserError(f"{path} is the file of client {number}, not of client {client}", f"take --client {number}")
    round, state = [*checkpoint.by_round(tensors).items()][-1]
    config = of_tables(json.loads(metadata["identity"]))
    return Trained(path, config, number, round + 1, None, state, round, dict(about))
