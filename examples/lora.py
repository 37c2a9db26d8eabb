"""Low-rank adapters on a frozen character model: one-bit messages about the adapters alone (Hu et al., 2021).

    python examples/lora.py train base.safetensors            # a small transformer on half of the plays
    PYTHONPATH=examples LORA_BASE=base.safetensors pfed1bs compare recipes/shakespeare-lora.toml

`LoRA` is all that a wrapper needs: what does not require gradients is a constant of the task, so that n, and every
message, counts the adapters only. Adapters of other libraries (peft) work the same way: return their module.
"""

import argparse
import os
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pfed1bs import build, load, stream

WRAPPED = ("query", "value")  # layers of every block that get an adapter


class LoRA(nn.Linear):
    """W x + b + (alpha / rank) B A x with W and b frozen; it has the names of the layer it replaces."""

    def __init__(self, layer, rank=4, alpha=8.0):
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.load_state_dict(layer.state_dict())
        self.requires_grad_(False)
        self.scale, self.a = alpha / rank, nn.Parameter(torch.empty(rank, layer.in_features))
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.reset_parameters()

    def reset_parameters(self):
        """Draw A and clear B, so that the first model is the one below; the run calls it with its seed."""
        if hasattr(self, "a"):
            nn.init.normal_(self.a, std=self.a.shape[1] ** -0.5)
            nn.init.zeros_(self.b)
        else:
            super().reset_parameters()

    def forward(self, x):
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


def adapted(model, names=WRAPPED, rank=4):
    """The model with all its weights frozen, and an adapter in every linear layer of these names."""
    model.requires_grad_(False)
    for module in [*model.modules()]:
        for name, layer in [*module.named_children()]:
            if name in names and isinstance(layer, nn.Linear):
                setattr(module, name, LoRA(layer, rank))
    return model


@cache
def shakespeare():
    """The data set, read once."""
    return load("shakespeare")


def plays():
    """Every play by its name, and whether it is one of the first half."""
    names = sorted({owner.partition("/")[0] for owner in shakespeare().owners.tolist()})
    return {name: i < len(names) // 2 for i, name in enumerate(names)}


def samples(first):
    """Inputs, targets and owners of one half of the plays."""
    data, half = shakespeare(), plays()
    x = np.concatenate([data.train_inputs, data.test_inputs])
    y = np.concatenate([data.train_labels, data.test_labels])
    rows = np.array([half[owner.partition("/")[0]] is first for owner in data.owners.tolist()])
    return x[rows], y[rows], data.owners[rows]


def roles():
    """The data of a run: the roles of the second half, each a client."""
    return samples(first=False)


def model(shape, classes):
    """The model of a run: the trained transformer in the file LORA_BASE, with adapters."""
    from safetensors.torch import load_file

    base, path = build("chars", shape, classes), os.environ.get("LORA_BASE", "base.safetensors")
    base.load_state_dict(load_file(path))
    return adapted(base)


def train(path, steps=3000, batch=128, seed=0):
    """Train the transformer on the first half of the plays, and write its state_dict to a file."""
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.from_numpy(part).to(device) for part in samples(first=True)[:2])
    base = build("chars", tuple(x.shape[1:]), shakespeare().num_classes).to(device)
    optimiser = torch.optim.AdamW(base.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    generator = stream(seed, "pretraining")
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator).to(device)
        loss = F.cross_entropy(base(x[rows]).flatten(0, 1), y[rows].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1} of {steps}: {loss.item() / np.log(2):.3f} bits per character", flush=True)
    save_file({name: value.cpu().contiguous() for name, value in base.state_dict().items()}, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train"])
    parser.add_argument("path")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    train(given.path, given.steps, given.batch)
