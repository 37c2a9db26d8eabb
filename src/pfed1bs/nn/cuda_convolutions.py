"""3 x 3 convolutions of all clients on CUDA devices, each with weights of its own, in one launch.

Libraries have kernels for wide layers; narrow ones of many clients fill little of them, as groups of channels or one by
one. Ours take patches of 2 x 4 pixels, or small pictures whole, of a few channels. Which is faster is measured
(lanes.py).
"""

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pfed1bs.core import cuda, nvrtc
from pfed1bs.core.nvrtc import Options, address, launch

TAPS, THREADS, LANES = 9, 128, 8  # as in kernels/convolve.cu
PROCESSORS = 132  # of a large device
BLOCKS = 3 * PROCESSORS  # of threads, where there is work for so many
ROOM = 220_000  # bytes of shared memory of a multiprocessor, for the four or five blocks that its registers are for
SMALLEST = (("HEIGHT", 1), ("WIDTH", 1), ("TALL", 1), ("ACROSS", 1), ("DOWN", 1))
NARROWEST = {
    "convolve": (*SMALLEST, ("GROUPS", 1), ("OUTS", 2), ("DEPTH", 1)),
    "correlate": (*SMALLEST, ("OUT_LANES", 1), ("IN_LANES", 1)),
}


class Convolution(ctypes.Structure):
    """The arguments of `convolve`, as kernels/convolve.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "y")),
        *((name, ctypes.c_longlong) for name in ("w_step", "bias_step")),
        *((name, ctypes.c_int) for name in ("in_", "out", "pictures")),
        *((name, ctypes.c_int) for name in ("out_tiles", "column_tiles", "bands", "back")),
    ]


class Correlation(ctypes.Structure):
    """The arguments of `correlate`, as kernels/convolve.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "g", "parts")),
        *((name, ctypes.c_int) for name in ("clients", "in_", "out", "pictures")),
        *((name, ctypes.c_int) for name in ("out_tiles", "in_tiles", "column_tiles", "bands", "splits")),
    ]


@dataclass(frozen=True)
class Bands:
    """How patches of `tall` x 4 pixels cover pictures: bands of across x down, which blocks of threads work on."""

    height: int
    width: int
    tall: int
    across: int
    down: int

    @classmethod
    def of(cls, height: int, width: int, patches: int) -> "Bands":
        """Bands of at most so many patches of 2 x 4 pixels; pictures within 4 x 4 are patches of their own."""
        tall = height if max(height, width) <= 4 else 2
        strips, steps = -(-width // 4), -(-height // tall)
        across = -(-strips // -(-strips // patches))  # as even as can be
        down = patches // across
        down = down // steps * steps if down >= steps else -(-steps // -(-steps // down))
        return cls(height, width, tall, across, down)

    @property
    def whole(self) -> bool:
        """Whether a patch is a picture."""
        return self.height <= self.tall and self.width <= 4

    @property
    def columns(self) -> int:
        """Bands side by side."""
        return -(-self.width // (4 * self.across))

    def count(self, pictures: int) -> int:
        """Bands below each other."""
        return -(-pictures * -(-self.height // self.tall) // self.down)

    def plane(self, halo: bool) -> int:
        """Numbers of a channel in shared memory, as PLANE has it."""
        steps = -(-self.height // self.tall)
        aligned = self.down % steps == 0 or steps % self.down == 0
        rows = self.down * self.tall + (self.down - 1 if aligned else self.down + steps - 2) // steps
        pitch = 4 * self.across + ((8 if self.across == 4 else 4) if halo else 0)
        return ((rows + 2 * halo) * pitch // 4 + halo | 1) * 4

    @property
    def options(self) -> Options:
        """The definitions in front of the kernels."""
        sizes = self.height, self.width, self.tall, self.across, self.down
        return tuple(zip(("HEIGHT", "WIDTH", "TALL", "ACROSS", "DOWN"), sizes, strict=True))


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
    if x.dim() != 5 or 0 in x.shape[3:] or not x.dtype == w.dtype == torch.float32 or not w[0].is_contiguous():
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
    x = _aligned(x)
    clients, pictures, channels, height, width = x.shape
    out = w.shape[2 if back else 1]
    outs = 4 if max(height, width) <= 4 else 8
    while True:
        groups = next(count for count in (1, 2, 4) if count == 4 or count * outs >= out)
        bands = Bands.of(height, width, THREADS // groups)
        tiles = -(-out // (groups * outs)), bands.columns, bands.count(pictures)
        blocks = clients * math.prod(tiles)
        if blocks >= BLOCKS or outs * bands.tall * min(width, 4) <= 16 or outs == 2:
            break
        outs //= 2  # less for a thread, and more threads
    each = 8 * (bands.plane(not bands.whole) + TAPS * (groups * outs + 4))  # bytes of a channel, now and next
    depth = max(1, min(channels, 8, ROOM // (4 if outs * bands.tall > 8 else 5) // each))
    y = x.new_empty(clients, pictures, out, height, width)
    own = Convolution(
        x=address(x), w=address(w), bias=address(bias), y=address(y), in_=channels, out=out, pictures=pictures,
        w_step=w.stride(0), bias_step=0 if bias is None else bias.stride(0), out_tiles=tiles[0],
        column_tiles=tiles[1], bands=tiles[2], back=back,
    )  # fmt: skip
    options = (*bands.options, ("GROUPS", groups), ("OUTS", outs), ("DEPTH", depth))
    if blocks:
        launch("convolve.cu", "convolve", options, own, x.device, blocks, THREADS, depth * each)
    return y


def correlated(x: Tensor, g: Tensor) -> Tensor:
    """The gradient (K, out, in, 3, 3) of the weights, of inputs (K, B, in, H, W) and gradients (K, B, out, H, W)."""
    x, g = _aligned(x), _aligned(g)
    clients, pictures, channels, height, width = x.shape
    out = g.shape[2]
    lanes = _lanes(-(-out // 4)), _lanes(-(-channels // 2))
    sizes, patches = (4 * lanes[0], 2 * lanes[1]), 8 * THREADS // math.prod(lanes)
    while True:
        bands = Bands.of(height, width, patches)
        room = 8 * (sizes[0] * bands.plane(False) + sizes[1] * bands.plane(not bands.whole))
        if room <= ROOM // 4 or patches == 1:
            break
        patches //= 2
    tiles = -(-out // sizes[0]), -(-channels // sizes[1])
    splits = _splits(clients * math.prod(tiles), bands.columns * bands.count(pictures))
    parts = x.new_empty(splits, clients, out, channels, 3, 3)
    own = Correlation(
        x=address(x), g=address(g), parts=address(parts), clients=clients, in_=channels, out=out, pictures=pictures,
        out_tiles=tiles[0], in_tiles=tiles[1], column_tiles=bands.columns, bands=bands.count(pictures), splits=splits,
    )  # fmt: skip
    options = (*bands.options, ("OUT_LANES", lanes[0]), ("IN_LANES", lanes[1]))
    room = max(room, 4 * sizes[0] * (sizes[1] * TAPS + 1))  # for what is fetched, and for the sums at the end
    launch("convolve.cu", "correlate", options, own, x.device, clients * math.prod(tiles) * splits, THREADS, room)
    return parts.sum(0) if splits > 1 else parts[0]


def _lanes(count: int) -> int:
    """Threads for so many groups of channels: a power of two, at most 8."""
    return min(LANES, 1 << (count - 1).bit_length())


def _splits(tiles: int, chunks: int) -> int:
    """Parts of the chunks of every tile: those that give multiprocessors least; a block costs as much as a chunk."""
    fewest = max(1, min(chunks, -(-BLOCKS // tiles)))
    counts = range(fewest, max(1, min(chunks, 2 * fewest)) + 1)
    return min(counts, key=lambda splits: -(-tiles * splits // PROCESSORS) * (-(-chunks // splits) + 1))


def _aligned(x: Tensor) -> Tensor:
    """The same numbers one after the other, from an address on that four of them can be read from at once."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()
