"""Steps of many parameters on CUDA devices in one pass over them and in one launch."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from pfed1bs.core import cuda
from pfed1bs.core.nvrtc import address, launch

PARTS, BLOCK = 64, 1024  # parameters of a launch and numbers of a block of threads, as in kernels/steps.cu


class Steps(ctypes.Structure):
    """The arguments of a launch, as kernels/steps.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p * PARTS) for name in ("places", "gradients")),
        *(("counts", ctypes.c_longlong * PARTS), ("firsts", ctypes.c_int * PARTS), ("parts", ctypes.c_int)),
        *((name, ctypes.c_float) for name in ("keep", "scale")),
    ]


def usable(place: Tensor, gradient: Tensor) -> bool:
    """Whether the kernel takes them; everything else goes through torch."""
    same = place.shape == gradient.shape and place.is_contiguous() and gradient.is_contiguous()
    real = place.dtype == gradient.dtype == torch.float32
    return same and real and cuda.usable(place) and cuda.usable(gradient)


def take(places: Sequence[Tensor], gradients: Sequence[Tensor], keep: float, scale: float) -> None:
    """Write keep * place + scale * gradient over every place."""
    for start in range(0, len(places), PARTS):
        some, theirs = places[start : start + PARTS], gradients[start : start + PARTS]
        counts = [place.numel() for place in some]
        *firsts, blocks = accumulate((-(-count // BLOCK) for count in counts), initial=0)
        steps = Steps(parts=len(some), keep=keep, scale=scale)
        steps.places[: len(some)], steps.gradients[: len(some)] = [*map(address, some)], [*map(address, theirs)]
        steps.counts[: len(some)], steps.firsts[: len(some)] = counts, firsts
        if blocks:
            launch("steps.cu", "take_steps", (), steps, some[0].device, blocks)
