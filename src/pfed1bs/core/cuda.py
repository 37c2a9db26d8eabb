"""The transform and the sketch on CUDA devices, in as few passes over memory as there can be."""

import ctypes
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from pfed1bs.core import cuda_bits, nvrtc
from pfed1bs.core.native import plain
from pfed1bs.core.nvrtc import Options, address, launch

PLAIN, WEIGHTS, ROWS, MISFIT, SCRATCH = range(5)  # as in kernels/transform.cu
FIRST = 14  # levels of the first pass at most
SMALLEST, LARGEST = 12, 15  # log2 of a tile: 128 to 1024 threads


class Pass(ctypes.Structure):
    """The arguments of a pass, as kernels/transform.cu has them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("source", "target", "flips", "starts", "at", "to", "v")),
        *((name, ctypes.c_longlong) for name in ("count", "stride")),
        *((name, ctypes.c_int) for name in ("n", "m", "live")),
        *((name, ctypes.c_float) for name in ("scale", "gamma")),
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


@cache
def stretches(log2: int, largest: int = LARGEST) -> list[Stretch]:
    """How the levels of a transform of length 2^log2 are cut into passes: one up to 2^14, two up to 2^26.

    Measured on an H200 (docs/log.md): later passes are fastest with 32 columns, as long as their tiles fit the chip.
    Chips with smaller tiles need a second or a third pass sooner.
    """
    if log2 <= min(FIRST, largest):
        return [Stretch(0, log2, max(log2, SMALLEST))]
    first = min(FIRST, largest, (log2 + 6) // 2, log2 - 5)
    cuts = [Stretch(0, first, max(first, SMALLEST))]
    count = 1 if log2 - first <= largest - 3 else -(-(log2 - first) // 10)
    for i in range(count):
        levels = (log2 - first + i) // count
        cuts.append(Stretch(cuts[-1].shift + cuts[-1].levels, levels, min(largest, max(levels + 5, SMALLEST))))
    return cuts


@cache
def largest(device: torch.device) -> int:
    """Log2 of the largest tile that fits a block of threads: 15 on chips for data centres, 14 or 13 on others."""
    room = nvrtc.shared_memory(device)
    return next((tile for tile in range(LARGEST, SMALLEST, -1) if _shared(tile) <= room), SMALLEST)


def _shared(tile: int) -> int:
    """Bytes of shared memory: a float in every 33rd place is left out."""
    return 4 * 33 << tile - 5


def usable(x: Tensor, length: int = 4) -> bool:
    """Whether these kernels take x in transforms of this length; everything else goes through torch."""
    ours = nvrtc.enabled and x.is_cuda and x.dtype in (torch.float32, torch.uint8) and plain(x)
    return ours and 4 <= length < 1 << 31 and nvrtc.available()  # the kernels count the weights of a row in 31 bits


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; nobody waits until it is there."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def recording(device: torch.device) -> bool:
    """Whether what the device is told now goes into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Picks:
    """The coordinates that S keeps, in the order of the tiles of a pass."""

    starts: Tensor  # where the part of every tile begins, and where the last one ends
    at: Tensor  # (m,) coordinates
    to: Tensor  # (m,) their places among the m


@dataclass(frozen=True)
class Tables:
    """D and S of a sketch on a device, as the first and the last pass need them."""

    n: int
    m: int
    signs: Tensor | None  # D: packed bits
    rows: Tensor  # S: ascending
    device: torch.device
    keys: tuple[int, int] | None = None  # of the generator, for D and S, which a GPU draws itself; None: sent to it

    @property
    def log2(self) -> int:
        """Of the length of the transform."""
        return (self.n - 1).bit_length()

    @cached_property
    def cuts(self) -> list[Stretch]:
        """The passes."""
        return stretches(self.log2, largest(self.device))

    @cached_property
    def entering(self) -> Tensor | None:
        """D for the weights on their way in: 32 bits for every thread of the first pass."""
        return self._flips(self.cuts[0], WEIGHTS, SCRATCH)

    @cached_property
    def leaving(self) -> Tensor | None:
        """D for the weights on their way out, by the threads of the last pass."""
        return self._flips(self.cuts[-1], PLAIN if self.cuts[-1].shift else ROWS, WEIGHTS)

    def _flips(self, cut: Stretch, load: int, store: int) -> Tensor | None:
        if self.signs is None:
            return None
        tiles = 1 << max(self.log2 - cut.tile, 0)
        words = torch.empty(tiles << cut.tile - 5, device=self.device)
        arguments = Pass(address(self.drawn[0]), address(words), n=self.n)
        _launch("spread_flips", _options(self.log2, cut, load, store), cut, arguments, self.device, tiles)
        return words

    @cached_property
    def drawn(self) -> tuple[Tensor | None, Tensor]:
        """D and S on the device."""
        if recording(self.device):  # they would be made anew in every replay, in memory of the graph
            raise RuntimeError("a sketch must be on the device before work with it is recorded")
        if self.keys is None or self.log2 > cuda_bits.MOST:
            return None if self.signs is None else sent(self.signs, self.device), sent(self.rows, self.device)
        signs = None if self.signs is None else cuda_bits.signs(self.keys[0], self.n, self.device)
        return signs, cuda_bits.distinct(self.keys[1], 1 << self.log2, self.m, self.device)

    @cached_property
    def first(self) -> Picks:
        """S by the tiles of the first pass."""
        rows = self.drawn[1]
        starts = torch.arange(0, (1 << self.log2) + 1, 1 << min(self.cuts[0].tile, self.log2), device=self.device)
        return Picks(torch.searchsorted(rows, starts, out_int32=True), rows, rows)

    @cached_property
    def last(self) -> Picks:
        """S by the tiles of the last pass."""
        cut, rows = self.cuts[-1], self.first.at
        if not cut.shift:
            return self.first
        tiles, order = ((rows & (1 << cut.shift) - 1) >> cut.columns).sort(stable=True)
        starts = torch.arange((1 << cut.shift - cut.columns) + 1, device=self.device)
        return Picks(torch.searchsorted(tiles, starts, out_int32=True), rows[order], order.int())

    def parts(self) -> list[Tensor]:
        """All that the passes read."""
        flips = [words for words in (self.entering, self.leaving) if words is not None]
        return [*flips, *(part for picks in (self.first, self.last) for part in (picks.starts, picks.at, picks.to))]

    def fill(self, other: "Tables") -> None:
        """Take over what those of another sketch of the same size hold."""
        for own, new in zip(self.parts(), other.parts(), strict=True):
            own.copy_(new)


def transform(x: Tensor, out: Tensor, scale: float) -> None:
    """H x times scale into out, which may be x itself; both contiguous."""
    log2 = x.shape[-1].bit_length() - 1
    _run(x, out, out, stretches(log2, largest(x.device)), (PLAIN, PLAIN), {"scale": scale})


def project(w: Tensor, tables: Tables) -> Tensor:
    """Phi w, (..., n) -> (..., m)."""
    return _down(w, tables, ROWS, {})


def misfit(w: Tensor, v: Tensor, gamma: float, tables: Tables) -> Tensor:
    """|v| tanh(gamma Phi w) - v, (..., m)."""
    v = v.contiguous() if v.dim() == 1 else v.expand(*w.shape[:-1], tables.m).contiguous()
    return _down(w, tables, MISFIT, {"v": address(v), "stride": tables.m if v.dim() > 1 else 0, "gamma": gamma})


def _down(w: Tensor, tables: Tables, store: int, more: dict[str, object]) -> Tensor:
    out = torch.empty(*w.shape[:-1], tables.m, device=w.device)
    fields = {**_fields(tables, tables.last), "flips": address(tables.entering), **more}
    _run(w.contiguous(), _scratch(w, tables), out, tables.cuts, (WEIGHTS, store), fields)
    return out


def lift(u: Tensor, tables: Tables) -> Tensor:
    """Phi^T u, (..., m) -> (..., n)."""
    out = torch.empty(*u.shape[:-1], tables.n, device=u.device)
    fields = {**_fields(tables, tables.first), "flips": address(tables.leaving)}
    _run(u.contiguous(), _scratch(u, tables), out, tables.cuts, (ROWS, WEIGHTS), fields)
    return out


def _fields(tables: Tables, picks: Picks) -> dict[str, object]:
    lists = {name: address(getattr(picks, name)) for name in ("starts", "at", "to")}
    return {"n": tables.n, "m": tables.m, "scale": tables.m**-0.5, **lists}


def _scratch(x: Tensor, tables: Tables) -> Tensor:
    """Room for the padded rows between two passes."""
    count = 0 if len(tables.cuts) == 1 else x.numel() // x.shape[-1] << tables.log2
    return torch.empty(count, device=x.device)


def _run(
    source: Tensor,
    scratch: Tensor,
    target: Tensor,
    cuts: list[Stretch],
    ends: tuple[int, int],
    fields: dict[str, object],
) -> None:
    """All passes, from the rows of source through scratch to those of target; `ends` are the first LOAD, last STORE."""
    width = source.shape[-1]
    rows, log2 = source.numel() // width, sum(cut.levels for cut in cuts)
    for i, cut in enumerate(cuts if rows else []):
        last = i == len(cuts) - 1
        x, y = source if i == 0 else scratch, target if last else scratch
        load, store = ends[0] if i == 0 else PLAIN, ends[1] if last else SCRATCH
        aligned = x.data_ptr() % 16 == 0 and (load == PLAIN or width % 4 == 0)
        options = _options(log2, cut, load, store, aligned, full=ends[0] != WEIGHTS or i != 1)
        live = -(-width >> cut.shift) << cut.shift
        arguments = Pass(address(x), address(y), count=rows << log2, live=live, **fields)
        _launch("transform_pass", options, cut, arguments, source.device, -(-(rows << log2) >> cut.tile))


@cache
def _options(log2: int, cut: Stretch, load: int, store: int, aligned: bool = False, full: bool = True) -> Options:
    """What a pass is compiled with."""
    shape = {"LOG2": log2, "SHIFT": cut.shift, "LEVELS": cut.levels, "TILE": cut.tile, "COLUMNS": cut.columns}
    return (*shape.items(), ("LOAD", load), ("STORE", store), ("ALIGNED", int(aligned)), ("ALL", int(full)))


def _launch(kernel: str, options: Options, cut: Stretch, arguments: Pass, device: torch.device, blocks: int) -> None:
    launch("transform.cu", kernel, options, arguments, device, blocks, 1 << cut.tile - 5, _shared(cut.tile))
