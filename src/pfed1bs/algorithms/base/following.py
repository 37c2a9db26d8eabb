"""A shared model that is never sent: everybody moves a copy of it, and has a model of its own beside it."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pfed1bs.algorithms.base.anchors import Anchors, layout
from pfed1bs.algorithms.base.companion import SHARED, apart, distance, kept_of
from pfed1bs.algorithms.base.keeping import Keeping
from pfed1bs.algorithms.base.method import Method
from pfed1bs.algorithms.base.trial import PROX, Trial
from pfed1bs.core.options import NOT_NEGATIVE, at_least, option
from pfed1bs.engine.contract import Batches, Cohort, Judged, State, buffers_of, model_of, stack
from pfed1bs.wire.codecs import Floats
from pfed1bs.wire.messages import Layout, Message


@dataclass(frozen=True)
class Following(Method):
    """Clients send `spoken` of their updates of theta, the server answers, and `heard` of it moves theta everywhere.

    The personal model is `ft`, the shared model after the client's local steps, a `mean` of these, or `prox`, an own
    one near it; with `best` each client chooses; with `norms` it is the shared one under the client's normalisation.
    """

    step: float = option(
        0.0,
        "eta_g: size of the shared step; 0: 1, in pfed1bs-delta less where bits are few (docs/delta.md)",
        NOT_NEGATIVE,
    )
    decay: float = option(0.0, "eta_g falls as 1 / (1 + decay * round)", NOT_NEGATIVE)
    keep: Literal["ft", "mean", "prox", "best", "norms"] = option(
        "prox",
        "which model is personal; mean: of the `ft` of rounds; best: each client chooses, or trains alone; "
        "norms: the shared one under own normalisation",
    )
    lam: float = option(0.1, "lambda: how strongly `prox` is held near the shared model", NOT_NEGATIVE)
    trial: int = option(20, "rounds a client takes part in before it chooses (best)", at_least(1))
    again: int = option(80, "rounds it takes part in before the next trial; 0: there is one (best)", at_least(0))
    margin: float = option(
        1.0, "standard errors by which another model must beat the present one, at first `alone` (best)", NOT_NEGATIVE
    )
    follow: bool = option(True, "the client's own model moves with the shared one, also while the client is away")

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
        return {"prox": 2, "best": 4}.get(self.keep, 1) * steps

    @property
    def remark(self) -> str:
        """Options of another `keep`."""
        trial = [] if self.keep == "best" else ["trial", "again", "margin"]
        return self.idle(*trial, *([] if self.keep in ("prox", "best") else ["lam"]))

    @property
    def rests(self) -> bool:
        """The shared model is trained apart from the client's own, but with `norms`, where it is the body of both."""
        return self.keep != "norms"

    @property
    def kept(self) -> bool:
        """The client keeps it, but for what is made of the shared one."""
        return self.keep != "norms"

    @property
    def anchors(self) -> Anchors | None:
        """The rounds at which everybody rounds theta; None: there are none, and snapshots are in float32."""
        return None

    @property
    def snapshot_layout(self) -> Layout:
        """The shared model, or its code at the last anchor."""
        return layout(self.task.n) if self.anchors else {"theta": Floats((self.task.n,))}

    def anchor(self, round: int) -> int:
        """The last anchor; without any, the round itself."""
        return self.anchors.last(round) if self.anchors else round

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
        own = self.keeping.followed(clients, theta - clients["theta"]) if self.follow and self.kept else {}
        settled = anchors.settled(theta, round) if anchors and step else theta
        return {**clients, "theta": settled, **own}

    @abstractmethod
    def heard(self, said: Message, round: int) -> Tensor:
        """How the server's answer of a round moves the shared model."""

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """The update Delta = u - theta after R steps is sent; the client's own model takes its steps."""
        theta = clients["theta"]
        u, kept = self.keeping.trained(clients, cohort, batches)
        if self.keep in ("prox", "best"):
            held = kept["choice"] == PROX if "choice" in kept else 1
            kept["log/apart" if self.follow else "log/behind"] = distance(kept["w"], theta, self.lam) * held
        memory, said = self.spoken(clients, u["w"] - theta, cohort.round)
        return {**kept, **apart(buffers_of(u)), **memory, "theta": theta, "log/loss": u["log/loss"]}, said

    @abstractmethod
    def spoken(self, clients: State, delta: Tensor, round: int) -> tuple[State, Message]:
        """What stays at the clients of their updates (S, n), and what is sent of them."""

    def size(self, cohort: Cohort) -> float:
        """eta_g of a round."""
        return (self.step or self.usual(cohort)) / (1 + self.decay * cohort.round)

    def usual(self, cohort: Cohort) -> float:
        """eta_g before it decays, if nobody says it."""
        return 1.0

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The client's model, and the shared one with the statistics that its local steps left."""
        shared = {**kept_of(clients, SHARED), "w": stack(server["theta"], len(clients["w"]))}
        if self.keep == "norms":
            worn = self.keeping.under(clients["w"], shared["w"])
            return {"personal": {**shared, "w": worn}, "tuned": model_of(clients)}
        return {"personal": model_of(clients), "global": shared}
