"""When a client's own model rests: as soon as more rounds would make it worse.

Trained for long, a shared model knows every client's few samples by heart. Their gradient dies, and with it what makes
a model personal: own models drift back to the shared one and get worse, in every method. So a client watches the loss
at the end of its local work. Once that is below `level` (and all its samples together below LEFT), its own model stays
as it is. One that is held near the shared model rests when it has come back to NEAR of its longest distance from it
(one that moves with the shared model: in LONGER times as many rounds), or at half the level.
A method may keep clients awake ("log/awake"), and a distance of 0 stands for a model that is not held near another,
as with lambda = 0.
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
NEAR = 0.4  # of the longest distance between an own model and the shared one
LONGER = 1.5  # an own model that moves with the shared one does not lag behind it, so it comes back earlier
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
        rounds = {name: torch.zeros(clients, dtype=torch.int64) for name in ("turns", "back")}
        return server, {**state, **under(OWN, {**marks, "far": torch.zeros(clients), **rounds, **buffers_of(state)})}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """What a client at rest hears does not move its own model."""
        own = within(OWN, clients)
        state = self.method.absorb(besides(OWN, clients), received, round)
        return {**state, "w": chosen(own["on"], clients["w"], state["w"]), **under(OWN, own)}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The method's own work; who rested before keeps its model, and who has got all there is rests from now on."""
        own = within(OWN, clients)
        state, said = self.method.local(besides(OWN, clients), received, cohort, batches)
        asleep = state["log/awake"] == 0 if "log/awake" in state else torch.ones_like(own["on"])
        before = own["on"] & asleep
        fresh = state.get("log/fit", state["log/loss"])
        loss = smoothed(own["loss"], fresh)
        buffers = {name: chosen(before, own[name], value) for name, value in buffers_of(state).items()}
        near = state.get("log/apart", state.get("log/behind"))
        level = torch.full_like(loss, self.level) if near is None else torch.where(near > 0, self.level / 2, self.level)
        on, way = before | (loss < torch.minimum(LEFT / cohort.sizes.to(loss), level)), {}
        if near is not None:
            way = _returned(own, near, asleep & (near > 0))
            on = on | (way["back"] > 0) & (way["turns"] >= (LONGER if "log/apart" in state else 1) * way["back"])
        on = on & asleep
        w = chosen(before, clients["w"], state["w"])
        marks = under(OWN, {**own, "on": on, "loss": loss, **way, **buffers})
        return {**state, "w": w, **marks, "log/rest": on.to(loss)}, said

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The models of the method; of a client at rest the own one as it was then."""
        models = self.method.personal(server, besides(OWN, clients), cohort, batches)
        return {**models, "personal": _kept(clients, models["personal"])}


def _returned(own: State, distance: Tensor, held: Tensor) -> State:
    """The longest distance (S,) from the shared model, rounds so far, and after how many it had come back; or 0.

    All three begin anew with a model that is held near the shared one after one that was not.
    """
    far, turns = torch.maximum(own["far"], distance), own["turns"] + 1
    back = torch.where((own["back"] == 0) & (distance < NEAR * far), turns, own["back"])
    way = {"far": far, "turns": turns, "back": back}
    return {name: torch.where(held, value, torch.zeros_like(value)) for name, value in way.items()}


def smoothed(before: Tensor, fresh: Tensor) -> Tensor:
    """(S,) a loss over rounds, of which MEMORY counts from those before; below 0 there was none yet."""
    return torch.where(before < 0, fresh, MEMORY * before + (1 - MEMORY) * fresh)


def resting(method: Algorithm, level: float) -> Algorithm:
    """The method with clients that rest below a loss of `level`, if it has a shared model to rest from; 0: itself.

    Losses that are no entropy know no such level: what is little depends on their targets.
    """
    return cast(Algorithm, Resting(method, level)) if level and able(method) else method


def able(method: Algorithm) -> bool:
    """Whether clients of a method can rest."""
    return method.rests and method.task.loss.name in NATS


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
