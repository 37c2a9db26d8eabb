"""The networks of the paper, a few for sound and text, and your own as "package.module:function"."""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import imported

Builder = Callable[[tuple[int, ...], int], nn.Module]


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 256 ReLU units; 784-256-10 has 203,530 weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 256), nn.ReLU(), nn.Linear(256, classes))


def vgg8(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Five convolutions, each followed by pooling, and 128-128-128-classes; 280,074 weights on CIFAR-10."""
    return _vgg("vgg8", ((16,), (32,), (64,), (128,), (128,)), 128, shape, classes)


def vgg16(shape: tuple[int, ...], classes: int) -> nn.Module:
    """VGG16 with BatchNorm and 512-512-512-classes; 15,299,748 weights on CIFAR-100."""
    blocks = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
    return _vgg("vgg16", blocks, 512, shape, classes)


def _vgg(name: str, blocks: Sequence[Sequence[int]], hidden: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Blocks of 3x3 convolutions of the given widths, each block halving the picture, then two hidden layers."""
    least = 2 ** len(blocks)
    if len(shape) != 3 or min(shape[1:]) < least:
        raise UserError(
            f"{name} needs pictures of shape (channels, height, width) of at least {least} x {least} pixels, "
            f"got {shape}",
            "use mlp or your own model for smaller inputs",
        )
    layers: list[nn.Module] = []
    channels, height, width = shape
    for block in blocks:
        for out in block:
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three convolutions, each followed by pooling; 33,546 weights on pictures of 1 x 32 x 32."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise UserError(f"cnn needs pictures (channels, height, width) of at least 8 x 8, got {shape}", "use mlp")
    layers: list[nn.Module] = []
    for into, out in ((shape[0], 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (shape[1] // 8) * (shape[2] // 8), classes))


class Gru(nn.Module):
    """Logits of the next character after every place of a text."""

    def __init__(self, letters: int, width: int = 32, memory: int = 128) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.memory = nn.GRU(width, memory, batch_first=True)
        self.next = nn.Linear(memory, letters)

    def forward(self, x: Tensor) -> Tensor:
        """Whole numbers (B, L) to logits (B, L, letters)."""
        states, _ = self.memory(self.letters(x))
        logits: Tensor = self.next(states)
        return logits


class Block(nn.Module):
    """A layer of a transformer that looks back, not ahead."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) to the same shape."""
        h, length = self.first(x), x.shape[1]
        parts = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        q, k, v = parts  # (B, heads, L, width / heads)
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(ahead, -torch.inf).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        thought: Tensor = self.narrow(nn.functional.gelu(self.wide(self.second(x))))
        return x + thought


class Chars(nn.Module):
    """A small transformer for the next character; adapters of its linear layers are what clients train."""

    def __init__(self, length: int, letters: int, width: int = 96, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.next = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        """Whole numbers (B, L) to logits (B, L, letters)."""
        h = self.letters(x) + self.places.weight[: x.shape[1]]
        logits: Tensor = self.next(self.norm(self.blocks(h)))
        return logits


def gru(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A character model: 32 numbers a letter, 128 states; 73,639 weights with 71 letters."""
    return Gru(classes)


def chars(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A transformer of two layers, 96 numbers a letter; 243,719 weights with 71 letters and windows of 64."""
    return Chars(shape[-1], classes)


MODELS: dict[str, Builder] = {"mlp": mlp, "cnn": cnn, "vgg8": vgg8, "vgg16": vgg16, "gru": gru, "chars": chars}


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model `name` for inputs of this shape, whose outputs are logits; `name` may be "package.module:function".

    Its first weights are the same every time and the global random state stays as it was; Task.init draws new ones.
    """
    builder = imported(name, "model", "(shape, classes)") if ":" in name else _registered(name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = builder(shape, classes)
        if not isinstance(model, nn.Module):
            raise UserError(f"model {name} must return a torch.nn.Module, got {type(model).__name__}")
        _check_outputs(name, model, shape, classes)
    return model


@torch.no_grad()
def _check_outputs(name: str, model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a model that is not float32 or has too few outputs; its modes and buffers stay as they were."""
    kinds = {str(value.dtype) for value in model.parameters()} - {"torch.float32"}
    if kinds:
        raise UserError(f"weights of {name} must be torch.float32, got {', '.join(sorted(kinds))}", "add .float()")
    outputs = _tried(copy.deepcopy(model).eval(), torch.zeros(2, *shape))
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or not outputs.dim() or len(outputs) != 2 or outputs[0].numel() < classes:
        raise UserError(
            f"model {name} must give {classes} outputs for each of 2 samples, the logits of the classes, got {found}",
            "end it in torch.nn.Linear(..., classes)",
        )


def _tried(model: nn.Module, x: Tensor) -> object:
    """The outputs for real inputs, or for tokens where the model takes those."""
    try:
        return model(x)
    except (RuntimeError, IndexError):
        if not any(isinstance(part, nn.Embedding) for part in model.modules()):
            raise
        return model(x.long())


def _registered(name: str) -> Builder:
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}", f'{nearest(name, MODELS)} Your own: "package.module:function"')
    return MODELS[name]
