"""Clients that attack: a method some of whose clients say something else than what they have computed.

"sign-flip:0.3" lets three clients of ten lie, the same ones in every round, drawn from the seed. A liar does its honest
work and knows its own state, the seed and the other liars; it keeps to the layout of the messages, so nothing that it
says is refused for its form. Attacks on what clients are, not on what they say, change the data (`poisoned`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod
from typing import cast

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.rng import stream
from pfed1bs.core.votes import sign, unpack
from pfed1bs.data import Federation
from pfed1bs.engine.around import Around
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, State, besides, chosen, under, within
from pfed1bs.wire.codecs import Differences, Floats, Levels, Signs
from pfed1bs.wire.messages import Codec, Message
from pfed1bs.wire.rows import CountedRows

KINDS = {  # what a liar does, and by how much if nothing is said
    "sign-flip": ("says the opposite", 1.0),
    "random": ("says its numbers with random signs", 1.0),
    "constant": ("says + everywhere", 1.0),
    "collude": ("says, in this share of the places, the signs that all liars say; its real numbers go there", 0.1),
    "counts": ("says the opposite, and claims so many times its samples", 1000.0),
    "scale": ("says the opposite, its real numbers so many times as large", 1e6),
    "label-flip": ("trains on the labels in reverse order", 1.0),
    "replay": ("says what it said in its first round", 1.0),
}
FLIPPED = ("sign-flip", "counts", "scale")
OWN = "attack/"  # what the keys of this file begin with
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Attack:
    """What some of the clients do."""

    kind: str
    share: float  # of the clients
    size: float  # by how much
    seed: int  # of who they are

    @classmethod
    def of(cls, text: str, seed: int = 0) -> "Attack":
        """The attack that "kind:share" or "kind:share:size" names."""
        kind, _, numbers = text.partition(":")
        if kind not in KINDS:
            raise UserError(f"unknown attack {kind}", nearest(kind, KINDS))
        try:
            share, size = (*map(float, numbers.split(":")), KINDS[kind][1])[:2]
        except ValueError:
            raise UserError(f"attack must be kind:share or kind:share:size, got {text}", f"try {kind}:0.1") from None
        if not 0 <= share <= 1 or not 0 < size < inf or (kind == "collude" and size > 1):
            raise UserError(f"attack {text}: a share is in [0, 1], a size positive", f"try {kind}:0.1")
        return cls(kind, share, size, seed)

    def by(self, clients: int) -> Tensor:
        """(K,) true for the clients that lie."""
        order = torch.randperm(clients, generator=stream(self.seed, "attack"))
        return torch.zeros(clients, dtype=torch.bool).index_fill(0, order[: round(self.share * clients)], True)


@dataclass(frozen=True)
class Attacking(Around):
    """A method some of whose clients lie, and the same method in everything else."""

    attack: Attack

    def init(self, clients: int) -> tuple[State, State]:
        """Who lies, and room for a first message."""
        server, state = self.method.init(clients)
        own = {"on": self.attack.by(clients)}
        if self.attack.kind == "replay":
            own["began"] = torch.zeros(clients, dtype=torch.bool)
            own |= {f"said/{name}": _room(codec, clients) for name, codec in self.method.up.items()}
        return server, {**state, **under(OWN, own)}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """As the method."""
        return {**self.method.absorb(besides(OWN, clients), received, round), **under(OWN, within(OWN, clients))}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The method's own work; what liars say of it is forged."""
        state, said = self.method.local(besides(OWN, clients), received, cohort, batches)
        own, layout = within(OWN, clients), self.method.up
        said = {name: _signs(layout[name], field) for name, field in said.items()}
        if self.attack.kind == "replay":
            first = {name: chosen(own["began"], own[f"said/{name}"], x) for name, x in said.items()}
            own |= {"began": torch.ones_like(own["began"]), **under("said/", first)}
            forged = first
        else:
            forged = {name: self._forged(name, layout[name], field, cohort) for name, field in said.items()}
        mixed = {name: chosen(own["on"], forged[name], x) for name, x in said.items()}
        return {**state, **under(OWN, own)}, mixed

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """As the method."""
        return self.method.personal(server, besides(OWN, clients), cohort, batches)

    def _forged(self, name: str, codec: Codec, x: Tensor, cohort: Cohort) -> Tensor:
        """A field (S, ...) as liars say it: every number as large as it was, under another sign."""
        if isinstance(codec, CountedRows):  # a count has no sign
            rows = self._turned(name, x[..., 1:], cohort)
            return torch.cat([x[..., :1], rows], -1)
        if isinstance(codec, Levels):
            middle = (codec.levels - 1) / 2
            return (middle + self._turned(name, x - middle, cohort)).to(x.dtype)
        if isinstance(codec, Floats) and codec.least == 0:  # scales and norms
            return self._larger(x)
        if isinstance(codec, Floats) and self.attack.kind == "collude":  # all its length goes there
            signs, there = self._agreed(name, x)
            length = x.flatten(1).norm(dim=1) / there.sum().sqrt()
            return signs * there * _wide(length, x)
        turned = self._turned(name, x, cohort)
        return turned if isinstance(codec, Signs | Differences) else self._larger(turned)

    def _turned(self, name: str, x: Tensor, cohort: Cohort) -> Tensor:
        kind, shape = self.attack.kind, x.shape[1:]
        if kind in FLIPPED:
            return -x
        if kind == "random":
            return x.abs() * sign(cohort.uniform("attack", *shape, device=x.device) - 0.5).to(x)
        if kind == "constant":
            return x.abs()
        if kind == "collude":
            signs, there = self._agreed(name, x)
            return torch.where(there, x.abs() * signs, x)
        return x

    def _agreed(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """The signs that all liars say of a field (S, ...), and in which places."""
        signs, there = _plot(self.method.seed, name, x[0].numel(), self.attack.size, x.device)
        return signs.view(x.shape[1:]), there.view(x.shape[1:])

    def _larger(self, x: Tensor) -> Tensor:
        return (x * self.attack.size).clamp(-LARGEST, LARGEST) if self.attack.kind == "scale" else x


def attacking(method: Algorithm, attack: Attack | None) -> Algorithm:
    """The method with clients that lie; None: itself."""
    return cast(Algorithm, Attacking(method, attack)) if attack else method


def poisoned(data: Federation, attack: Attack | None, clients: int | None = None) -> Federation:
    """The federation with what liars have made of their training labels, or claim of their number.

    `clients` are there in all, where the federation holds the first of them only.
    """
    if attack is None or attack.kind not in ("counts", "label-flip"):
        return data
    liars = attack.by(clients or data.clients)[: data.clients]
    if attack.kind == "counts":
        return replace(data, claimed=torch.where(liars, (data.sizes * attack.size).long(), data.sizes))
    if not data.labelled:
        raise UserError("the attack label-flip needs one class label a sample", "choose another attack")
    labels = data.labels.clone()
    for client in liars.nonzero().flatten().tolist():
        labels[data.train[client]] = data.num_classes - 1 - labels[data.train[client]]
    return replace(data, labels=labels)


@lru_cache(maxsize=4)
def _plot(seed: int, name: str, count: int, share: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Signs (count,) that liars have agreed on, and in which share of the places."""
    drawing = stream(seed, "attack", name)
    signs = sign(torch.rand(count, generator=drawing) - 0.5)
    places = torch.randperm(count, generator=drawing)[: ceil(share * count)]
    there = torch.zeros(count, dtype=torch.bool).index_fill(0, places, True)
    return signs.to(device), there.to(device)


def _signs(codec: Codec, field: Tensor) -> Tensor:
    """A field, signs that are packed already unpacked."""
    packed = isinstance(codec, Signs | Differences) and field.dtype == torch.uint8
    return unpack(field, prod(codec.shape)) if packed else field


def _room(codec: Codec, clients: int) -> Tensor:
    """Zeros for a field of every client."""
    dtype = torch.int32 if isinstance(codec, Levels) else torch.float32
    return torch.zeros(clients, *codec.shape, dtype=dtype)


def _wide(on: Tensor, x: Tensor) -> Tensor:
    return on.view(-1, *(1 for _ in x.shape[1:]))
