"""The transform, the sketch and packed signs on CUDA devices, in as few passes over memory as there can be."""

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pfed1bs import nvrtc
from pfed1bs.nvrtc import address, launch

PLAIN, WEIGHTS, ROWS, MISFIT, SCRATCH = range(5)  # as in kernels/transform.cu
WORD = 32  # coordinates in one entry of a table
EACH = 32  # floats of a thread
FIRST = 14  # levels of the first pass at most: a tile fills a quarter of a multiprocessor's memory
SMALLEST = 12  # log2 of a tile at least


class Pass(ctypes.Structure):
    """The arguments of a pass, as kernels/transform.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target", "flips", "picks", "v")),
        *((name, ctypes.c_longlong) for name in ("count", "stride")),
        *((name, ctypes.c_int) for name in ("log2", "shift", "n", "m", "live")),
        *((name, ctypes.c_float) for name in ("scale", "gamma")),
    ]


class Bits(ctypes.Structure):
    """The arguments of packing and unpacking, as kernels/bits.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target", "bad")),
        *((name, ctypes.c_longlong) for name in ("rows", "m")),
    ]


@dataclass(frozen=True)
class Stretch:
    """The levels of one pass."""

    shift: int  # the first of them
    levels: int
    tile: int  # log2 of the floats of a block of threads

    @property
    def columns(self) -> int:
        """Log2 of the neighbours that go together; 0: the tile is contiguous."""
        return self.tile - self.levels if self.shift else 0


def stretches(log2: int) -> list[Stretch]:
    """How the levels of a transform of length 2^log2 are cut into passes: one up to 2^14, two up to 2^26."""
    if log2 <= FIRST:
        return [Stretch(0, log2, max(log2, SMALLEST))]
    later = max(5, log2 - FIRST)
    count = 1 if later <= 12 else -(-later // 10)
    cuts, shift = [Stretch(0, log2 - later, log2 - later)], log2 - later
    for i in range(count):
        levels = later // count + (i < later % count)
        cuts.append(Stretch(shift, levels, min(15, max(SMALLEST, levels + 4))))
        shift += levels
    return cuts


def usable(x: Tensor, length: int = 4) -> bool:
    """Whether these kernels take x in transforms of this length; everything else goes through torch."""
    return x.is_cuda and x.dtype in (torch.float32, torch.uint8) and length >= 4 and nvrtc.available()


@dataclass(frozen=True)
class Tables:
    """D and S of a sketch on a device, in the order of weights and in the order in which the last pass needs them."""

    n: int
    m: int
    signs: Tensor | None  # D: packed bits
    rows: Tensor  # S: ascending
    device: torch.device

    @property
    def log2(self) -> int:
        """Of the length of the transform."""
        return (self.n - 1).bit_length()

    @cached_property
    def flips(self) -> tuple[Tensor | None, Tensor | None]:
        """D as words of 32 bits, for the first and for the last pass."""
        if self.signs is None:
            return None, None
        words = torch.zeros(max(1 << self.log2, WORD) // 8, dtype=torch.uint8)
        words[: len(self.signs)] = self.signs
        return self._both(words.view(torch.int32).to(self.device))

    @cached_property
    def picks(self) -> tuple[Tensor, Tensor]:
        """Of every 32 coordinates how many kept ones lie before and which are kept, for the first and the last pass."""
        rows = self.rows.to(self.device)
        starts = torch.arange(0, 1 << self.log2, WORD, dtype=torch.int32, device=self.device)
        rank = torch.searchsorted(rows, starts, out_int32=True)
        one = torch.ones_like(rows)
        kept = torch.zeros_like(starts).index_add_(0, rows >> 5, one << (rows & 31))
        return self._both(torch.stack((rank, kept), 1))

    def _both(self, words: Tensor) -> tuple[Tensor, Tensor]:
        last = stretches(self.log2)[-1]
        if not last.shift:
            return words, words
        return words, words.view(1 << last.levels, -1, *words.shape[1:]).transpose(0, 1).contiguous()


def transform(x: Tensor, out: Tensor, scale: float) -> None:
    """H x times scale into out, which may be x itself; both contiguous."""
    log2 = x.shape[-1].bit_length() - 1
    _run(x, out, out, log2, PLAIN, PLAIN, {"scale": scale})


def project(w: Tensor, tables: Tables) -> Tensor:
    """Phi w, (..., n) -> (..., m)."""
    return _down(w, tables, ROWS, {})


def misfit(w: Tensor, v: Tensor, gamma: float, tables: Tables) -> Tensor:
    """|v| tanh(gamma Phi w) - v, (..., m)."""
    v = v.contiguous() if v.dim() == 1 else v.expand(*w.shape[:-1], tables.m).contiguous()
    return _down(w, tables, MISFIT, {"v": address(v), "stride": tables.m if v.dim() > 1 else 0, "gamma": gamma})


def _down(w: Tensor, tables: Tables, store: int, extra: dict[str, int | float | None]) -> Tensor:
    out = torch.empty(*w.shape[:-1], tables.m, device=w.device)
    fields = {"n": tables.n, "m": tables.m, "scale": tables.m**-0.5, **extra}
    fields |= {"flips": address(tables.flips[0]), "picks": address(tables.picks[1])}
    scratch = _scratch(w, tables)
    _run(w.contiguous(), scratch, out, tables.log2, WEIGHTS, store, fields)
    return out


def lift(u: Tensor, tables: Tables) -> Tensor:
    """Phi^T u, (..., m) -> (..., n)."""
    out = torch.empty(*u.shape[:-1], tables.n, device=u.device)
    fields = {"n": tables.n, "m": tables.m, "scale": tables.m**-0.5}
    fields |= {"flips": address(tables.flips[1]), "picks": address(tables.picks[0])}
    _run(u.contiguous(), _scratch(u, tables), out, tables.log2, ROWS, WEIGHTS, fields)
    return out


def _scratch(x: Tensor, tables: Tables) -> Tensor:
    """Room for the padded rows between two passes."""
    count = 0 if tables.log2 <= FIRST else x.numel() // x.shape[-1] << tables.log2
    return torch.empty(count, device=x.device)


def _run(
    source: Tensor, scratch: Tensor, target: Tensor, log2: int, load: int, store: int, fields: dict[str, object]
) -> None:
    """All passes, from the rows of source through scratch to those of target."""
    rows = source.numel() // source.shape[-1]
    if not rows:
        return
    cuts = stretches(log2)
    for i, cut in enumerate(cuts):
        last = i == len(cuts) - 1
        x, y = source if i == 0 else scratch, target if last else scratch
        steps = {"LOAD": load if i == 0 else PLAIN, "STORE": store if last else SCRATCH}
        aligned = x.data_ptr() % 16 == 0 and (steps["LOAD"] == PLAIN or source.shape[-1] % 4 == 0)
        options = {"TILE": cut.tile, "LEVELS": cut.levels, "COLUMNS": cut.columns, **steps, "ALIGNED": int(aligned)}
        live = -(-source.shape[-1] >> cut.shift) << cut.shift if load == WEIGHTS and i == 1 else 1 << log2
        arguments = Pass(address(x), address(y), count=rows << log2, log2=log2, shift=cut.shift, live=live, **fields)
        blocks = -(-(rows << log2) >> cut.tile)
        shape = {"blocks": blocks, "threads": 1 << cut.tile - 5, "shared": 4 << cut.tile}
        launch("transform.cu", "transform_pass", tuple(options.items()), arguments, source.device, **shape)


def pack(x: Tensor) -> tuple[Tensor, bool]:
    """Bits of x >= 0, shape (..., ceil(m/8)), and whether all of x is finite."""
    m = x.shape[-1]
    out = torch.empty(*x.shape[:-1], (m + 7) // 8, dtype=torch.uint8, device=x.device)
    bad = torch.zeros(1, dtype=torch.int32, device=x.device)
    if out.numel():
        bits = Bits(address(x), address(out), address(bad), x.numel() // m, m)
        launch("bits.cu", "pack_signs", (), bits, x.device, blocks=-(-out.numel() // 256))
    return out, not bool(bad)


def unpack(bits: Tensor, m: int) -> Tensor:
    """+-1 as float32, shape (..., m)."""
    out = torch.empty(*bits.shape[:-1], m, device=bits.device)
    if bits.numel():
        arguments = Bits(address(bits), address(out), None, out.numel() // m, m)
        launch("bits.cu", "unpack_signs", (), arguments, bits.device, blocks=-(-bits.numel() // 256))
    return out
