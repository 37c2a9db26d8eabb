"""What all methods with one shared model have in common: local SGD, and three ways to be judged."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pfed1bs.core.options import BELOW_ONE, NOT_NEGATIVE, POSITIVE, at_least, option
from pfed1bs.engine.contract import Algorithm, Batches, Descent, State, buffers_of, model_of
from pfed1bs.nn.task import Task


@dataclass(frozen=True)
class Shared(Algorithm):
    """Judged: "personal", the client's model after its last local training; "global", the shared model; and "tuned".

    That is the shared model after `tune_steps` more local steps on training samples, which cost no bytes.
    """

    task: Task
    seed: int = 0
    lr: float = option(0.05, "eta: step size at the clients", POSITIVE, role="optimiser")
    mu: float = option(1e-5, "ridge", NOT_NEGATIVE, role="optimiser")
    momentum: float = option(0.0, "starts from rest in every round", BELOW_ONE, role="optimiser")
    tune_steps: int = option(0, "fine-tuning steps before judging; 0: the steps of a round", at_least(0))
    tune: Literal["full", "head"] = option("full", "what is fine-tuned")

    personalises: ClassVar[bool] = False

    @property
    def judged(self) -> Literal["local", "tuned"]:
        """Which model counts as the personal one."""
        return "local"

    @property
    def descent(self) -> Descent:
        """SGD with the options of the method."""
        return Descent(self.task, self.lr, self.mu, self.momentum)

    def judge(self, shared: State, clients: State, batches: Batches) -> dict[str, State]:
        """The three models; `shared` holds weights and buffers, a row for each client."""
        tuned = self._tuned(shared, batches)
        return {"personal": tuned if self.judged == "tuned" else model_of(clients), "global": shared, "tuned": tuned}

    def _tuned(self, shared: State, batches: Batches) -> State:
        frozen = [part.slice for part in self.task.parts if self.tune == "head" and not part.head]
        w, buffers, velocity = shared["w"], buffers_of(shared), None
        for x, y in batches("tune", self.tune_steps or None):
            grad, _, buffers = self.task.gradient(w, x, y, buffers)
            w, velocity = self.descent.step(w, grad, velocity)
            for part in frozen:  # neither gradient nor ridge moves them
                w[:, part] = shared["w"][:, part]
        return {"w": w, **buffers}
