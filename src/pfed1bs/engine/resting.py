"""When a client's own model rests: as soon as more rounds would make it worse.

Trained for long, a shared model knows every client's few samples by heart. Their gradient dies, and with it what makes
a model personal: own models drift back to the shared one and get worse, in every method. So a client watches the loss
at the end of its local work. Once that is below `level` (and all its samples together below LEFT), its own model stays
as it is. One that is held near the shared model rests when it has come back to NEAR of its longest distance from it, or
at half the level.
Clients at rest go on helping the others; when all rest, the run is over. This costs no byte, sample or gradient.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from pfed1bs.engine.around import Around
from pfed1bs.engine.contract import (
    Algorithm,
    Batches,
    Cohort,
    State,
    besides,
    buffers_of,
    chosen,
    model_of,
    under,
    within,
)
from pfed1bs.engine.store import Clients
from pfed1bs.wire.messages import Message

LEFT = 6.0  # nats that all samples of a client together may still cost
NEAR = 1 / 3  # of the longest distance between an own model and the shared one
MEMORY = 0.8  # weight of the rounds before in the smoothed loss
NATS = ("cross-entropy", "bce")  # losses with this unit
OWN = "rest/"  # what the keys of this file begin with


@dataclass(frozen=True)
class Resting(Around):
    """A method whose clients rest, and the same method in everything else."""

    level: float  # nats per sample

    def init(self, clients: int) -> tuple[State, State]:
        """Nobody rests."""
        server, state = self.method.init(clients)
        marks = {"on": torch.zeros(clients, dtype=torch.bool), "loss": torch.full((clients,), -1.0)}  # -1: no round yet
        return server, {**state, **under(OWN, {**marks, "far": torch.zeros(clients), **buffers_of(state)})}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """What a client at rest hears does not move its own model."""
        own = within(OWN, clients)
        state = self.method.absorb(besides(OWN, clients), received, round)
        return {**state, "w": chosen(own["on"], clients["w"], state["w"]), **under(OWN, own)}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The method's own work; who rested before keeps its model, and who has got all there is rests from now on."""
        own = within(OWN, clients)
        state, said = self.method.local(besides(OWN, clients), received, cohort, batches)
        fresh = state.get("log/fit", state["log/loss"])
        loss = smoothed(own["loss"], fresh)
        buffers = {name: chosen(own["on"], own[name], value) for name, value in buffers_of(state).items()}
        near, apart = "log/apart" in state, state.get("log/apart", own["far"])
        far = torch.maximum(own["far"], apart)
        enough = (LEFT / cohort.sizes.to(loss)).clamp(max=self.level / 2 if near else self.level)
        on = own["on"] | (loss < enough) | (apart < NEAR * far)
        w = chosen(own["on"], clients["w"], state["w"])
        marks = under(OWN, {"on": on, "loss": loss, "far": far, **buffers})
        return {**state, "w": w, **marks, "log/rest": on.to(loss)}, said

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The models of the method; of a client at rest the own one as it was then."""
        models = self.method.personal(server, besides(OWN, clients), cohort, batches)
        return {**models, "personal": _kept(clients, models["personal"])}


def smoothed(before: Tensor, fresh: Tensor) -> Tensor:
    """(S,) a loss over rounds, of which MEMORY counts from those before; below 0 there was none yet."""
    return torch.where(before < 0, fresh, MEMORY * before + (1 - MEMORY) * fresh)


def resting(method: Algorithm, level: float) -> Algorithm:
    """The method with clients that rest below a loss of `level`, if it has a shared model to rest from; 0: itself.

    Losses that are no entropy know no such level: what is little depends on their targets.
    """
    able = method.rests and method.task.loss.name in NATS
    return cast(Algorithm, Resting(method, level)) if level and able else method


def over(clients: Clients, among: Tensor | slice = slice(None)) -> bool:
    """Whether all clients `among` these ids rest."""
    return f"{OWN}on" in clients and bool(clients[f"{OWN}on"][among].all())


def own_models(clients: State) -> State:
    """The models that clients keep; of those at rest as they were then."""
    return _kept(clients, model_of(clients))


def _kept(clients: State, models: State) -> State:
    """The models, but of clients at rest those that they keep since then."""
    own = {"w": clients["w"], **within(OWN, clients)}
    return {name: chosen(own["on"], own[name], value) for name, value in models.items()} if "on" in own else models
