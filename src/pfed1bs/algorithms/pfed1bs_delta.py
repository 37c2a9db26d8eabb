"""pFed1BS-Delta: one-bit sketches of updates, a fresh projection every round, a shared model that is never sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.anchors import Anchors, advised, anchored
from pfed1bs.algorithms.base.following import Following
from pfed1bs.algorithms.base.kesten import steadied, unmoved
from pfed1bs.algorithms.base.onebit import Code, bits, bounded, code, fields, layers, shortened
from pfed1bs.algorithms.base.private import REHEARSAL, kept, randomised
from pfed1bs.algorithms.base.robust import trimmed, unknown
from pfed1bs.core.options import NOT_NEGATIVE, POSITIVE, SHARE, option
from pfed1bs.core.votes import pack
from pfed1bs.engine.contract import Batches, Cohort, State, blank, present
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class PFed1BSDelta(Following):
    """theta <- theta + eta_g s Phi_t^T R_t^T v at everybody, v = sign(R_t q) for the mean q = sum_k p_k s_k z_k.

    Both one-bit stages carry the scale |x|_2^2 / |x|_1 that makes them unbiased under a random rotation.
    """

    ratio: float = option(0.0, "m / n: bits per weight; 0: 0.1 sqrt(S / K) (docs/delta.md)", SHARE)
    steady: bool = option(False, "eta_g falls while each step undoes the one before, and rises again (docs/delta.md)")
    rotate: bool = option(True, "second rotation before the server's signs")
    scales: Literal["one", "layer"] = option("one", "layer: every layer has a sketch and a scale of its own")
    robust: Literal["none", "trimmed"] = option(
        "none", "trimmed: leave out clients whose signs are against the others', round after round (docs/security.md)"
    )
    epsilon: float = option(0.0, "local privacy of a message at delta = 1e-5; 0: none (docs/security.md)", NOT_NEGATIVE)
    loudness: float = option(0.005, "with epsilon: what a sign stands for; a scale would tell of samples", POSITIVE)
    feedback: bool = option(False, "both sides remember what their signs lost and add it to the next message")
    snapshots: Literal["auto", "coded", "float32"] = option(
        "auto", "what clients are sent that were away long; auto: coded, 4 bits a weight, where that happens often"
    )
    share: float = option(0.0, "S / K, from which `ratio` and `snapshots` follow; 0: that of the run, or 1", SHARE)

    paper: ClassVar[str] = "this project, docs/delta.md"

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Weights that share a scale."""
        return (self.task.n,) if self.scales == "one" else layers(self.task)

    @property
    def density(self) -> float:
        """Bits per weight, m / n."""
        return self.ratio or advised(self.share or 1.0)

    @cached_property
    def anchors(self) -> Anchors | None:
        """The rounds at which everybody rounds theta; None: there are none, and snapshots are in float32."""
        return anchored(self.task, self.seed, self.down, self.share or 1.0, self.snapshots)

    def code(self, round: int) -> Code:
        """Phi_t and R_t of a round."""
        return code(self.sizes, self.density, self.seed, round, self.rotate)

    @cached_property
    def m(self) -> int:
        """Bits of a message."""
        return sum(bits(self.sizes, self.density))

    @property
    def down(self) -> Layout:
        """Signs and scale of the mean update in the sketch."""
        return fields(self.sizes, self.density)

    @property
    def up(self) -> Layout:
        """Signs and scale of the client's update in the sketch."""
        return self.down

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        theta, fields = self.task.init(self.seed), self.down
        signs = torch.zeros(fields["signs"].size or 0, dtype=torch.uint8)
        server = {"theta": theta, "signs": signs, "scale": torch.zeros(fields["scale"].shape)}
        server |= self.anchors.first() if self.anchors else {}
        server |= unknown(clients) if self.robust == "trimmed" else {}
        server |= unmoved(theta) if self.steady else {}
        states = self.first(theta, clients)
        if self.feedback:
            server["error"], states["error"] = torch.zeros_like(theta), blank(states["w"])
        return server, states

    def heard(self, said: Message, round: int) -> Tensor:
        """How the server's answer of a round moves the shared model."""
        return self.code(round).step(said["signs"], said["scale"])

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The update Delta = u - theta is sent, with privacy after some of its signs are turned over."""
        state, said = super().local(clients, received, cohort, batches)
        return state, self.private(said, cohort) if self.epsilon else said

    def spoken(self, clients: State, delta: Tensor, round: int) -> tuple[State, Message]:
        """What is sent: z = sign(a) and s = |a|_2^2 / |a|_1 of a = Phi_t Delta; what stays, with error feedback."""
        phi = self.code(round)
        delta = delta + clients["error"] if self.feedback else delta
        said = phi.signed(delta, shrink=self.feedback)
        memory = {"error": delta - phi.lift(phi.scaled(said["signs"], said["scale"]))} if self.feedback else {}
        return memory, said

    def private(self, said: Message, cohort: Cohort) -> Message:
        """Signs of which some are turned over, with a scale that depends on nothing and makes up for it."""
        scale = torch.full_like(said["scale"], self.loudness / kept(self.epsilon, self.m))
        return {"signs": randomised(said["signs"], cohort, self.epsilon), "scale": scale}

    def aggregate(self, server: State, received: Iterable[Message], cohort: Cohort) -> State:
        """From q = sum_k p_k s_k z_k, in float64 by ascending id: v = sign(R_t q), s = |q|_2^2 / |q|_1, and theta."""
        messages = list(received)  # packed, until all scales are known
        cohort, agreed = self.trusted(server, [message["signs"] for message in messages], cohort)
        q, cut = self.code(cohort.round).mean(messages, cohort.weights)
        eta = self.size(cohort) * (float(server["gain"]) if self.steady else 1.0)
        return {**self.decided(server, q, eta, cohort.round), **agreed, "log/clamped": cut}

    def decided(self, server: State, q: Tensor, eta: float, round: int) -> State:
        """The server after a round whose mean in the sketch is q (m,), and what it will say."""
        phi, memory = self.code(round), server.get("error")
        if memory is not None:
            memory = phi.lift(q) + memory
            q = phi.sketch(memory)
        v, s = phi.answered(q, shrink=self.feedback)
        if memory is not None:
            memory = memory - phi.step(v, s)
        shift, anchors = phi.step(v, eta * s), self.anchors
        said = {"signs": pack(v), "scale": eta * s, **present(error=memory)}
        log = {"log/shift": shift.norm(), "log/step": torch.tensor(eta)}
        learned = steadied(server, shift.clone()) if self.steady else {}
        theta = torch.add(server["theta"], shift, out=shift)  # in memory that is warm
        held = anchors.kept(server, theta, round + 1) if anchors else {"theta": theta}
        return {**held, **learned, **said, **log}

    def trusted(self, server: State, signs: list[Tensor], cohort: Cohort) -> tuple[Cohort, State]:
        """The cohort as it counts, and what is remembered of it."""
        return (cohort, {}) if self.robust == "none" else trimmed(server, signs, cohort, self.m)

    def usual(self, cohort: Cohort) -> float:
        """eta_g: 1, less with few and noisy bits, or where noise would be more than NOISE updates of a client."""
        if self.feedback:
            return 1.0
        heard = kept(self.epsilon, self.m) if self.epsilon else 1.0  # what randomised signs leave of an update
        few = shortened(cohort.weights, self.density, advised(self.share or 1.0))
        return min(few, bounded(cohort.weights, self.density, heard))

    @property
    def remark(self) -> str:
        """What noise from a known seed does not do, and options that do nothing beside the others."""
        noise = REHEARSAL if self.epsilon else self.idle("loudness")
        return "; ".join(filter(None, (noise, super().remark)))
