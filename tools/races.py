"""The native kernels from several threads at once, for the thread sanitizer (`make threads`); prints what was done.

It needs no torch: arrays of NumPy, and a pool of plain threads (tools/pool.c) where torch's would be.
"""

import sys
import threading

import numpy as np

sys.path.insert(0, sys.argv[1])  # where the kernels are that were built with the sanitizer
import _fht

ROUNDS, CALLERS, THREADS = 12, 4, 3


def caller(number: int) -> None:
    """Everything that the kernels do, with other sizes than the other callers."""
    chance = np.random.default_rng(number)
    for _ in range(ROUNDS):
        log2 = int(chance.integers(10, 19))
        n, rows = (1 << log2) - 3, int(chance.integers(1, 4))
        m = n // 7
        w, out = chance.standard_normal((rows, n), np.float32), np.empty((rows, m), np.float32)
        index, signs = np.empty(m, np.int32), chance.integers(0, 256, n // 8 + 1, np.uint8)
        _fht.distinct(number, log2, m, index.ctypes.data)
        at = (signs.ctypes.data, index.ctypes.data)
        _fht.project(w.ctypes.data, out.ctypes.data, *at, rows, n, log2, m, m**-0.5, THREADS)
        back = np.empty(rows * n + 3, np.float32)
        _fht.lift(out.ctypes.data, back.ctypes.data, *at, rows, n, log2, m, m**-0.5, THREADS)
        x = chance.standard_normal((rows, 1 << log2), np.float32)
        _fht.transform(x.ctypes.data, x.ctypes.data, rows, log2, 1.0, THREADS)
        packed = np.empty((rows, (m + 7) // 8), np.uint8)
        assert _fht.pack(out.ctypes.data, packed.ctypes.data, rows, m, THREADS)
        _fht.unpack(packed.ctypes.data, out.ctypes.data, rows, m, THREADS)
        counters, total = np.zeros(m, np.int64), np.zeros(m)
        _fht.count(tuple(row.ctypes.data for row in packed), (5,) * rows, counters.ctypes.data, True, m, THREADS)
        _fht.decide(counters.ctypes.data, packed.ctypes.data, packed.ctypes.data, True, 5 * rows, m, THREADS)
        _fht.accumulate(total.ctypes.data, out.ctypes.data, 0.5, m, THREADS)
        memory = _fht.memory(int(chance.integers(1, 80)) << 20)
        assert _fht.crc32(bytes(memoryview(memory)[:1000])) >= 0


def main() -> None:
    """All callers at once."""
    callers = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    print(f"{CALLERS} callers, {ROUNDS} rounds each, {THREADS} threads: no race was seen")


if __name__ == "__main__":
    main()
