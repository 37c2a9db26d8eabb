"""The fast Walsh-Hadamard transform: kernels for float32 on CPU and GPU, torch elsewhere, the same bits in all."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx

from pfed1bs.core import cuda, native
from pfed1bs.core.native import kernel

__all__ = ["butterfly", "hadamard", "kernel", "linear", "matrix"]

Map = Callable[[Tensor], Tensor]


def hadamard(x: Tensor, out: Tensor | None = None) -> Tensor:
    """The product H x along the last axis, H orthonormal and symmetric in Sylvester order, so that H H x = x.

    Differentiable, also under torch.func; with `out`, which may be x itself, the result is written there instead.
    """
    check_float("x", x)
    n = x.shape[-1] if x.dim() else 0
    if n < 1 or n & (n - 1):
        raise ValueError(f"length of the last axis must be a power of two, got {n}; pad it to {padded(n)}")
    if out is None:
        return linear(x, _orthonormal, _orthonormal)
    _check_out(x, out)
    return _transform(x, out)


def blockwise(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """The product H x for neighbouring blocks of the last axis, each with its own power of two."""
    if recorded(x):
        return torch.cat([hadamard(part.contiguous()) for part in torch.split(x, list(sizes), -1)], -1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if native.usable(x) and x.dtype == torch.float32 and x.numel() == sum(sizes):
        native.blocks(x.contiguous(), out, sizes)
        return out
    for part, room in zip(torch.split(x, list(sizes), -1), torch.split(out, list(sizes), -1), strict=True):
        _transform(part, room)
    return out


def padded(n: int) -> int:
    """The next power of two, n itself if it is one."""
    return 1 << max(n - 1, 0).bit_length()


def butterfly(x: Tensor, scale: float) -> Tensor:
    """H x times scale, H with entries +-1: levels ascending, (a + b, a - b), one multiplication at the end.

    The order is part of the specification: whatever keeps it gives the same float32 bits.
    """
    n, y = x.shape[-1], x
    for level in range(n.bit_length() - 1):
        a, b = y.reshape(*x.shape[:-1], n >> level + 1, 2, 1 << level).unbind(-2)
        y = torch.stack((a + b, a - b), -2)
    return y.reshape(x.shape) * scale


def matrix(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The dense orthonormal Hadamard matrix (n, n), entry (i, j) the parity of i & j; for tests."""
    h = torch.ones(1, 1, dtype=dtype)
    while len(h) < n:
        h = torch.kron(torch.tensor([[1, 1], [1, -1]], dtype=dtype), h)
    return h.div(n**0.5)


def linear(x: Tensor, apply: Map, transpose: Map) -> Tensor:
    """apply(x), differentiable by its transpose; both take any leading axes, which is all that vmap needs."""
    if not recorded(x):
        return apply(x)
    return cast(Tensor, _Linear.apply(x, apply, transpose))  # type: ignore[no-untyped-call]


def recorded(x: Tensor) -> bool:
    """Whether a derivative or a torch.func transform may see x; torch's bookkeeping for it takes 50 microseconds."""
    differentiated = x.requires_grad and torch.is_grad_enabled()
    return differentiated or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, apply: Map, transpose: Map) -> Tensor:
        return apply(x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Map, Map], output: Tensor) -> None:
        ctx.maps = inputs[1:]  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        apply, transpose = ctx.maps  # type: ignore[attr-defined]
        return linear(grad, transpose, apply), None, None

    @staticmethod
    def jvp(ctx: FunctionCtx, tangent: Tensor, *_: None) -> Tensor:
        return linear(tangent, *ctx.maps)  # type: ignore[attr-defined]

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int, None, None], x: Tensor, apply: Map, transpose: Map
    ) -> tuple[Tensor, int]:
        return linear(x.movedim(in_dims[0], 0), apply, transpose), 0


def _orthonormal(x: Tensor) -> Tensor:
    out = native.empty(*x.shape) if native.usable(x) else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _transform(x, out)


def _transform(x: Tensor, out: Tensor) -> Tensor:
    n = x.shape[-1]
    kernels = native if native.usable(x) else cuda if cuda.usable(x, n) else None
    if kernels is None:
        return out.copy_(butterfly(x, n**-0.5))
    if not out.is_contiguous() or out.is_neg():
        return out.copy_(_orthonormal(x))
    x = x.contiguous()
    overlaps = 0 < abs(x.data_ptr() - out.data_ptr()) < 4 * x.numel()  # float32
    kernels.transform(x.clone() if overlaps else x, out, n**-0.5)
    return out


def check_float(name: str, x: Tensor) -> None:
    """Refuse what has no exact specification: integers, half precision, complex numbers."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} must be float32 or float64, got {x.dtype}; convert it with {name}.float()")


def _check_out(x: Tensor, out: Tensor) -> None:
    if x.shape != out.shape or x.dtype != out.dtype or x.device != out.device:
        raise ValueError(
            "out must have the shape, dtype and device of x, "
            f"{tuple(x.shape)}, {x.dtype} and {x.device}, got {tuple(out.shape)}, {out.dtype} and {out.device}; "
            "make it with torch.empty_like(x)"
        )
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        raise ValueError("out cannot be differentiated through; leave it away, or use torch.no_grad()")
