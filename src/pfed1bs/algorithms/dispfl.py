"""DisPFL: sparse personal models that neighbours average where their masks meet (Dai et al., ICML 2022)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.masks import drawn, evolved, floats, kept, places
from pfed1bs.algorithms.base.method import Method
from pfed1bs.core.options import FRACTION, SHARE, at_least, option
from pfed1bs.core.votes import pack
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of, stack
from pfed1bs.nn.descent import Walk
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class DisPFL(Method):
    """Decentralised, here through a server that relays: one upload of the sparse model, one download per neighbour.

    Neighbours are drawn anew in every round among the clients that take part, 2 of 20 as the authors' 10 of 100. First
    models follow from the seed, so round 0 needs no exchange. Judged is the model after local training; its mask
    changes afterwards. docs/algorithms.md says what else differs.
    """

    density: float = option(0.5, "rho: share of the weights that exist", FRACTION)
    neighbours: int = option(2, "models that a client is sent in a round; the paper: a tenth of all", at_least(1))
    anneal: float = option(0.5, "a: share of a layer replaced after the first round; falls to 0 as a cosine", SHARE)
    horizon: int = option(100, "T: the round from which masks no longer change", at_least(1))
    regrow: Literal["gradient", "random"] = option("gradient", "which weights replace the smallest ones")

    paper: ClassVar[str] = "Dai et al., ICML 2022"
    personalises: ClassVar[bool] = True

    @cached_property
    def counts(self) -> list[int]:
        """Weights that exist in each tensor."""
        return kept(self.task.parts, self.density)

    @property
    def down(self) -> Layout:
        """Masks and weights of the neighbours."""
        return {f"{name}/{j}": codec for j in range(self.neighbours) for name, codec in self.up.items()}

    @property
    def up(self) -> Layout:
        """The mask, and the weights it keeps."""
        return {"mask": Signs(self.task.n), "values": Floats((sum(self.counts),))}

    def gradients(self, steps: int) -> int:
        """One a step, and one that says which weights come back."""
        return steps + (self.regrow == "gradient")

    def init(self, clients: int) -> tuple[State, State]:
        """The first weights under a mask of each client's own; the server holds them as messages."""
        masks = torch.stack([drawn(self.task.parts, self.counts, self.seed, client) for client in range(clients)])
        w = stack(self.task.init(self.seed), clients) * masks
        server = {"mask": pack(2.0 * masks - 1), "values": w[masks].view(clients, -1)}
        return server, {"mask": masks, "w": w, **self.task.buffers(clients)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """To every client the last messages of its neighbours; its own again where there are too few others."""
        if not cohort.round:
            return {}
        clients = len(cohort.ids)
        order = cohort.uniform("neighbours", clients).fill_diagonal_(2).argsort(1)
        chosen = [cohort.ids[order[:, j % clients]] for j in range(self.neighbours)]
        return {f"{name}/{j}": server[name][ids] for j, ids in enumerate(chosen) for name in self.up}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The average over those who have a weight, R steps of SGD under the mask, then a new mask."""
        mask = floats(clients["mask"])
        w = self.mixed(clients["w"] * mask, mask, received)
        walk = Walk(w, None, buffers_of(clients), torch.zeros(len(w)), own=True)
        for x, y in batches():
            walk = self.descent.advance(walk, x, y)
            walk.w.mul_(mask)
        share = self.anneal / 2 * (1 + math.cos(math.pi * min(1, cohort.round / self.horizon)))
        scores = self.scores(walk.w, walk.buffers, cohort, batches)
        new = evolved(clients["mask"], walk.w, scores, self.task.parts, self.counts, share)
        message = {"mask": pack(floats(new).sub_(0.5)), "values": walk.w.flatten()[places(new)].view(len(w), -1)}
        return {"mask": new, "w": walk.w, **walk.buffers, "log/loss": walk.loss}, message

    def mixed(self, w: Tensor, mask: Tensor, received: Message) -> Tensor:
        """Sum of the models over sum of the masks, the own among them, where the own mask is; w is written over."""
        if not received:
            return w
        count = mask.clone()
        for j in range(self.neighbours):
            other = received[f"mask/{j}"].clamp(min=0)  # of +-1; (n,) for a client alone, otherwise (S, n)
            count += other
            w += other.view(-1).index_copy_(0, places(other > 0), received[f"values/{j}"].flatten()).view(other.shape)
        return w.mul_(mask).div_(count.clamp_(min=1))

    def scores(self, w: Tensor, buffers: State, cohort: Cohort, batches: Batches) -> Tensor:
        """(S, n): the highest come back first."""
        if self.regrow == "random":
            return cohort.uniform("regrow", self.task.n, device=w.device)
        x, y = next(iter(batches("regrow", 1)))
        return self.task.gradient(w, x, y, buffers)[0].abs_()

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """Keep the messages, to relay them."""
        new = {name: server[name].clone() for name in self.up}
        for client, message in zip(cohort.ids, received, strict=True):
            for name in new:
                new[name][client] = message[name]
        return new
