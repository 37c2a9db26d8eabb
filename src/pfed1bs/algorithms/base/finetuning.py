"""How methods with one shared model are judged: trained at the client, shared, and fine-tuned."""

from dataclasses import dataclass
from typing import Literal

from pfed1bs.algorithms.base.split import head
from pfed1bs.engine.contract import Batches, State, buffers_of, model_of
from pfed1bs.nn.descent import Descent


@dataclass(frozen=True)
class Tuning:
    """Local steps from the shared model on training samples before it is judged; they cost no bytes."""

    descent: Descent
    steps: int  # 0: those of a round
    part: Literal["full", "head"]

    def __call__(self, shared: State, batches: Batches) -> State:
        """Weights and buffers of `shared`, a row for each client, after the steps."""
        task = self.descent.task
        frozen = [part.slice for part in task.parts if not part.head] if self.part == "head" else []
        if frozen:
            head(task, "algorithm.tune = head")
        w, buffers, velocity = shared["w"], buffers_of(shared), None
        for x, y in batches("tune", self.steps or None):
            grad, _, buffers = task.gradient(w, x, y, buffers)
            w, velocity = self.descent.step(w, grad, velocity)
            for part in frozen:  # neither gradient nor ridge moves them
                w[:, part] = shared["w"][:, part]
        return {"w": w, **buffers}

    def models(
        self, shared: State, clients: State, batches: Batches, personal: Literal["local", "tuned"]
    ) -> dict[str, State]:
        """All three: `personal` says whether the client's own or the tuned one counts as the personal one."""
        tuned = self(shared, batches)
        return {"personal": tuned if personal == "tuned" else model_of(clients), "global": shared, "tuned": tuned}
