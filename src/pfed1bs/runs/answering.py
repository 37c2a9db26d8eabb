"""A trained model as a module that takes inputs as they come."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from pfed1bs.core.errors import UserError
from pfed1bs.engine.contract import State
from pfed1bs.nn.parts import Part
from pfed1bs.nn.task import BUFFER

Predict = Callable[[State, Tensor], Tensor]
CLOSE = 1e-3  # the same network in another order of additions


class Rule(nn.Module):
    """What a method answers by a rule of its own: neighbours, prototypes; more than a network."""

    def __init__(self, predict: Predict, model: State) -> None:
        super().__init__()
        self.predict, self.model = predict, model

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, ...) for normalised inputs (B, ...)."""
        return self.predict({name: value.to(x.device) for name, value in self.model.items()}, x[None])[0]


class Answering(nn.Module):
    """A network, or a rule, behind the normalisation of its run.

    Inputs are (B, *shape): floats, uint8 pixels (value / 255), or tokens, as the data set had them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, about: Mapping[str, object]) -> None:
        super().__init__()
        self.network, self.shape = network, tuple(cast(list[int], about["shape"]))
        self.tokens = about["normalise"] == "none" and "scale" not in about
        self.scale = float(cast(float, about.get("scale", 1.0)))
        for key, none in (("mean", [0.0]), ("std", [1.0])):
            value = torch.tensor(about.get(key, none), dtype=torch.float64)
            self.register_buffer(key, value.view(-1, *(1 for _ in self.shape[1:])), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, ...): logits, or the numbers themselves."""
        unclear = self.scale != 1 and not x.is_floating_point() and x.dtype != torch.uint8  # 0 to 1, or to 255?
        if x.shape[1:] != self.shape or x.is_floating_point() and self.tokens or unclear:
            kind = "whole numbers" if self.tokens else "uint8 pixels or floats from 0 to 1" if unclear else "numbers"
            raise UserError(
                f"inputs must be {kind} of shape (samples, {', '.join(map(str, self.shape))}), got "
                f"{tuple(x.shape)} of {x.dtype}",
                "give them as the data of the run were; one sample needs a first axis too",
            )
        outputs: Tensor = self.network(self.normalised(x))
        return outputs

    def normalised(self, x: Tensor) -> Tensor:
        """(value / scale - mean) / std, with the bits of training; tokens stay what they are."""
        if self.tokens:
            return x.long()
        scale = self.scale if x.dtype == torch.uint8 else 1.0
        return (x.float() - (self.mean * scale).float()) / (self.std * scale).float()


@torch.no_grad()
def answering(
    network: nn.Module, parts: tuple[Part, ...], model: State, predict: Predict, about: Mapping[str, object]
) -> Answering:
    """The model (1, ...) of a client in a network of its kind; where `predict` says something else, by that rule."""
    for part in parts:
        network.get_parameter(part.name).copy_(model["w"][0, part.slice].view(part.shape))
    for name, value in network.named_buffers():
        value.copy_(model[BUFFER + name][0])
    found = Answering(network, about).eval()
    probe = torch.ones(2, *found.shape, dtype=torch.int64 if found.tokens else torch.float32)
    plain = all(name == "w" or name.startswith(BUFFER) for name in model)
    same = plain and torch.allclose(network(probe), predict(model, probe[None])[0], rtol=CLOSE, atol=CLOSE)
    return found if same else Answering(Rule(predict, model), about).eval()
