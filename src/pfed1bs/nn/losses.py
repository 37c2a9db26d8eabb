"""What a model is trained on: the loss of outputs and targets, its gradient, and what is counted on test samples."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import imported
from pfed1bs.nn.stacked import apart, leaf

Function = Callable[[Tensor, Tensor], Tensor]  # outputs (K, B, ...) and targets (K, B, ...) -> losses (K,)
CONFUSION = ("hits", "said", "true")  # of every label, for macro-F1


class Loss:
    """The mean over samples of a function of outputs and targets, for every client.

    The function gets those of K clients and returns K losses. On test samples it is called with one sample a client.
    """

    told: ClassVar[tuple[str, ...]] = ("test_loss",)  # metrics that are always told, the one that counts first
    more: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # metrics on request, with what they bring along

    def __init__(self, function: Function, name: str, metric: str | None = None) -> None:
        self.function, self.name = function, name
        known = dict.fromkeys([*self.told, *self.more, "test_loss"])
        if metric is not None and metric not in known:
            raise UserError(f"{metric} is no metric of the loss {self.name}", f"there are {', '.join(known)}")
        asked = (metric, *self.more.get(metric, ())) if metric else ()
        self.metrics = tuple(dict.fromkeys([*asked, *self.told]))

    def __call__(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of every client (K,), and the gradient of their sum with respect to the outputs."""
        variable = leaf(outputs)
        with torch.enable_grad():
            loss = self._apart(variable.unsqueeze(1), y.unsqueeze(1)).flatten()
        [error] = torch.autograd.grad(loss.sum(), variable)
        return loss.detach(), error

    def samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample, (K, B); of a sequence, the mean over its places."""
        return self._apart(outputs.unsqueeze(2), y.unsqueeze(2))

    def answers(self, outputs: Tensor) -> Tensor:
        """What a model says with its outputs: the numbers themselves."""
        return outputs

    def counts(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """What the metrics need of every sample beside its loss: (K, B) each, or (K, B, C) for every label."""
        return {}

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """The counts of one sample: their names and shapes."""
        return {}

    def _apart(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The function of outputs (K, G, B, ...) for G groups of samples of every client: (K, G).

        On the CPU it is called client by client, so that a client's bits do not depend on the others.
        """

        def call(own: dict[str, Tensor]) -> Tensor:
            found = self.function(own["outputs"].flatten(0, 1), own["y"].flatten(0, 1))
            if found.shape != (own["y"].shape[0] * own["y"].shape[1],):
                raise UserError(
                    f"the loss {self.name} must return one number a client, got shape {tuple(found.shape)} for "
                    f"{own['y'].shape[0] * own['y'].shape[1]} of them",
                    "take the mean over all axes but the first, as in .flatten(1).mean(1)",
                )
            return found.view(own["y"].shape[:2])

        return apart(call, {"outputs": outputs, "y": y})


class CrossEntropy(Loss):
    """Logits (..., C) against labels (...): classes, or the next characters of a sequence."""

    told = ("accuracy",)
    more = {"f1": (), "bits": ("perplexity",), "perplexity": ("bits",)}

    def __call__(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of every client (K,) and its gradient: softmax minus one-hot, over all places."""
        _check_labels(outputs, y)
        at = y.flatten(1).unsqueeze(1)
        log = outputs.flatten(1, -2).mT.log_softmax(1)  # (K, C, B): five times as fast as over the last, short axis
        loss = log.gather(1, at).mean((1, 2)).neg_()
        return loss, log.exp_().scatter_(1, at, -1.0, reduce="add").div_(at.shape[2]).mT.reshape(outputs.shape)

    def samples(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of every sample."""
        _check_labels(outputs, y)
        entropy = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
        return _mean(entropy)

    def answers(self, outputs: Tensor) -> Tensor:
        """The label with the greatest logit."""
        return outputs.argmax(-1)

    def counts(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The share of right answers in every sample, for macro-F1 also of every label."""
        answers = self.answers(outputs)
        return {"correct": _mean(answers == y)} | (_confusion(answers, y, outputs) if "f1" in self.metrics else {})

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Right answers, and for macro-F1 the labels."""
        return {"correct": ()} | (dict.fromkeys(CONFUSION, (classes,)) if "f1" in self.metrics else {})


class SquaredError(Loss):
    """The mean of (output - target)^2 over samples and outputs."""

    told = ("r2", "mae")

    def counts(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Sums of targets and errors, each the mean over the outputs of a sample, in float64."""
        found, target = (value.double() for value in matched(outputs, y))
        powers = {"target": target, "square": target**2, "squared": (found - target) ** 2}
        return {name: _mean(value) for name, value in {**powers, "absolute": (found - target).abs()}.items()}

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Four numbers."""
        return dict.fromkeys(("target", "square", "squared", "absolute"), ())


class BinaryEntropy(Loss):
    """Logits against targets 0 and 1 of the same shape: one label that holds or not, or several."""

    told = ("accuracy", "f1")

    def answers(self, outputs: Tensor) -> Tensor:
        """Which labels hold."""
        return outputs > 0

    def counts(self, outputs: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The share of right answers in every sample, and which labels were said, true and both."""
        said, true = (value.unsqueeze(2).flatten(2) for value in matched(self.answers(outputs), y > 0.5))
        return {"correct": _mean(said == true), "hits": said & true, "said": said, "true": true}

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Right answers and labels."""
        return {"correct": (), **dict.fromkeys(CONFUSION, (classes,))}


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of every client (K,)."""
    outputs, y = matched(outputs, y)
    return (outputs - y).square().flatten(1).mean(1)


def binary_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean binary cross-entropy of every client (K,)."""
    outputs, y = matched(outputs, y)
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none").flatten(1).mean(1)


LOSSES: dict[str, tuple[type[Loss], Function]] = {
    "cross-entropy": (CrossEntropy, F.cross_entropy),
    "mse": (SquaredError, squared_error),
    "bce": (BinaryEntropy, binary_entropy),
}


def loss_of(loss: str | Function, metric: str | None = None) -> Loss:
    """A loss by its name or your own, a function or its "package.module:function"; `metric` is the one that counts."""
    if isinstance(loss, str) and ":" in loss:
        loss = imported(loss, "loss", "(outputs, targets)")
    if not isinstance(loss, str):
        return Loss(loss, getattr(loss, "__name__", "function"), metric)
    if loss not in LOSSES:
        raise UserError(f"unknown loss {loss!r}", f"{nearest(loss, LOSSES)} Your own: package.module:function")
    kind, function = LOSSES[loss]
    return kind(function, loss, metric)


def matched(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one shape; a single output for every target may have an axis of its own."""
    if outputs.shape == (*y.shape, 1):
        return outputs.squeeze(-1), y
    if outputs.shape != y.shape:
        raise UserError(
            f"outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} must have one shape (clients, samples, ...)",
            "end the model in as many outputs as a target has numbers",
        )
    return outputs, y


def _check_labels(outputs: Tensor, y: Tensor) -> None:
    if y.is_floating_point() or outputs.shape[:-1] != y.shape:
        raise UserError(
            f"cross-entropy needs whole labels of the shape of the outputs without their last axis, the classes; got "
            f"outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} of {y.dtype}",
            'for targets that are numbers take the loss "mse", for shares or several labels at once "bce"',
        )


def _confusion(answers: Tensor, y: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """Which labels were said, true and both, (K, B, C); in sequences, shares of their places."""
    labels = torch.arange(outputs.shape[-1], device=y.device)
    said, true = (value.unsqueeze(-1) == labels for value in (answers, y))
    found = dict(zip(CONFUSION, (said & true, said, true), strict=True))
    return {name: value if y.dim() == 2 else value.flatten(2, -2).double().mean(2) for name, value in found.items()}


def _mean(values: Tensor) -> Tensor:
    """The mean over all axes but clients and samples."""
    if values.dim() == 2:
        return values
    values = values.flatten(2)
    return (values if values.is_floating_point() else values.double()).mean(2)
