"""Types of the native kernels; arrays are passed as the address of their first element."""

from typing_extensions import Buffer

def isa() -> str:
    """The instruction set in use: avx512, avx2 or generic."""

def use(name: str) -> bool:
    """Switch to an instruction set; False if this processor or build does not have it."""

def fit(size: int) -> None:
    """Cut rows for a second-level cache of so many bytes, for that of this processor if 0; tests take others."""

def memory(size: int) -> Buffer:
    """At least `size` bytes on huge pages, not cleared; a later call gets them again once the buffer is gone."""

def transform(src: int, dst: int, rows: int, log2: int, scale: float, threads: int) -> None:
    """Scale * H x for every row; dst may be src."""

def blocks(src: int, dst: int, log2: tuple[int, ...], scales: tuple[float, ...], threads: int) -> None:
    """Transforms of neighbouring blocks of one row, one after the other; dst may be src."""

def project(
    src: int, dst: int, signs: int, index: int, rows: int, n: int, log2: int, m: int, scale: float, threads: int
) -> None:
    """The sketch of every row; signs is 0 where there are none."""

def lift(
    src: int, dst: int, signs: int, index: int, rows: int, n: int, log2: int, m: int, scale: float, threads: int
) -> None:
    """The transpose of project."""

def pack(src: int, dst: int, rows: int, m: int, threads: int) -> bool:
    """Write the bits of x >= 0; whether all numbers were finite."""

def unpack(src: int, dst: int, rows: int, m: int, threads: int) -> None:
    """Write +-1 for every bit."""

def count(messages: tuple[int, ...], weights: tuple[int, ...], counters: int, wide: bool, m: int, threads: int) -> None:
    """Add the weights of the messages to the counters (int64 if wide, else int32) of their 1 bits."""

def weigh(messages: tuple[int, ...], shares: tuple[float, ...], sums: int, m: int, threads: int) -> None:
    """Add the shares of the messages, with a minus where their bits are 0, to sums in double, in their order."""

def decide(counters: int, previous: int, dst: int, wide: bool, total: int, m: int, threads: int) -> int:
    """Write the majority; the number of ties."""

def words(key: int, start: int, count: int, dst: int) -> None:
    """SplitMix64 with random access (rng.words)."""

def distinct(key: int, log2: int, count: int, dst: int) -> None:
    """The first `count` different candidates (rng.distinct), ascending."""

def largest(src: int, dst: int, rows: int, n: int, count: int) -> None:
    """Write every row with all but its `count` largest magnitudes set to 0."""

def crc32(data: Buffer, crc: int = 0) -> int:
    """The CRC-32 of zlib.crc32, which may go on from that of what came before."""

def finite(src: int, count: int) -> bool:
    """Whether none of these floats is NaN or infinite."""

def opened(data: Buffer, crc: int, dst: int) -> tuple[int, bool]:
    """Copy floats to dst; the CRC-32 that goes on from crc, and whether all of them are finite."""

def accumulate(total: int, x: int, share: float, count: int, threads: int) -> bool:
    """Add share times each float to the doubles of the total, with one rounding; False if this processor cannot."""

def sealed(head: Buffer, pieces: tuple[Buffer, ...], floats: int) -> bytes | None:
    """The head, the CRC-32 of all the rest in four bytes, and the pieces, of which there are at most 64.

    None, if a piece whose bit in `floats` is set holds a float that is NaN or infinite.
    """
