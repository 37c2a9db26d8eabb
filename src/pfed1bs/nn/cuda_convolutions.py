"""3 x 3 convolutions of all clients on CUDA devices, each with weights of its own, in one launch.

Libraries have kernels for wide layers; narrow ones of many clients fill little of them, as groups of channels or one by
one. Ours take tiles of 16, 32 or 64 channels. Which is faster is measured (lanes.py).
"""

import ctypes

import torch
from torch import Tensor, nn

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.nvrtc import address, launch

TAPS, CHUNK, PITCH = 9, 64, 68  # as in kernels/convolve.cu
BLOCKS = 264  # of threads, so that every multiprocessor of a large device has two
NARROWEST = {
    "convolve": (("OUT", 16), ("PIXELS", 64), ("EACH", 4), ("DEPTH", 1)),
    "correlate": (("OUT", 16), ("COLUMNS", 32)),
}


class Convolution(ctypes.Structure):
    """The arguments of `convolve`, as kernels/convolve.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "y")),
        *((name, ctypes.c_longlong) for name in ("w_step", "bias_step")),
        *((name, ctypes.c_int) for name in ("in_", "out", "height", "width", "pictures")),
        *((name, ctypes.c_int) for name in ("out_tiles", "pixel_tiles", "back")),
    ]


class Correlation(ctypes.Structure):
    """The arguments of `correlate`, as kernels/convolve.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "g", "parts")),
        *((name, ctypes.c_int) for name in ("clients", "in_", "out", "height", "width", "pictures")),
        *((name, ctypes.c_int) for name in ("out_tiles", "column_tiles", "splits")),
    ]


def known(layer: nn.Module) -> bool:
    """Whether the kernels can compute a layer."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (3, 3)
        and layer.stride == layer.padding == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    )


def usable(x: Tensor, w: Tensor, bias: Tensor | None = None) -> bool:
    """Whether the kernels take inputs (K, B, in, H, W), weights (K, out, in, 3, 3) and biases (K, out)."""
    if x.dim() != 5 or not x.dtype == w.dtype == torch.float32 or not w[0].is_contiguous():
        return False
    if bias is not None and (bias.dtype != torch.float32 or not bias[0].is_contiguous()):
        return False
    sizes = x[0].numel(), x[0, :, 0].numel() * w.shape[1], w[0].numel()
    if max(sizes) >= 1 << 31 or not cuda.usable(x):  # the kernels count the numbers of a client in 31 bits
        return False
    return all(nvrtc.trouble("convolve.cu", *kernel) is None for kernel in NARROWEST.items())


def convolved(x: Tensor, w: Tensor, bias: Tensor | None = None, back: bool = False) -> Tensor:
    """Outputs (K, B, out, H, W) of inputs (K, B, in, H, W), w (K, out, in, 3, 3) and bias (K, out).

    `back`: the gradient of the inputs, of the gradient of the outputs; w is (K, in, out, 3, 3) then.
    """
    x = x.contiguous()
    clients, pictures, channels, height, width = x.shape
    out, pixels = w.shape[2 if back else 1], pictures * height * width
    tile = _tile(out)
    wide = 256 if tile < 64 else 128
    wide = wide if clients * -(-out // tile) * -(-pixels // wide) >= BLOCKS else 64
    depth, each, tiles = min(channels, 4), 4 if wide == 64 else 8, (-(-out // tile), -(-pixels // wide))
    y = x.new_empty(clients, pictures, out, height, width)
    own = Convolution(
        x=address(x), w=address(w), bias=address(bias), y=address(y), in_=channels, out=out, height=height, width=width,
        w_step=w.stride(0), bias_step=0 if bias is None else bias.stride(0), pictures=pictures, out_tiles=tiles[0],
        pixel_tiles=tiles[1], back=back,
    )  # fmt: skip
    options = (("OUT", tile), ("PIXELS", wide), ("EACH", each), ("DEPTH", depth))
    blocks, room = clients * tiles[0] * tiles[1], depth * TAPS * (wide + tile + 4) * 4
    if blocks:
        launch("convolve.cu", "convolve", options, own, x.device, blocks, shared=room)
    return y


def correlated(x: Tensor, g: Tensor) -> Tensor:
    """The gradient (K, out, in, 3, 3) of the weights, of inputs (K, B, in, H, W) and gradients (K, B, out, H, W)."""
    x, g = x.contiguous(), g.contiguous()
    clients, pictures, channels, height, width = x.shape
    out, columns, chunks = g.shape[2], channels * TAPS, -(-pictures * height * width // CHUNK)
    tile, wide = _tile(out), 32 if columns <= 32 else 48
    tiles = -(-out // tile), -(-columns // wide)
    splits = max(1, min(chunks, -(-2 * BLOCKS // (clients * tiles[0] * tiles[1]))))
    parts = x.new_empty(splits, clients, out, channels, 3, 3)
    own = Correlation(
        x=address(x), g=address(g), parts=address(parts), clients=clients, in_=channels, out=out, height=height,
        width=width, pictures=pictures, out_tiles=tiles[0], column_tiles=tiles[1], splits=splits,
    )  # fmt: skip
    blocks, room = clients * tiles[0] * tiles[1] * splits, ((tile + wide) * PITCH + 2 * wide) * 4
    launch("convolve.cu", "correlate", (("OUT", tile), ("COLUMNS", wide)), own, x.device, blocks, shared=room)
    return parts.sum(0) if splits > 1 else parts[0]


def _tile(out: int) -> int:
    """Output channels of a block of threads."""
    return 16 if out <= 16 else 32 if out <= 32 else 64
