"""pFed1BS: models kept apart, pulled together by a one-bit consensus on their sketches (Cheng et al., AAAI 2026)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.core.errors import UserError
from pfed1bs.core.options import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, option
from pfed1bs.core.rng import TIES, bits, key
from pfed1bs.core.sketch import Sketch, gaussian, srht
from pfed1bs.core.votes import pack, sign, tally, unpack
from pfed1bs.engine.contract import Algorithm, Batches, Cohort, Descent, State, Walk, buffers_of, present, stack
from pfed1bs.nn.task import Task
from pfed1bs.wire.codecs import Differences, Signs
from pfed1bs.wire.messages import Kind, Layout, Message


@dataclass(frozen=True)
class PFed1BS(Algorithm):
    """The method as published; docs/method.md lists every place where the paper left a choice.

    The consensus of round 0 is known to all from the seed, so nothing is sent for it. `zero_masked` takes the one-sided
    penalty at its word (v = 0 pulls nowhere), `zero_literal` the printed gradient (one round of shrinkage of Phi w),
    `sketch` what the authors' code does (sign(Phi w0)). The authors' optimiser is mu=1e-4, momentum=0.5.
    """

    task: Task
    seed: int = 0
    lr: float = option(0.05, "eta: step size", POSITIVE, role="optimiser")
    lam: float = option(5e-4, "lambda: pull towards the consensus", NOT_NEGATIVE)
    mu: float = option(1e-5, "ridge", NOT_NEGATIVE, role="optimiser")
    gamma: float = option(1e4, "sharpness of the smoothed l1 norm", POSITIVE)
    ratio: float = option(0.1, "m / n: sketch bits per weight", FRACTION)
    momentum: float = option(0.0, "velocity persists over rounds", BELOW_ONE, role="optimiser")
    v0: Literal["zero_masked", "zero_literal", "sketch"] = option("zero_masked", "the consensus of round 0")
    train: Literal["sampled", "all"] = option("sampled", "who does local work in a round")
    projection: Literal["srht", "gaussian"] = option("srht", "what makes the sketch")
    use_D: bool = option(True, "random signs in front of the transform")
    start: Literal["common", "own"] = option("common", "own: every client draws its first weights (ablation)")
    code: Literal["plain", "entropy"] = option("plain", "entropy: send the same bits as differences to what is known")

    paper: ClassVar[str] = "Cheng et al., AAAI 2026"
    personalises: ClassVar[bool] = True

    @cached_property
    def sketch(self) -> Sketch:
        """Phi, the same at every party and in every round."""
        m = sketch_size(self.task.n, self.ratio)
        if self.projection == "gaussian":
            return gaussian(self.task.n, m, self.seed)
        return srht(self.task.n, m, self.seed, use_D=self.use_D)

    @property
    def down(self) -> Layout:
        """The consensus v."""
        return {"consensus": self.signs}

    @property
    def up(self) -> Layout:
        """The client's sketch z_k."""
        return {"sketch": self.signs}

    @property
    def signs(self) -> Signs | Differences:
        """How m signs are sent."""
        return Signs(self.sketch.m) if self.code == "plain" else Differences(self.sketch.m)

    @property
    def trains(self) -> Literal["sampled", "all"]:
        """As configured."""
        return self.train

    def init(self, clients: int) -> tuple[State, State]:
        """The signs of v0 (where it has none: seeded bits for the ties of round 0), and the first weights."""
        w0 = self.task.init(self.seed)
        w = stack(w0, clients).clone()
        if self.start == "own":
            w = torch.stack([self.task.init(self.seed + 1 + client) for client in range(clients)])
        first = self.first
        ties = torch.from_numpy(bits(key(self.seed, TIES), self.sketch.m).copy())
        server = {"consensus": pack(first) if self.v0 == "sketch" else ties, "first": pack(first)}
        states = {"w": w, **self.task.buffers(clients), **present(velocity=0 * w if self.momentum else None)}
        if self.code == "entropy":
            server["previous"] = pack(first)
            states["consensus"] = stack(pack(first), clients).clone()
        return server, states

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The consensus; nothing in round 0."""
        return {"consensus": server["consensus"]} if cohort.round else {}

    def known(self, state: State, kind: Kind, round: int) -> Message:
        """The consensus that was heard last; before there is one, sign(Phi w0)."""
        if self.code == "plain":
            return {}
        # A client holds what it has heard; the server holds the consensus of the round and, apart, the one before.
        last = "previous" if "previous" in state and (kind == "down" or not round) else "consensus"
        return {"consensus" if kind == "down" else "sketch": state[last]}

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """R steps on the smoothed objective (Lemma 2), then the signs of the sketch."""
        descent = Descent(self.task, self.lr, self.mu, self.momentum)
        zeros = clients["w"].new_zeros(len(cohort.ids))
        walk = Walk(clients["w"], clients.get("velocity"), buffers_of(clients), zeros)
        v, share = received.get("consensus"), zeros.clone()
        for step, (x, y) in enumerate(batches(), 1):
            misfit = self.misfit(walk.w, v)
            if misfit is None or (step < batches.steps and not self.momentum):
                walk = descent.advance(walk, x, y)
                if misfit is not None:
                    self.sketch.push(walk.w, misfit, -self.lr * self.lam)
            else:  # the same step in one piece; the last one also shows how strong the pull is
                grad, loss, buffers = self.task.gradient(walk.w, x, y, walk.buffers)
                for rows, pull in self.sketch.lifts(misfit):
                    share[rows] = self.lam * pull.norm(dim=1) / grad[rows].norm(dim=1)
                    grad[rows].add_(pull, alpha=self.lam)
                walk = Walk(*descent.step(walk.w, grad, walk.velocity), buffers, loss, own=True)
        z = sign(self.sketch.forward(walk.w))
        log = {"log/loss": walk.loss, "log/pull": share}
        if v is not None:
            log["log/agreement"] = (z == v).float().mean(1)
        held = clients.get("consensus")
        if held is not None and v is not None:
            held = pack(v).expand_as(held)
        kept = present(velocity=walk.velocity, consensus=held)
        return {"w": walk.w, **walk.buffers, **kept, **log}, {"sketch": z}

    def misfit(self, w: Tensor, v: Tensor | None) -> Tensor | None:
        """What Phi^T turns into the gradient of the penalty at w; None where there is no pull."""
        if not self.lam:
            return None
        if v is None and self.v0 == "sketch":
            v = self.first.to(w.device)
        if v is None and self.v0 == "zero_literal":  # the printed gradient at v = 0: Phi^T tanh(gamma Phi w)
            return torch.tanh(self.gamma * self.sketch.forward(w))
        return None if v is None else self.sketch.misfit(w, v, self.gamma)

    @cached_property
    def first(self) -> Tensor:
        """sign(Phi w0) of the common first weights, which everybody has from the seed."""
        return sign(self.sketch.forward(self.task.init(self.seed)))

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """Majority vote with integer weights N_k (Lemma 6); ties keep the previous bit."""
        old, m = server["consensus"], self.sketch.m
        outcome = tally((message["sketch"] for message in received), cohort.sizes, old, m)
        v = unpack(outcome.bits, m)
        if self.code == "entropy" and cohort.round:  # round 0 broadcasts nothing
            server = {**server, "previous": old}
        return {
            **server,
            "consensus": outcome.bits,
            "log/flips": (v != unpack(old, m)).float().mean(),
            "log/initial": (v == unpack(server["first"], m)).float().mean(),
            "log/ties": torch.tensor(outcome.ties / m),
        }

    def diagnose(self, server: State, message: Message) -> State:
        """How far the clients' sketches are apart."""
        return {"log/sketch": message["sketch"]}


def sketch_size(n: int, ratio: float) -> int:
    """M = floor(ratio n), at least 1."""
    if not 0 < ratio <= 1:
        raise UserError(f"algorithm.ratio = m/n must be in (0, 1], got {ratio}", "the paper uses 0.1")
    return max(1, int(ratio * n + 1e-9))
