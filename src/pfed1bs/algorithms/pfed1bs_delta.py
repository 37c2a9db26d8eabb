"""pFed1BS-Delta: one-bit sketches of updates, a fresh projection every round, a shared model that is never sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pfed1bs.algorithms.base.anchors import Anchors, advised, anchored, layout
from pfed1bs.algorithms.base.companion import SHARED, apart, distance, kept_of
from pfed1bs.algorithms.base.keeping import Keeping
from pfed1bs.algorithms.base.kesten import steadied, unmoved
from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.onebit import Code, bits, bounded, code, fields, layers
from pfed1bs.algorithms.base.private import REHEARSAL, kept, randomised
from pfed1bs.algorithms.base.robust import trimmed, unknown
from pfed1bs.algorithms.base.trial import Trial
from pfed1bs.core.errors import UserError
from pfed1bs.core.options import NOT_NEGATIVE, POSITIVE, SHARE, at_least, option
from pfed1bs.core.votes import pack
from pfed1bs.engine.contract import Batches, Cohort, Judged, State, blank, buffers_of, model_of, present, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class PFed1BSDelta(Method):
    """theta <- theta + eta_g s Phi_t^T R_t^T v at everybody, v = sign(R_t q) for the mean q = sum_k p_k s_k z_k.

    Both one-bit stages carry the scale |x|_2^2 / |x|_1 that makes them unbiased under a random rotation. The personal
    model is `ft`, the shared model after the client's local steps, a `mean` of these, or `prox`, an own one near it.
    """

    ratio: float = option(0.0, "m / n: bits per weight; 0: 0.1 sqrt(S / K) (docs/delta.md)", SHARE)
    step: float = option(
        0.0, "eta_g: size of the shared step; 0: 1, or less where noise would drown it (docs/delta.md)", NOT_NEGATIVE
    )
    steady: bool = option(False, "eta_g falls while each step undoes the one before, and rises again (docs/delta.md)")
    decay: float = option(0.0, "eta_g falls as 1 / (1 + decay * round)", NOT_NEGATIVE)
    keep: Literal["ft", "mean", "prox", "best"] = option(
        "prox", "which model is personal; mean: of the `ft` of rounds; best: each client chooses, or trains alone"
    )
    lam: float = option(0.1, "lambda: how strongly `prox` is held near the shared model", NOT_NEGATIVE)
    trial: int = option(20, "rounds a client takes part in before it chooses (best)", at_least(1))
    again: int = option(80, "rounds it takes part in before the next trial; 0: there is one (best)", at_least(0))
    margin: float = option(
        1.0, "standard errors by which another model must beat the present one, at first `alone` (best)", NOT_NEGATIVE
    )
    rotate: bool = option(True, "second rotation before the server's signs")
    follow: bool = option(True, "the client's own model moves with the shared one, also while the client is away")
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
    personalises: ClassVar[bool] = True
    replicates: ClassVar[bool] = True  # every client keeps theta
    judged_with: ClassVar[Judged] = "replica"

    @property
    def keeping(self) -> Keeping:
        """Which model is personal."""
        trial = Trial(self.trial, self.again, self.margin, self.seed)
        return Keeping(self.keep, self.descent, self.lam, trial)

    def gradients(self, steps: int) -> int:
        """Those of the shared model, and of its own if it is kept apart; a client that chooses takes 4 in its trial."""
        return {"ft": 1, "mean": 1, "prox": 2, "best": 4}[self.keep] * steps

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

    @property
    def rests(self) -> bool:
        """The shared model is trained apart from the client's own."""
        return True

    @property
    def kept(self) -> bool:
        """The client keeps it."""
        return True

    @property
    def snapshot_layout(self) -> Layout:
        """The shared model, or its code at the last anchor."""
        return layout(self.task.n) if self.anchors else {"theta": Floats((self.task.n,))}

    def anchor(self, round: int) -> int:
        """The last anchor; without any, the round itself."""
        return self.anchors.last(round) if self.anchors else round

    def init(self, clients: int) -> tuple[State, State]:
        """The same weights everywhere, from the seed."""
        theta, fields = self.task.init(self.seed), self.down
        if theta.dtype != torch.float32:
            raise UserError(f"steps are sent in float32, but this model is {theta.dtype}", "give Task module.float()")
        signs = torch.zeros(fields["signs"].size or 0, dtype=torch.uint8)
        server = {"theta": theta, "signs": signs, "scale": torch.zeros(fields["scale"].shape)}
        server |= self.anchors.first() if self.anchors else {}
        server |= unknown(clients) if self.robust == "trimmed" else {}
        server |= unmoved(theta) if self.steady else {}
        states = self.first(theta, clients)
        if self.feedback:
            server["error"], states["error"] = torch.zeros_like(theta), blank(states["w"])
        return server, states

    def first(self, theta: Tensor, clients: int) -> State:
        """Clients before their first round: their own model and the shared one with its statistics, both theta."""
        own = {"w": stack(theta, clients), **self.task.buffers(clients)}
        shared = {"theta": own["w"], **apart(self.task.buffers(clients))}
        return {**own, **shared, **self.keeping.first(own)}

    def broadcast(self, server: State, cohort: Cohort) -> Message:
        """The step that the last round came to; nothing in round 0."""
        return {name: server[name] for name in self.down} if cohort.round else {}

    def snapshot(self, server: State) -> Message:
        """The shared model, or its code at the last anchor."""
        return {name: server[name] for name in self.snapshot_layout}

    def absorb(self, clients: State, received: Message, round: int) -> State:
        """Move the replica by the step of the round before, and round it at an anchor; a snapshot replaces it."""
        anchors, theta, step = self.anchors, clients["theta"], next(iter(self.down)) in received
        if step:
            theta = theta + self.heard(received, round - 1)
        else:
            theta = stack(anchors.value(received, round) if anchors else received["theta"], len(theta)).clone()
        own = self.keeping.followed(clients, theta - clients["theta"]) if self.follow else {}
        settled = anchors.settled(theta, round) if anchors and step else theta
        return {**clients, "theta": settled, **own}

    def heard(self, said: Message, round: int) -> Tensor:
        """How the server's answer of a round moves the shared model."""
        return self.code(round).step(said["signs"], said["scale"])

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The update Delta = u - theta after R steps is sent; the client's own model takes its steps."""
        theta = clients["theta"]
        u, kept = self.keeping.trained(clients, cohort, batches)
        if self.keep == "prox":
            kept["log/apart" if self.follow else "log/behind"] = distance(kept["w"], theta)
        memory, said = self.spoken(clients, u["w"] - theta, cohort.round)
        said = self.private(said, cohort) if self.epsilon else said
        return {**kept, **apart(buffers_of(u)), **memory, "theta": theta, "log/loss": u["log/loss"]}, said

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

    def size(self, cohort: Cohort) -> float:
        """eta_g of a round: by default 1, unless the noise of a step would be more than NOISE updates of a client."""
        quiet = kept(self.epsilon, self.m) if self.epsilon else 1.0  # what randomised signs leave of an update
        step = self.step or (1.0 if self.feedback else bounded(cohort.weights, self.density, quiet))
        return step / (1 + self.decay * cohort.round)

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The client's model, and the shared one with the statistics that its local steps left."""
        shared = {**kept_of(clients, SHARED), "w": stack(server["theta"], len(clients["w"]))}
        return {"personal": model_of(clients), "global": shared}

    @property
    def remark(self) -> str:
        """What noise from a known seed does not do."""
        return REHEARSAL if self.epsilon else ""
