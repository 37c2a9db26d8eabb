"""How fast the kernels are: times, and ratios to a memory copy that is measured in the same breath."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from pfed1bs.core.rng import stream
from pfed1bs.core.sketch import gaussian, srht
from pfed1bs.core.transform import hadamard
from pfed1bs.core.votes import pack, vote
from pfed1bs.runs.environment import cpuinfo, processor

Row = dict[str, str | int | float | None]
Call = Callable[[], object]

SIZES = range(12, 25, 2)  # binary logarithms of the padded length
VOTERS = 20
RATIO = 0.1  # m / n
COLUMNS = ("operation", "size", "threads", "microseconds", "x copy", "x transform", "Gbit/s")
DENSE = 1 << 30  # bytes of the largest dense projection


def kernels(sizes: Sequence[int] = SIZES, seconds: float = 0.1) -> list[Row]:
    """Transform, sketch, adjoint, packing and vote at 2^k coordinates, on one thread and on all.

    Every row holds the best time of calls that alternate with copies of the same bytes for `seconds`, its ratio to the
    copy, and for the sketch its ratio to the transform of the padded length with as warm a result: forward writes
    little, as the transform into `out`; adjoint makes its result anew, as the transform without.
    """
    before = torch.get_num_threads()
    rows = []
    for threads in sorted({1, before}):
        torch.set_num_threads(threads)
        for log2 in sizes:
            rows += [{"threads": threads, "log2": log2, **row} for row in _rows(log2, seconds)]
    torch.set_num_threads(before)
    return rows


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as texts, in columns as COLUMNS has them."""
    found = []
    for row in rows:
        ratios = [row["copy_ratio"], row["transform_ratio"], row["gbit_per_second"]]
        told = [str(row["operation"]), f"2^{row['log2']}", str(row["threads"]), f"{row['microseconds']:.1f}"]
        found.append([*told, *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return found


def keep(found: Mapping[str, object], folder: Path) -> Path:
    """Write what was measured to the file of this processor."""
    path = folder / file_name(processor(), (cpuinfo("model") or ["unknown"])[0])
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def file_name(processor: str, model: str) -> str:
    """Where the rows of a processor are kept; a name without numbers, as virtual machines give it, gets the model's."""
    words = re.sub(r"\(.*?\)|@.*|\b(cpu|processor)\b", " ", processor.lower())
    if not re.search(r"\d", words):
        words += f" model {model}"
    return f"kernels-{'-'.join(re.findall('[a-z0-9]+', words))}.json"


def _rows(log2: int, seconds: float) -> Iterator[Row]:
    size = 1 << log2
    x = torch.randn(size, generator=stream(0, "bench"))
    out, source, target = torch.zeros(size), x.numpy().view(np.uint8), np.zeros(4 * size, np.uint8)
    for operation, call, reference, bits in _operations(size, x, out):
        count = bits // 8 if bits else 4 * size
        copy = lambda count=count: np.copyto(target[:count], source[:count])  # noqa: E731 (bound in the loop)
        copied, taken, *transformed = _fastest([copy, call, *([reference] if reference else [])], seconds)
        yield {
            "operation": operation,
            "microseconds": 1e6 * taken,
            "copy_ratio": taken / copied,
            "transform_ratio": taken / transformed[0] if transformed else None,
            "gbit_per_second": 1e-9 * bits / taken if bits else None,
        }


def _operations(size: int, x: torch.Tensor, out: torch.Tensor) -> Iterator[tuple[str, Call, Call | None, int | None]]:
    """Name, call, the transform to compare it with, packed bits read."""
    n = size - size // 8
    m = max(1, int(RATIO * n))
    phi = srht(n, m, seed=0)
    w, u = x[:n].clone(), x[:m].clone()
    same = x.clone()
    yield "transform", lambda: hadamard(x, out=out), None, None
    yield "in place", lambda: hadamard(same, out=same), None, None
    yield "forward", lambda: phi.forward(w), lambda: hadamard(x, out=out), None
    yield "adjoint", lambda: phi.adjoint(u), lambda: hadamard(x), None
    if 4 * n * m <= DENSE:
        dense = gaussian(n, m, seed=0)
        yield "gaussian", lambda: dense.forward(w), lambda: hadamard(x, out=out), None
    yield "pack", lambda: pack(x), None, None
    messages = [pack(x.roll(voter)) for voter in range(VOTERS)]
    weights = list(range(100, 100 + VOTERS))
    yield "vote", lambda: vote(messages, weights, messages[0], size), None, VOTERS * size


def _fastest(calls: Sequence[Call], seconds: float) -> list[float]:
    """The best time of each call, made in turn until the time is over."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
        rounds += 1
    return best
