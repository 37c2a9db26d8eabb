"""Batch normalisation of all clients on CUDA devices in one launch, with the ReLU and the pooling that follow it."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.nvrtc import address, launch

VALUES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")  # of torch's layer, in our order
USUAL = (("THREADS", 128), ("POOL", 2), ("RELU", 1))  # is tried first
LARGE = 4096  # numbers of a channel from which on it gets more threads


class Normalisation(ctypes.Structure):
    """The arguments of both kernels, as kernels/normalise.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "g", "y", "to_x", "weight", "bias")),
        *((name, ctypes.c_void_p) for name in ("running_mean", "running_var", "batches")),
        *((name, ctypes.c_void_p) for name in ("mean", "rate", "to_weight", "to_bias")),
        *((f"{name}_step", ctypes.c_longlong) for name in ("weight", "bias", "mean", "var", "batches")),
        *((name, ctypes.c_float) for name in ("eps", "momentum")),
        *((name, ctypes.c_int) for name in ("channels", "height", "width", "pictures", "training")),
    ]


@dataclass(frozen=True)
class Layer:
    """A normalisation of all clients and what follows it."""

    weight: Tensor  # (K, C), as are the next three
    bias: Tensor
    running_mean: Tensor  # written over in training
    running_var: Tensor
    batches: Tensor  # (K,): counted in training
    eps: float
    momentum: float
    training: bool
    pool: int  # 2: the largest of every 2 x 2 pixels goes on; 1: all do
    relu: bool


def known(layer: nn.Module) -> bool:
    """Whether the kernels can compute a layer."""
    own = type(layer) is nn.BatchNorm2d and layer.affine and layer.track_running_stats
    return bool(own) and layer.momentum is not None


def halves(layer: nn.Module) -> bool:
    """Whether a layer is the pooling that the kernels can compute."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return [size if isinstance(size, tuple) else (size, size) for size in sizes] == [(2, 2), (2, 2), (0, 0), (1, 1)]


def usable(x: Tensor, layer: Layer) -> bool:
    """Whether the kernels take contiguous inputs (K, B, C, H, W) and the values of a layer."""
    if x.dim() != 5 or x[0].numel() >= 1 << 31:  # the kernels count the numbers of a client in 31 bits
        return False
    rows = layer.weight, layer.bias, layer.running_mean, layer.running_var
    plain = x.is_contiguous() and all(value[0].is_contiguous() for value in rows)
    if not plain or any(value.dtype != torch.float32 for value in (x, *rows)) or layer.batches.dtype != torch.int64:
        return False
    _, pictures, _, height, width = x.shape
    enough = pictures * height * width > layer.training and min(height, width) >= layer.pool  # else torch complains
    kernels = ("normalise", "normalise_back")
    return enough and cuda.usable(x) and all(nvrtc.trouble("normalise.cu", kernel, USUAL) is None for kernel in kernels)


def normalised(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Outputs (K, B, C, H / pool, W / pool), and what the way back needs; running statistics are written over."""
    clients, pictures, channels, height, width = x.shape
    y = x.new_empty(clients, pictures, channels, height // layer.pool, width // layer.pool)
    kept = x.new_empty(2, clients, channels)
    own = _arguments(x, layer, kept)
    own.y = address(y)
    _launch("normalise", own, x, layer, shared=12)
    return y, kept


def differentiated(x: Tensor, g: Tensor, layer: Layer, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs, weights and biases, of inputs and contiguous gradients of the outputs."""
    to_x, to_weight, to_bias = torch.empty_like(x), torch.empty_like(kept[0]), torch.empty_like(kept[0])
    own = _arguments(x, layer, kept)
    own.g, own.to_x, own.to_weight, own.to_bias = map(address, (g, to_x, to_weight, to_bias))
    _launch("normalise_back", own, x, layer, shared=8)
    return to_x, to_weight, to_bias


def _arguments(x: Tensor, layer: Layer, kept: Tensor) -> Normalisation:
    _, pictures, channels, height, width = x.shape
    return Normalisation(
        x=address(x), weight=address(layer.weight), bias=address(layer.bias), running_mean=address(layer.running_mean),
        running_var=address(layer.running_var), batches=address(layer.batches), mean=address(kept[0]),
        rate=address(kept[1]), weight_step=layer.weight.stride(0), bias_step=layer.bias.stride(0),
        mean_step=layer.running_mean.stride(0), var_step=layer.running_var.stride(0),
        batches_step=layer.batches.stride(0), eps=layer.eps, momentum=layer.momentum, channels=channels, height=height,
        width=width, pictures=pictures, training=layer.training,
    )  # fmt: skip


def _launch(kernel: str, own: Normalisation, x: Tensor, layer: Layer, shared: int) -> None:
    """A block of threads for every channel, with so many bytes for each thread."""
    threads = 512 if x[0, :, 0].numel() >= LARGE else 128
    options, blocks = (("THREADS", threads), ("POOL", layer.pool), ("RELU", int(layer.relu))), x.shape[0] * x.shape[2]
    launch("normalise.cu", kernel, options, own, x.device, blocks, threads, shared * threads)
