"""pFed1BS: models kept apart, pulled together by a one-bit consensus on their sketches (Cheng et al., AAAI 2026)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.onebit import sketch_size
from pfed1bs.algorithms.base.private import REHEARSAL, randomised
from pfed1bs.core.options import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, option
from pfed1bs.core.rng import TIES, bits, key
from pfed1bs.core.sketch import Sketch, gaussian, penalty, srht
from pfed1bs.core.votes import pack, sign, tally, unpack
from pfed1bs.engine.contract import Batches, Cohort, State, blank, buffers_of, present, stack
from pfed1bs.nn.descent import Lifted, Walk
from pfed1bs.wire.codecs import Differences, Signs
from pfed1bs.wire.messages import Kind, Layout, Message


@dataclass(frozen=True)
class PFed1BS(Method):
    """The method as published; docs/method.md lists every place where the paper left a choice.

    The consensus of round 0 is known to all from the seed, so nothing is sent for it. `zero_masked` takes the one-sided
    penalty at its word (v = 0 pulls nowhere), `zero_literal` the printed gradient (one round of shrinkage of Phi w),
    `sketch` what the authors' code does (sign(Phi w0)). The authors' optimiser is mu=1e-4, momentum=0.5.
    """

    lam: float = option(5e-4, "lambda: pull towards the consensus", NOT_NEGATIVE)
    gamma: float = option(1e4, "sharpness of the smoothed l1 norm", POSITIVE)
    ratio: float = option(0.1, "m / n: sketch bits per weight", FRACTION)
    momentum: float = option(0.0, "velocity persists over rounds", BELOW_ONE, role="optimiser")
    v0: Literal["zero_masked", "zero_literal", "sketch"] = option("zero_masked", "the consensus of round 0")
    train: Literal["sampled", "all"] = option("sampled", "who does local work in a round")
    projection: Literal["srht", "gaussian"] = option("srht", "what makes the sketch")
    use_D: bool = option(True, "random signs in front of the transform")
    start: Literal["common", "own"] = option("common", "own: every client draws its first weights (ablation)")
    code: Literal["plain", "entropy"] = option("plain", "entropy: send the same bits as differences to what is known")
    epsilon: float = option(0.0, "local privacy of a message at delta = 1e-5; 0: none (docs/security.md)", NOT_NEGATIVE)

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
        w = stack(w0, clients)
        if self.start == "own":
            w = torch.stack([self.task.init(self.seed + 1 + client) for client in range(clients)])
        first = self.first
        ties = torch.from_numpy(bits(key(self.seed, TIES), self.sketch.m).copy())
        server = {"consensus": pack(first) if self.v0 == "sketch" else ties, "first": pack(first)}
        states = {"w": w, **self.task.buffers(clients), **present(velocity=blank(w) if self.momentum else None)}
        if self.code == "entropy":
            server["previous"] = pack(first)
            states["consensus"] = stack(pack(first), clients)
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
        zeros = clients["w"].new_zeros(len(cohort.ids))
        walk = Walk(clients["w"], clients.get("velocity"), buffers_of(clients), zeros)
        v = received.get("consensus")
        for step, (x, y) in enumerate(batches(), 1):  # Lemma 2: w <- w - lr (grad + lam pull + mu w)
            walk = self.descent.advance(walk, x, y, self.pull(walk.w, v), self.lam, measure=step == batches.steps)
        z = sign(self.sketch.forward(walk.w))
        log = {"log/loss": walk.loss, "log/pull": zeros if walk.share is None else walk.share}
        if v is not None:
            log["log/agreement"] = (z == v).float().mean(1)
        held = clients.get("consensus")
        if held is not None and v is not None:
            held = pack(v).expand_as(held)
        kept = present(velocity=walk.velocity, consensus=held)
        z = randomised(z, cohort, self.epsilon) if self.epsilon else z
        return {"w": walk.w, **walk.buffers, **kept, **log}, {"sketch": z}

    def pull(self, w: Tensor, v: Tensor | None) -> Lifted | None:
        """sketch.pull(w, v, gamma), the gradient of the penalty, with its Phi^T left to the step; None: no pull."""
        if not self.lam:
            return None
        if v is None and self.v0 == "sketch":
            v = self.first.to(w.device)
        if v is None and self.v0 == "zero_literal":  # the printed gradient at v = 0: Phi^T tanh(gamma Phi w)
            return Lifted(self.sketch, torch.tanh(self.gamma * self.sketch.forward(w)))
        return None if v is None else Lifted(self.sketch, self.sketch.misfit(w, v, self.gamma))

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

    def consensus(self, server: State, round: int) -> Tensor:
        """The v (m,) that clients see in a round: 0, or the sketch of the first weights, before anybody has voted."""
        if round:
            return unpack(server["consensus"], self.sketch.m)
        return self.first if self.v0 == "sketch" else torch.zeros(self.sketch.m)

    def penalties(self, server: State, clients: State, round: int) -> State:
        """The penalty against the consensus, and the ridge (Eq. 28)."""
        w = clients["w"]
        v = self.consensus(server, round).to(w.device)
        misfit = penalty(self.sketch, w, v, self.gamma, masked=self.v0 != "zero_literal")
        return {"consensus": self.lam * misfit, "ridge": self.mu / 2 * w.double().square().sum(1)}

    def diagnose(self, server: State, message: Message) -> State:
        """How far the clients' sketches are apart."""
        return {"log/sketch": message["sketch"]}

    @property
    def remark(self) -> str:
        """What noise from a known seed does not do, and what a dense projection takes."""
        dense = 4 * self.task.n * sketch_size(self.task.n, self.ratio) / 2**30 if self.projection == "gaussian" else 0
        told = f"the dense projection takes {dense:.1f} GiB of memory, and every round reads it" if dense > 1 else ""
        return "; ".join(filter(None, (REHEARSAL if self.epsilon else "", told)))
