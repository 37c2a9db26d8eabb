"""pFed1BS-Delta: one-bit sketches of updates, a fresh projection every round, a shared model that is never sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.onebit import Code, bits, code, layers
from pfed1bs.algorithms.base.trial import ALONE, FT, Trial, empty, verdict
from pfed1bs.core.options import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, at_least, option
from pfed1bs.core.votes import sign, unpack
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, Descent, State, Walk, buffers_of, model_of, stack
from pfed1bs.engine.trust import clamped
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Floats, Signs
from pfed1bs.wire.messages import Layout, Message

NOISE = 5.0  # how much longer than a client's update a step may be


@dataclass(frozen=True)
class PFed1BSDelta(Algorithm):
    """theta <- theta + eta_g s Phi_t^T v at everybody, from v = sign of the rotated mean of the clients' scaled signs.

    Both one-bit stages carry the scale |x|_2^2 / |x|_1 that makes them unbiased under a random rotation. The personal
    model is `ft`, the shared model after the client's local steps, or `prox`, its own model held near the shared one.
    """

    task: Task
    seed: int = 0
    lr: float = option(0.05, "eta: step size at the clients", POSITIVE, role="optimiser")
    mu: float = option(1e-5, "ridge", NOT_NEGATIVE, role="optimiser")
    momentum: float = option(0.0, "starts from rest in every round", BELOW_ONE, role="optimiser")
    ratio: float = option(0.1, "m / n: bits per weight", FRACTION)
    step: float = option(
        0.0, "eta_g: size of the shared step; 0: 1, or less where noise would drown it (docs/delta.md)", NOT_NEGATIVE
    )
    decay: float = option(0.0, "eta_g falls as 1 / (1 + decay * round)", NOT_NEGATIVE)
    keep: Literal["ft", "prox", "best"] = option(
        "prox", "which model is personal; best: each client chooses, or trains alone"
    )
    lam: float = option(0.1, "lambda: how strongly `prox` is held near the shared model", NOT_NEGATIVE)
    trial: int = option(20, "rounds a client takes part in before it chooses (best)", at_least(1))
    margin: float = option(
        2.0, "standard errors by which another model must beat `prox` to be chosen (best)", NOT_NEGATIVE
    )
    rotate: bool = option(True, "second rotation before the server's signs")
    follow: bool = option(True, "the client's own model moves with the shared one, also while the client is away")
    scales: Literal["one", "layer"] = option("one", "layer: every layer has a sketch and a scale of its own")
    feedback: bool = option(False, "both sides remember what their signs lost and add it to the next message")

    paper: ClassVar[str] = "this project, docs/delta.md"
    personalises: ClassVar[bool] = True

    @property
    def descent(self) -> Descent:
        """SGD with the options of the method."""
        return Descent(self.task, self.lr, self.mu, self.momentum)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Weights that share a scale."""
        return (self.task.n,) if self.scales == "one" else layers(self.task)

    def code(self, round: int) -> Code:
        """The projection and the rotation of a round."""
        return code(self.sizes, self.ratio, self.seed, round)

    @property
    def m(self) -> int:
        """Bits of a message."""
        return sum(bits(self.sizes, self.ratio))

    @property
    def down(self) -> Layout:
        """Signs and scale of the mean update in the sketch."""
        shape = () if self.scales == "one" else (len(self.sizes),)
        return {"signs": Signs(self.m), "scale": Floats(shape, least=0)}

    @property
    def up(self) -> Layout:
        """Signs and scale of the client's update in the sketch."""
        return self.down

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        theta, fields = self.task.init(self.seed), self.down
        signs = torch.zeros(fields["signs"].size or 0, dtype=torch.uint8)
        server = {"theta": theta, "signs": signs, "scale": torch.zeros(fields["scale"].shape)}
        rows = stack(theta, clients)
        extra = empty(rows) if self.keep == "best" else {}
        if self.feedback:
            server, extra = {**server, "error": torch.zeros_like(theta)}, {**extra, "error": torch.zeros_like(rows)}
        return server, {"w": rows.clone(), "theta": rows.clone(), **self.task.buffers(clients), **extra}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The step that the last round came to; nothing in round 0."""
        return {"signs": server["signs"], "scale": server["scale"]} if cohort.round else {}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Move the replica by the step of the round before; a snapshot replaces it."""
        if "theta" in received:
            theta = stack(received["theta"], len(clients["w"])).clone()
        else:
            theta = clients["theta"] + self.heard(received["signs"], received["scale"], round - 1)
        return {**clients, "theta": theta, **(self.followed(clients, theta - clients["theta"]) if self.follow else {})}

    def followed(self, clients: State, shift: Tensor) -> State:
        """The client's own models after the shared one has moved; the model of a client that stays alone does not."""
        if self.keep != "best":
            return {"w": clients["w"] + shift}
        near = (clients["choice"] != ALONE)[:, None]
        return {"w": clients["w"] + near * shift, "scout/prox": clients["scout/prox"] + shift}

    def snapshot(self, server: State) -> Message:
        """The shared model."""
        return {"theta": server["theta"]}

    def heard(self, signs: Tensor, scale: Tensor, round: int) -> Tensor:
        """What the server's answer stands for, s Phi^T R^T v: how a round moves the shared model."""
        code = self.code(round)
        v = code.scaled(signs, scale)
        return code.lift(code.turn_back(v) if self.rotate else v)

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps from the shared model, and on the same batches R steps of the client's own."""
        theta, code = clients["theta"], self.code(cohort.round)
        u, buffers, loss = self.descent.run(theta, buffers_of(clients), batches())
        change = u - theta + clients["error"] if self.feedback else u - theta
        a = code.sketch(change)
        signs, scale = sign(a), code.scale(a, shrink=self.feedback)
        kept = {"w": u, **buffers} if self.keep == "ft" else self.own(clients, u, cohort, batches)
        if self.feedback:
            kept["error"] = change - code.lift(code.scaled(signs, scale))
        return {**kept, "theta": theta, "log/loss": loss}, {"signs": signs, "scale": scale}

    def own(self, clients: State, u: Tensor, cohort: Cohort, batches: Batches) -> State:
        """The client's own model after the round; during a trial every candidate."""
        if self.keep == "prox":
            return self.near(clients["w"], self.lam, clients, batches)
        trial, choice = Trial(self.task, self.lr, self.lam, self.seed), clients["choice"]
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

    def near(self, w: Tensor, lam: float | Tensor, clients: State, batches: Batches) -> State:
        """R steps of w held near the shared model, and the buffers with it."""
        walk = Walk(w, None, buffers_of(clients), torch.zeros(len(w)))
        for x, y in batches():
            walk = self.descent.advance(walk, x, y, lam * (walk.w - clients["theta"]), 1.0)
        return {"w": walk.w, **walk.buffers}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """One bit per coordinate of the weighted mean, summed in float64 by ascending id, and the step it means."""
        code, m = self.code(cohort.round), self.m
        total, messages = torch.zeros(m, dtype=torch.float64), list(received)  # packed, until all scales are known
        scales, cut = clamped(torch.stack([message["scale"] for message in messages]))
        for share, message, s in zip(cohort.weights, messages, scales.double(), strict=True):
            total += share * code.scaled(unpack(message["signs"], m).double(), s)
        q, change, memory = total.float(), None, State()
        if self.feedback:
            change = code.lift(q) + server["error"]
            q = code.sketch(change)
        r = code.turn(q) if self.rotate else q
        signs, scale, size = sign(r), code.scale(r, shrink=self.feedback), self.size(cohort)
        if change is not None:
            memory = {"error": change - self.heard(signs, scale, cohort.round)}
        shift = self.heard(signs, size * scale, cohort.round)
        fields = {"signs": Signs(m).pack(signs), "scale": size * scale}
        logged = {"log/shift": shift.norm(), "log/step": torch.tensor(size), "log/clamped": cut}
        return {"theta": server["theta"] + shift, **fields, **memory, **logged}

    def size(self, cohort: Cohort) -> float:
        """eta_g of a round: by default 1, unless the noise of a step would be more than NOISE updates of a client."""
        noise = (pi / 2) * float(cohort.weights.square().sum() / self.ratio) ** 0.5  # of a step of 1, in updates
        return (self.step or (1.0 if self.feedback else min(1.0, NOISE / noise))) / (1 + self.decay * cohort.round)

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The client's model, and the shared one."""
        return {
            "personal": model_of(clients),
            "global": {**model_of(clients), "w": stack(server["theta"], len(clients["w"]))},
        }
