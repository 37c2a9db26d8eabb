"""pFed1BS-Delta: one-bit sketches of updates, a fresh projection every round, a shared model that is never sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithm import Algorithm, Batches, Cohort, Descent, State, buffers_of, model_of, stack
from pfed1bs.algorithms.pfed1bs import sketch_size
from pfed1bs.algorithms.trial import ALONE, FT, Trial, empty, verdict
from pfed1bs.codecs import Floats, Signs
from pfed1bs.rotation import Rotation
from pfed1bs.sketch import Sketch, srht
from pfed1bs.task import Task
from pfed1bs.votes import sign, unpack
from pfed1bs.wire import Layout, Message


@dataclass(frozen=True)
class PFed1BSDelta(Algorithm):
    """theta <- theta + eta_g s Phi_t^T v at everybody, from v = sign of the rotated mean of the clients' scaled signs.

    Both one-bit stages carry the scale |x|_2^2 / |x|_1 that makes them unbiased under a random rotation. The personal
    model is `ft`, the shared model after the client's local steps, or `prox`, its own model held near the shared one.
    """

    task: Task
    seed: int = 0
    lr: float = 0.05  # eta: step size at the clients
    mu: float = 1e-5  # ridge
    momentum: float = 0.0  # starts from rest in every round
    ratio: float = 0.1  # m / n: bits per weight
    step: float = 0.0  # eta_g: size of the shared step; 0: min(1, 6 sqrt(m / n))
    decay: float = 0.0  # eta_g falls as 1 / (1 + decay * round)
    keep: Literal["ft", "prox", "best"] = "prox"  # which model is personal; best: each client chooses, or trains alone
    lam: float = 0.1  # lambda: how strongly `prox` is held near the shared model
    trial: int = 20  # rounds a client takes part in before it chooses (best)
    margin: float = 1.0  # standard errors by which another model must beat `prox` to be chosen (best)
    rotate: bool = True  # second rotation before the server's signs

    paper: ClassVar[str] = "this project, docs/delta.md"
    personalises: ClassVar[bool] = True

    @property
    def descent(self) -> Descent:
        """SGD with the options of the method."""
        return Descent(self.task, self.lr, self.mu, self.momentum)

    @property
    def m(self) -> int:
        """Bits of a message."""
        return sketch_size(self.task.n, self.ratio)

    @property
    def down(self) -> Layout:
        """Signs and scale of the mean update in the sketch."""
        return {"signs": Signs(self.m), "scale": Floats()}

    @property
    def up(self) -> Layout:
        """Signs and scale of the client's update in the sketch."""
        return {"signs": Signs(self.m), "scale": Floats()}

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        theta = self.task.init(self.seed)
        server = {"theta": theta, "signs": torch.zeros(Signs(self.m).size, dtype=torch.uint8), "scale": torch.zeros(())}
        rows = stack(theta, clients)
        extra = empty(rows) if self.keep == "best" else {}
        return server, {"w": rows.clone(), "theta": rows.clone(), **self.task.buffers(clients), **extra}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The step that the last round came to; nothing in round 0."""
        return {"signs": server["signs"], "scale": server["scale"]} if cohort.round else {}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Move the replica by the step of the round before; a snapshot replaces it."""
        if "theta" in received:
            return {**clients, "theta": stack(received["theta"], len(clients["w"])).clone()}
        return {**clients, "theta": clients["theta"] + self.shift(received["signs"], received["scale"], round - 1)}

    def snapshot(self, server: State) -> Message:
        """The shared model."""
        return {"theta": server["theta"]}

    def shift(self, signs: Tensor, scale: Tensor, round: int) -> Tensor:
        """eta_g s Phi^T R^T v: how a round moves the shared model, (n,)."""
        v = rotation(self.m, self.seed, round).backward(signs) if self.rotate else signs
        size = (self.step or min(1.0, 6 * self.ratio**0.5)) / (1 + self.decay * round)
        return size * scale * projection(self.task.n, self.m, self.seed, round).adjoint(v)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps from the shared model, and on the same batches R steps of the client's own."""
        theta = clients["theta"]
        u, buffers, loss = self.descent.run(theta, buffers_of(clients), batches())
        a = projection(self.task.n, self.m, self.seed, cohort.round).forward(u - theta)
        kept = {"w": u, **buffers} if self.keep == "ft" else self.own(clients, u, cohort, batches)
        return {**kept, "theta": theta, "log/loss": loss}, {"signs": sign(a), "scale": unbiased(a)}

    def own(self, clients: State, u: Tensor, cohort: Cohort, batches: Batches) -> State:
        """The client's own model after the round; during a trial every candidate."""
        if self.keep == "prox":
            return self.near(clients["w"], self.lam, clients, batches)
        trial, choice = Trial(self.task, self.lr, self.lam, self.seed), clients["choice"]
        on = clients["turns"] < self.trial
        w = self.near(clients["w"], torch.where(choice == ALONE, 0.0, self.lam)[:, None], clients, batches)
        state = {**clients, **w, "turns": clients["turns"] + 1}
        if bool(on.any()):
            state |= {"alone": self.near(clients["alone"], 0.0, clients, batches)["w"]}
            state |= trial.run(clients, batches, late=clients["turns"] >= self.trial // 2)
            ends = clients["turns"] + 1 == self.trial
            choice = torch.where(ends, verdict(state["counts"], cohort.sizes.to(u.device), self.margin), choice)
            state["w"] = torch.where((ends & (choice == ALONE))[:, None], state["alone"], state["w"])
        state["w"] = torch.where((choice == FT)[:, None], u, state["w"])
        work = torch.where(on, 6.0, 2.0)  # gradients per local step
        return {**state, "choice": choice, "log/work": work, "log/choice": choice.float()}

    def near(self, w: Tensor, lam: float | Tensor, clients: State, batches: Batches) -> State:
        """R steps of w held near the shared model, and the buffers with it."""
        theta, buffers, velocity = clients["theta"], buffers_of(clients), None
        for x, y in batches():
            grad, _, buffers = self.task.gradient(w, x, y, buffers)
            w, velocity = self.descent.step(w, grad + lam * (w - theta), velocity)
        return {"w": w, **buffers}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """One bit per coordinate of the weighted mean, summed in float64 by ascending id, and the step it means."""
        q = torch.zeros(self.m, dtype=torch.float64)
        for share, message in zip(cohort.weights, received, strict=True):
            q += share * message["scale"].double() * unpack(message["signs"], self.m)
        q = q.float()
        r = rotation(self.m, self.seed, cohort.round).forward(q) if self.rotate else q
        signs, scale = sign(r), unbiased(r)
        shift = self.shift(signs, scale, cohort.round)
        return {
            "theta": server["theta"] + shift,
            "signs": Signs(self.m).pack(signs),
            "scale": scale,
            "log/shift": shift.norm(),
        }

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The client's model, and the shared one."""
        return {
            "personal": model_of(clients),
            "global": {**model_of(clients), "w": stack(server["theta"], len(clients["w"]))},
        }


def unbiased(a: Tensor) -> Tensor:
    """|a|_2^2 / |a|_1 of every row (..., m), 0 for a row of zeros: the scale of signs that keeps the mean right."""
    size = a.abs().sum(-1)
    return torch.where(size > 0, a.square().sum(-1) / size, torch.zeros_like(size))


@lru_cache(maxsize=2)
def projection(n: int, m: int, seed: int, round: int) -> Sketch:
    """Phi of a round."""
    return srht(n, m, seed, round)


@lru_cache(maxsize=2)
def rotation(m: int, seed: int, round: int) -> Rotation:
    """The second rotation of a round."""
    return Rotation(m, seed, round)
