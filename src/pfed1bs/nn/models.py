"""The networks of the paper, and your own as "package.module:function"."""

import copy
import importlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pfed1bs.core.errors import UserError, nearest
from pfed1bs.core.extras import parts

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


MODELS: dict[str, Builder] = {"mlp": mlp, "vgg8": vgg8, "vgg16": vgg16}


def build(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model `name` for inputs of this shape, whose outputs are logits; `name` may be "package.module:function".

    Its first weights are the same every time and the global random state stays as it was; Task.init draws new ones.
    """
    builder = _imported(name) if ":" in name else _registered(name)
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
    outputs = copy.deepcopy(model).eval()(torch.zeros(2, *shape))
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != 2 or outputs.shape[1] < classes:
        raise UserError(
            f"model {name} must give {classes} outputs for each of 2 samples, the logits of the classes, got {found}",
            "end it in torch.nn.Linear(..., classes)",
        )


def _registered(name: str) -> Builder:
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}", f'{nearest(name, MODELS)} Your own: "package.module:function"')
    return MODELS[name]


def _imported(name: str) -> Builder:
    module, function = parts(name)
    try:
        builder = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"model {name!r} cannot be imported ({error})",
            'write "package.module:function", where function takes '
            "the shape of one input and the number of classes, and the package is installed or on PYTHONPATH",
        ) from error
    if not callable(builder):
        raise UserError(f"model {name!r} must name a function of (shape, classes), got {type(builder).__name__}")
    found: Builder = builder
    return found
