"""Which model a client of pfed1bs-delta keeps: the shared one after its steps, their mean, one near it, and so on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.companion import SHARED, apart, kept_of
from pfed1bs.algorithms.base.method import one_label
from pfed1bs.algorithms.base.split import norms
from pfed1bs.algorithms.base.trial import ALONE, FT, PROX, Trial, scores
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of, chosen, model_of, stack
from pfed1bs.engine.exchange import moved
from pfed1bs.nn.descent import Descent, Near, Walk
from pfed1bs.nn.lanes import beside

MEAN = 0.1  # what a new model counts in the running mean, once there are ten


@dataclass(frozen=True)
class Keeping:
    """`ft`: u itself; `mean`: a running mean of u; `prox`: w <- w - lr (grad + lam (w - theta) + mu w), R times.

    With `best` each client chooses between `ft`, `prox` and training alone. With `norms` scale and shift of
    normalisation stay at the client, and judged is the shared model under them, as in FedBN.
    """

    keep: Literal["ft", "mean", "prox", "best", "norms"]
    descent: Descent
    lam: float
    trial: Trial

    def first(self, model: State) -> State:
        """What clients keep beside their first model, weights (S, n) and buffers: two scouts, and how they did."""
        clients = len(model["w"])
        turns = {"turns": torch.zeros(clients, dtype=torch.int64)}
        if self.keep != "best":
            return turns if self.keep == "mean" else {}
        tally = {"sums": torch.zeros(4, 4).expand(clients, 4, 4), **turns}
        scouts = {**apart(model, "alone"), **apart(model, "near")}
        return {**tally, **scouts, "choice": torch.full((clients,), ALONE)}

    def followed(self, clients: State, shift: Tensor) -> State:
        """The client's own models after the shared one has moved, in the memory of its shift; one alone does not."""
        if self.keep != "best":
            return {"w": torch.add(clients["w"], shift, out=shift)}
        near = (clients["choice"] != ALONE)[:, None]
        return {"w": clients["w"] + near * shift, "near/w": clients["near/w"] + shift}

    def shared(self, clients: State, cohort: Cohort, batches: Batches) -> Iterable[tuple[Tensor, Tensor]]:
        """The batches of the update that is sent: they have no sample that a trial needs."""
        return batches(only=self.trial.seen(clients, cohort)) if self.keep == "best" else batches()

    def trained(self, clients: State, cohort: Cohort, batches: Batches) -> tuple[State, State]:
        """The shared model after R steps, weights, buffers and "log/loss", and the client's own after the round."""
        theta, trained = clients["theta"], self.shared(clients, cohort, batches)

        def shared() -> State:
            w, buffers, loss = self.descent.run(self.start(clients), kept_of(clients, SHARED), trained)
            return {"w": w, **buffers, "log/loss": loss}

        if self.keep == "prox":
            u, own = beside(shared, lambda: self.near(model_of(clients), self.lam, theta, batches()), theta)
        else:
            u = shared()
            own = model_of(u)
            if self.keep == "best":
                own = self.best(clients, own, cohort, batches)
            elif self.keep == "mean":
                own = averaged(clients, own)
            elif self.keep == "norms":
                u = {**u, "w": self.under(theta, own["w"])}
        return u, own

    def start(self, clients: State) -> Tensor:
        """The weights (S, n) with which the clients begin the steps of their update."""
        return self.under(clients["w"], clients["theta"]) if self.keep == "norms" else clients["theta"]

    def under(self, own: Tensor, w: Tensor) -> Tensor:
        """Weights w (S, n) with the scale and shift of normalisation of `own`."""
        return torch.where(norms(self.descent.task).to(w.device), own, w)

    def near(self, model: State, lam: float | Tensor, theta: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> State:
        """The model after its steps, held near theta, and its buffers with it."""
        walk, near = Walk(model["w"], None, buffers_of(model), torch.zeros(len(theta))), Near(theta, lam)
        for x, y in batches:
            if self.keep == "best":
                one_label("pfed1bs-delta with algorithm.keep = best", y)
            walk = self.descent.approach(walk, x, y, near)
        return {"w": walk.w, **walk.buffers}

    def best(self, clients: State, u: State, cohort: Cohort, batches: Batches) -> State:
        """The model of each client's choice, which loses no sample unless it is `ft` on trial; the candidates."""
        choice, turn = clients["choice"], self.trial.turn(clients)
        on, ends = turn < self.trial.rounds, turn + 1 == self.trial.rounds
        lam = torch.where(choice == PROX, 1.0, 0.0)[:, None] * self.lam
        own = self.near(model_of(clients), lam, clients["theta"], batches())
        state = {**clients, "turns": clients["turns"] + 1}
        if bool(on.any()):
            state |= either(on, self.scouted(clients, u, cohort, batches), clients)
            sizes = cohort.sizes.to(choice.device)
            choice = torch.where(ends, self.trial.verdict(state["sums"], sizes, choice), choice)
            for name, new in (("alone", ALONE), ("near", PROX)):
                own = either((choice == new) & (choice != clients["choice"]), kept_of(state, name), own)
        own = either(choice == FT, u, own)
        awake = (choice == ALONE) | (choice != clients["choice"])  # as `local`, who is alone does not rest
        told = {"log/awake": awake.float(), "log/choice": choice.float()}
        work = torch.where(on, 4.0, 2.0)  # gradients per local step
        return {**state, **own, "choice": choice, "log/work": work, **told}

    def begun(self, clients: State, turn: Tensor) -> State:
        """The clients with fresh scouts where a trial begins: the first model, and the shared one."""
        if not bool((turn == 0).any()):
            return clients
        theta, task = clients["theta"], self.descent.task
        w = stack(task.init(self.trial.seed), len(theta))
        alone = moved({"w": w, **task.buffers(len(theta))}, theta.device)
        near = {"w": theta, **kept_of(clients, SHARED)}
        fresh = {**apart(alone, "alone"), **apart(near, "near"), "sums": torch.zeros_like(clients["sums"])}
        return {**clients, **either(turn == 0, fresh, clients)}

    def scouted(self, clients: State, u: State, cohort: Cohort, batches: Batches) -> State:
        """The scouts after a round of their trial, in whose second half they are scored."""
        turn, theta, held = self.trial.turn(clients), clients["theta"], self.trial.held(cohort)
        rest, some = ~held, held | ~held.any(1, keepdim=True)
        clients = self.begun(clients, turn)
        alone = self.near(kept_of(clients, "alone"), 0.0, theta, batches(only=rest))
        near = self.near(kept_of(clients, "near"), self.lam, theta, batches(only=rest))
        late, sums = (2 * turn >= self.trial.rounds - 1)[:, None, None], clients["sums"]
        if bool(late.any()):
            drawn = batches("held", 2, only=some)
            sums = sums + late * scores(self.descent.task, [alone, u, near], drawn)
        return {"sums": sums, **apart(alone, "alone"), **apart(near, "near")}


def averaged(clients: State, u: State) -> State:
    """The mean of the models u that a client has had, the first ten alike; counts of batches are those of the last."""
    turns = clients["turns"] + 1
    part = (1.0 / turns).clamp(min=MEAN)

    def mean(name: str) -> Tensor:
        old, new = clients[name], u[name]
        if not new.is_floating_point():
            return new
        return old + (new - old) * part.view(-1, *[1] * (new.dim() - 1)).to(new)  # each operation rounds alike anywhere

    return {**{name: mean(name) for name in u}, "turns": turns}


def either(mask: Tensor, one: State, other: State) -> State:
    """The rows of `one` where the mask (S,) is true, those of `other` elsewhere, for all that `one` has."""
    return {name: chosen(mask, value, other[name]) for name, value in one.items()}
