"""Random projections that every machine builds alike from a seed: forward, adjoint, the penalty and its pull."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import log as ln
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from pfed1bs.core import cuda, cuda_bits, native, rng
from pfed1bs.core.transform import blockwise, butterfly, check_float, linear, padded, recorded
from pfed1bs.core.votes import unpack

# Sketches that somebody still holds, so that two parties of one process draw and place them once.
_alive: WeakValueDictionary[tuple[int, int, int, int, bool, bool], "SRHT"] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Sketch(ABC):
    """A linear map Phi from n weights to m measurements, E |Phi w|^2 = |w|^2; subclasses say how it is applied."""

    n: int
    m: int

    def forward(self, w: Tensor) -> Tensor:
        """Phi w for every row w of shape (..., n); result (..., m)."""
        _check("weights", w, self.n)
        return linear(w, self._project, self._lift)

    def adjoint(self, u: Tensor) -> Tensor:
        """Phi^T u for every row u of shape (..., m); result (..., n)."""
        _check("measurements", u, self.m)
        return linear(u, self._lift, self._project)

    def pull(self, w: Tensor, v: Tensor, gamma: float) -> Tensor:
        """Phi^T (|v| tanh(gamma Phi w) - v): the penalty's gradient (Lemma 2), nothing where v = 0 (no consensus)."""
        return self.adjoint(self.misfit(w, v, gamma))

    def misfit(self, w: Tensor, v: Tensor, gamma: float) -> Tensor:
        """|v| tanh(gamma Phi w) - v, (..., m): what keeps the signs of Phi w from the consensus."""
        _check("consensus", v, self.m)
        q = self.forward(w)
        return torch.addcmul(-v, q.mul_(gamma).tanh_(), v.abs())

    def push(self, w: Tensor, u: Tensor, size: float) -> None:
        """Add size Phi^T u to the rows of w (S, n) in place."""
        for rows, pull in self.lifts(u):
            w[rows].add_(pull, alpha=size)

    def lifts(self, u: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Some rows of u (S, m) and their Phi^T u, a few at a time, to be used while they are still in the cache."""
        step = max(1, torch.get_num_threads()) if u.device.type == "cpu" else len(u)
        for start in range(0, len(u), step):
            rows = slice(start, start + step)
            yield rows, self.adjoint(u[rows])

    def matrix(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The dense Phi (m, n), for tests."""
        return self.forward(torch.eye(self.n, dtype=dtype)).T.contiguous()

    @abstractmethod
    def _project(self, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _lift(self, u: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class SRHT(Sketch):
    """Phi = sqrt(n'/m) S H D P: zero padding P to n', random signs D, orthonormal H, m distinct rows S."""

    rows: Tensor = field(repr=False)  # S: (m,) int32, distinct, ascending
    signs: Tensor | None = field(repr=False)  # D: n packed bits, 1 is +; None leaves it out
    keys: tuple[int, int] | None = None  # of the generator, for D and S
    _placed: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    _tables: dict[torch.device, cuda.Tables] = field(default_factory=dict, repr=False)

    @property
    def padded(self) -> int:
        """n', the length of the transform."""
        return padded(self.n)

    def misfit(self, w: Tensor, v: Tensor, gamma: float) -> Tensor:
        """|v| tanh(gamma Phi w) - v, (..., m); on a GPU while the last pass of Phi w is on its way out."""
        if recorded(w) or not cuda.usable(w, self.padded):
            return super().misfit(w, v, gamma)
        _check("weights", w, self.n)
        _check("consensus", v, self.m)
        return cuda.misfit(w, v, gamma, self.tables(w.device))

    def _project(self, w: Tensor) -> Tensor:
        if native.usable(w):
            return native.project(w.contiguous(), self.m, self.signs, self.rows)
        if cuda.usable(w, self.padded):
            return cuda.project(w, self.tables(w.device))
        signs, rows = self._place(w)
        x = torch.nn.functional.pad(w * signs, (0, self.padded - self.n))
        return butterfly(x, self.m**-0.5).index_select(-1, rows)

    def _lift(self, u: Tensor) -> Tensor:
        if native.usable(u):
            return native.lift(u.contiguous(), self.n, self.signs, self.rows)
        if cuda.usable(u, self.padded):
            return cuda.lift(u, self.tables(u.device))
        signs, rows = self._place(u)
        x = u.new_zeros(*u.shape[:-1], self.padded).index_copy_(-1, rows, u)
        return butterfly(x, self.m**-0.5)[..., : self.n] * signs

    def tables(self, device: torch.device) -> cuda.Tables:
        """D and S on a device, made once."""
        if device not in self._tables:
            self._tables[device] = cuda.Tables(self.n, self.m, self.signs, self.rows, device, self.keys)
        return self._tables[device]

    def _place(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """D as +-1 and the rows on the device of x, made once."""
        where = (x.device, x.dtype)
        if where not in self._placed:
            signs = torch.ones(self.n) if self.signs is None else unpack(self.signs, self.n)
            self._placed[where] = (signs.to(x), self.rows.to(x.device, torch.int64))
        return self._placed[where]


@dataclass(frozen=True, eq=False)
class Gaussian(Sketch):
    """Phi with independent N(0, 1/m) entries: the O(mn) control of the paper's A.3."""

    entries: Tensor = field(repr=False)  # (m, n) float32
    _placed: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    def _project(self, w: Tensor) -> Tensor:
        return _each_row(self._matrix(w), w)

    def _lift(self, u: Tensor) -> Tensor:
        return _each_row(self._matrix(u).T, u)

    def _matrix(self, x: Tensor) -> Tensor:
        """The entries where x is, sent there once: for a model of 200,000 weights they are 15 GiB."""
        where = (x.device, x.dtype)
        if where not in self._placed:
            self._placed[where] = self.entries.to(x)
        return self._placed[where]


def _each_row(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix times every row of x (..., n); on the CPU one after the other, so that none depends on the others."""
    if x.device.type != "cpu":
        return x @ matrix.T
    result = x.new_empty(*x.shape[:-1], len(matrix))
    for row, out in zip(x.reshape(-1, x.shape[-1]), result.view(-1, len(matrix)), strict=True):
        torch.mv(matrix, row, out=out)
    return result


@dataclass(frozen=True)
class Rotation:
    """A seeded orthogonal map of any length m that needs no padding: signs, then a transform of every block.

    The lengths of the blocks are the binary digits of m, largest first.
    """

    m: int
    seed: int
    round: int

    @cached_property
    def signs(self) -> Tensor:
        """(m,) of +-1."""
        return unpack(torch.from_numpy(rng.bits(rng.key(self.seed, rng.ROTATION, self.round), self.m)), self.m)

    def forward(self, q: Tensor) -> Tensor:
        """The rotated rows of q (..., m)."""
        return blockwise(q * self._signs(q), self.sizes)

    def backward(self, r: Tensor) -> Tensor:
        """The inverse, which is the transpose."""
        return blockwise(r, self.sizes) * self._signs(r)

    def _signs(self, x: Tensor) -> Tensor:
        """The signs where x is; a GPU draws them itself."""
        if not cuda.usable(x):
            return self.signs.to(x)
        return unpack(cuda_bits.signs(rng.key(self.seed, rng.ROTATION, self.round), self.m, x.device), self.m)

    @cached_property
    def sizes(self) -> list[int]:
        """Lengths of the blocks."""
        return [1 << i for i in reversed(range(self.m.bit_length())) if self.m >> i & 1]


def srht(n: int, m: int, seed: int, round: int = 0, use_D: bool = True) -> SRHT:  # noqa: N803 (the paper's letter)
    """The subsampled randomised Hadamard transform number `round` of a 64-bit seed (docs/wire.md)."""
    _check_sizes(n, m)
    if m > padded(n):
        raise ValueError(f"m must be at most the padded length {padded(n)}, got {m}; take fewer measurements")
    if hasattr(round, "sketch"):  # a round that stands for many (engine/pending.py)
        return cast(SRHT, round.sketch(n, m, seed, use_D))
    key = (n, m, seed, round, use_D, native.enabled)
    found = _alive.get(key)
    if found is None:
        keys = rng.key(seed, rng.SIGNS, round), rng.key(seed, rng.ROWS, round)
        signs = torch.from_numpy(rng.bits(keys[0], n)) if use_D else None
        found = SRHT(n, m, torch.from_numpy(rng.distinct(keys[1], padded(n), m)), signs, keys)
        _alive[key] = found
    return found


def gaussian(n: int, m: int, seed: int) -> Gaussian:
    """A dense Gaussian projection with the interface of srht; only for small n."""
    _check_sizes(n, m)
    return Gaussian(n, m, torch.randn(m, n, generator=rng.stream(seed, "gaussian")).div_(m**0.5))


def smooth_l1(x: Tensor, gamma: float) -> Tensor:
    """l(x) = log(cosh(gamma x)) / gamma = |x| + (log1p(exp(-2 gamma |x|)) - log 2) / gamma, for every entry.

    The second form never overflows. |x| - ln(2) / gamma <= l(x) <= |x|, and l'(x) = tanh(gamma x).
    """
    return x.abs() + (torch.log1p(torch.exp(-2 * gamma * x.abs())) - ln(2)) / gamma


def penalty(sketch: Sketch, w: Tensor, v: Tensor, gamma: float, masked: bool = True) -> Tensor:
    """The smoothed one-sided penalty of weights w (..., n) against a consensus v (m,); result (...) in float64.

    With q = Phi w, masked: sum_i |v_i| l(q_i) - <v, q>, whose gradient is sketch.pull(w, v, gamma); literal, as printed
    (Eq. 5): sum_i l(q_i) - <v, q>. For v = -1, 0, +1 they differ only where v = 0. As gamma grows the masked one tends
    to 2 g(v, q) = 2 |[v q]_-|_1, the paper's one-sided norm (Eq. 2) without its factor 1/2.
    """
    q = sketch.forward(w)
    l1 = smooth_l1(q, gamma)
    return ((v.abs() * l1 if masked else l1) - v * q).sum(-1, dtype=torch.float64)


def _check_sizes(n: int, m: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}; a model without weights cannot be sketched")
    if n > 1 << 31:
        raise ValueError(f"n must be at most 2^31, got {n}; row numbers have 32 bits")
    if m < 1:
        raise ValueError(f"m must be at least 1, got {m}; raise the ratio m/n")


def _check(name: str, x: Tensor, size: int) -> None:
    check_float(name, x)
    if not x.dim() or x.shape[-1] != size:
        raise ValueError(f"the last axis of the {name} must have length {size}, got shape {tuple(x.shape)}")
