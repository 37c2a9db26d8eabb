"""Which bits are promised here: MKL is asked for its reproducible mode, and what holds is said by name.

Left alone, MKL chooses its code by the alignment of its operands. On some processors the choice changes bits, so that a
client would get other weights as a row of a stack than alone. In its reproducible mode (MKL_CBWR) it does not.
Nothing here loads torch by being imported.
"""

import ctypes
import os
import platform
import re
import sys
import warnings
from dataclasses import dataclass

VARIABLE = "MKL_CBWR"  # MKL reads it at its first call; any branch that it names is reproducible
BRANCHES = {2: "AUTO", 3: "COMPATIBLE", 9: "AVX", 10: "AVX2", 12: "AVX512", 14: "AVX512_E1"}  # of mkl_types.h
OFF, AUTO = 1, 2
EVERYWHERE = "sketches, votes and messages of the same weights have the same bits everywhere"
TOO_LATE = (
    "MKL was at work before pfed1bs was imported, so its reproducible mode cannot be turned on: "
    f"import pfed1bs before torch computes anything, or set {VARIABLE}=AUTO in the environment"
)


@dataclass(frozen=True)
class Guarantee:
    """Whether a client's bits depend on its row, its address and the number of threads, and why."""

    full: bool
    why: str

    def __str__(self) -> str:
        """One line for the record of a run."""
        if self.full:
            return f"full: a client's bits depend on no other client, no address, no number of threads ({self.why})"
        return f"not promised: {self.why}; {EVERYWHERE}"


def enable() -> None:
    """Turn MKL's reproducible mode on, unless the user has chosen one; warn if it is too late for that."""
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = "AUTO"  # also for processes that are started from here
    if branch() == OFF:  # torch is loaded and has asked MKL something, but perhaps for no result yet
        _mkl("mkl_serv_cbwr_set", AUTO)
        if branch() == OFF:
            warnings.warn(f"results may depend on the number of threads: {TOO_LATE}", RuntimeWarning, stacklevel=3)


def branch() -> int | None:
    """The number of MKL's branch, OFF outside its reproducible mode; None where there is no MKL that could be asked."""
    return _mkl("mkl_serv_cbwr_get", 1)


def guarantee(device: str = "cpu") -> Guarantee:
    """What holds for results computed on a kind of device."""
    if device != "cpu":
        return Guarantee(False, f"the order of sums on {device} may change")
    from torch import __config__ as built

    found = branch()
    if found is None:
        blas = re.search(r"BLAS_INFO=(\w+)", built.show())
        name = blas[1] if blas else "unknown"
        return Guarantee(False, f"torch on {platform.machine()} has no MKL that could be asked (its BLAS: {name})")
    return Guarantee(found != OFF, TOO_LATE if found == OFF else f"MKL in mode {BRANCHES.get(found, found)}")


def _mkl(function: str, value: int) -> int | None:
    """Call a function of the MKL inside torch; None if torch is not loaded, or shows no such function."""
    loaded = sys.modules.get("torch._C")
    call = getattr(ctypes.CDLL(loaded.__file__), function, None) if loaded is not None and loaded.__file__ else None
    return None if call is None else int(call(value))
