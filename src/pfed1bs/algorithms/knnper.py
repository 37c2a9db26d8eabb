"""kNN-Per: one shared model, and at every client its own samples as neighbours (Marfoq et al., ICML 2022)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.algorithms.base.averaging import Averaging
from pfed1bs.algorithms.base.method import one_label
from pfed1bs.algorithms.base.split import head
from pfed1bs.core.options import BELOW_ONE, POSITIVE, SHARE, at_least, option
from pfed1bs.engine.contract import Batches, Cohort, State, buffers_of
from pfed1bs.wire.messages import Message

TINY = 1e-12  # least probability, so that the loss of a wrong answer stays finite


@dataclass(frozen=True)
class KNNPer(Averaging):
    """FedAvg; judged is lam_k p_knn + (1 - lam_k) softmax(logits), all of it from the averaged model and its features.

    p_knn is the vote of the k nearest of the client's training samples. Each client takes the lam_k of 0, 0.1 ... 1
    that answers most of its held-out training samples rightly, of equal ones that with the least loss; the authors'
    code looks at test samples for it. Also judged: "neighbours", which is lam_k = 1; lam_k = 0 is "global".
    """

    neighbours: int = option(10, "k: stored samples that have a vote", at_least(1))
    scale: float = option(1.0, "sigma: a vote weighs exp(-|h - h_i|^2 / (d sigma))", POSITIVE)
    holdout: float = option(
        0.2, "share of a client's training samples that choose lam_k, neither trained on nor stored", BELOW_ONE
    )
    lam: float = option(0.5, "lam_k of clients that hold nothing out", SHARE)

    paper: ClassVar[str] = "Marfoq et al., ICML 2022"
    personalises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse models without features."""
        head(self.task, "knnper")

    def local(self, clients: State, received: Message, cohort: Cohort, batches: Batches) -> tuple[State, Message]:
        """As in FedAvg, on the samples that are not held out."""
        return super().local(clients, received, cohort, batches.first(1 - self.holdout))

    @property
    def rests(self) -> bool:
        """No: judged is the shared model with the neighbours of its features."""
        return False

    kept = rests  # nor does a client keep it

    def personal(self, server: State, clients: State, cohort: Cohort, batches: Batches) -> dict[str, State]:
        """The averaged model with the neighbours, with them alone, without, and after fine-tuning."""
        judged = super().personal(server, clients, cohort, batches.first(1 - self.holdout))
        shared = {**judged["global"], **self.stored(judged["global"], batches)}
        lam = self.chosen(shared, batches)
        only = {**shared, "lam": torch.ones_like(lam)}
        return {**judged, "personal": {**shared, "lam": lam}, "neighbours": only}

    def stored(self, model: State, batches: Batches) -> State:
        """Features (S, N, d) and labels (S, N) of the samples that are not held out; -1 stands behind the last."""
        features, labels = [], []
        for x, y, mask in batches.samples(0, 1 - self.holdout):
            one_label("knnper", y)
            features.append(self.task.features(model["w"], x, buffers_of(model)))
            labels.append(y.masked_fill(~mask, -1))
        return {"features": torch.cat(features, 1), "labels": torch.cat(labels, 1)}

    def chosen(self, model: State, batches: Batches) -> Tensor:
        """lam_k of every client (S,)."""
        grid = torch.linspace(0, 1, 11, device=model["w"].device)
        right, loss, seen = torch.zeros(3, len(grid), len(model["w"]), dtype=torch.float64, device=grid.device)
        for x, y, mask in batches.samples(1 - self.holdout, 1):
            votes, own = self.votes(model, x), super().predict(model, x).softmax(-1)
            mixed = torch.stack([torch.lerp(own, votes, lam) for lam in grid.tolist()])
            truth = mixed.gather(-1, y.expand(len(grid), *y.shape)[..., None])[..., 0]
            right += ((mixed.argmax(-1) == y) & mask).sum(-1)
            loss -= (truth.clamp(min=TINY).log() * mask).sum(-1)
            seen += mask.sum(-1)
        best = grid[(right - loss / (1 + loss)).argmax(0)]  # the loss counts for less than one right answer
        return best.where(seen[0] > 0, self.lam)

    def votes(self, model: State, x: Tensor) -> Tensor:
        """p_knn (S, E, classes)."""
        h, near, labels = self.task.features(model["w"], x, buffers_of(model)), model["features"], model["labels"]
        squares = h.square().sum(-1)[..., None] + near.square().sum(-1)[:, None] - 2 * h @ near.mT
        close = -(squares / (h.shape[-1] * self.scale)).masked_fill(labels[:, None] < 0, torch.inf)
        best = close.topk(min(self.neighbours, close.shape[-1]), -1)
        said = labels[:, None].expand_as(close).gather(-1, best.indices).clamp(min=0)
        classes = head(self.task, "knnper").shape[0]
        return (F.one_hot(said, classes) * best.values.softmax(-1)[..., None]).sum(-2)

    def predict(self, model: State, x: Tensor) -> Tensor:
        """The logarithm of the mixture; of a model without neighbours its logits."""
        own = super().predict(model, x)
        if "lam" not in model:
            return own
        return torch.lerp(own.softmax(-1), self.votes(model, x), model["lam"][:, None, None]).clamp(min=TINY).log()
