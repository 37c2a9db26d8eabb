"""Which model a client of pfed1bs-delta keeps as its own: the shared one after its steps, one near it, or the best."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.trial import ALONE, FT, Trial, empty, verdict
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of
from pfed1bs.nn.descent import Descent, Walk


@dataclass(frozen=True)
class Keeping:
    """`ft`: u itself; `prox`: w <- w - lr (grad + lam (w - theta) + mu w), R times; `best`: each client chooses."""

    keep: Literal["ft", "prox", "best"]
    descent: Descent
    lam: float
    trial: int  # rounds a client takes part in before it chooses
    margin: float  # standard errors
    seed: int

    def first(self, w: Tensor) -> State:
        """What clients with first weights w (S, n) keep beside them."""
        return empty(w) if self.keep == "best" else {}

    def followed(self, clients: State, shift: Tensor) -> State:
        """The client's own models after the shared one has moved; the model of a client that stays alone does not."""
        if self.keep != "best":
            return {"w": clients["w"] + shift}
        near = (clients["choice"] != ALONE)[:, None]
        return {"w": clients["w"] + near * shift, "scout/prox": clients["scout/prox"] + shift}

    def kept(self, clients: State, u: State, cohort: Cohort, batches: Batches) -> State:
        """The client's own model after the round; u holds weights and buffers after R steps of the shared one."""
        if self.keep == "ft":
            return u
        return (
            self.near(clients["w"], self.lam, clients, batches)
            if self.keep == "prox"
            else self.best(clients, u["w"], cohort, batches)
        )

    def near(self, w: Tensor, lam: float | Tensor, clients: State, batches: Batches) -> State:
        """R steps of w held near the shared model, and the buffers with it."""
        walk = Walk(w, None, buffers_of(clients), torch.zeros(len(w)))
        for x, y in batches():
            walk = self.descent.advance(walk, x, y, lam * (walk.w - clients["theta"]), 1.0)
        return {"w": walk.w, **walk.buffers}

    def best(self, clients: State, u: Tensor, cohort: Cohort, batches: Batches) -> State:
        """The model of each client's choice; during its trial every candidate."""
        trial, choice = Trial(self.descent.task, self.descent.lr, self.lam, self.seed), clients["choice"]
        on = clients["turns"] < self.trial
        w = self.near(clients["w"], torch.where(choice == ALONE, 0.0, self.lam)[:, None], clients, batches)
        state = {**clients, **w, "turns": clients["turns"] + 1}
        if bool(on.any()):
            after = {"alone": self.near(clients["alone"], 0.0, clients, batches)["w"]}
            after |= trial.run(clients, batches, late=clients["turns"] >= self.trial // 2)
            state |= {name: torch.where(on[:, None], value, clients[name]) for name, value in after.items()}
            ends = clients["turns"] + 1 == self.trial
            choice = torch.where(ends, verdict(state["counts"], cohort.sizes.to(u.device), self.margin), choice)
            state["w"] = torch.where((ends & (choice == ALONE))[:, None], state["alone"], state["w"])
        state["w"] = torch.where((choice == FT)[:, None], u, state["w"])
        work = torch.where(on, 6.0, 2.0)  # gradients per local step
        return {**state, "choice": choice, "log/work": work, "log/choice": choice.float()}
