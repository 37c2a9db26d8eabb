"""MKL's reproducible mode is on however a program begins, and what is promised is said by name."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from pfed1bs.core import reproducible
from pfed1bs.core.reproducible import AUTO, OFF, TOO_LATE, branch, enable, guarantee
from pfed1bs.runs.environment import environment

SAY = "from pfed1bs.core.reproducible import branch, guarantee; import torch; print(branch(), guarantee().full)"
mkl = pytest.mark.skipif(branch() is None, reason="this torch has no MKL that could be asked")


def told(done):
    """What a process printed, and what it warned of."""
    return done.stdout.split(), done.stderr


@mkl
def test_the_mode_is_on_where_the_package_is_imported_before_torch():
    clean = {name: value for name, value in os.environ.items() if name != reproducible.VARIABLE}
    code = f"import pfed1bs, sys; assert 'torch' not in sys.modules; {SAY}"
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
    assert told(done) == ([str(AUTO), "True"], "")


@mkl
@pytest.mark.parametrize("before", ["import torch", "import torch; torch.randn(9, 9).sum()"])
def test_the_mode_is_on_where_torch_is_imported_first(before, fresh):
    assert told(fresh(f"{before}; import pfed1bs; {SAY}")) == ([str(AUTO), "True"], "")


@mkl
@pytest.mark.parametrize("name, number", [("COMPATIBLE", 3), ("AUTO,STRICT", 2)])
def test_a_mode_that_the_user_chose_stays(name, number, fresh):
    assert told(fresh(f"import pfed1bs; {SAY}", MKL_CBWR=name)) == ([str(number), "True"], "")


@mkl
def test_a_program_in_which_mkl_was_at_work_before_is_warned_once_and_gets_no_promise(fresh):
    work = "import torch; torch.ones(9, 9) @ torch.ones(9, 9); import pfed1bs, pfed1bs.engine.rounds"
    said, warned = told(fresh(f"{work}; {SAY}"))
    assert said == [str(OFF), "False"]
    assert warned.count("RuntimeWarning") == 1 and TOO_LATE in warned


@mkl
def test_the_mode_is_on_in_these_tests():
    enable()
    assert branch() not in (None, OFF) and guarantee().full


def test_the_guarantee_names_the_reason(monkeypatch):
    monkeypatch.setattr(reproducible, "branch", lambda: 10)
    assert str(guarantee()).startswith("full: ") and "MKL in mode AVX2" in str(guarantee())
    monkeypatch.setattr(reproducible, "branch", lambda: OFF)
    assert str(guarantee()).startswith(f"not promised: {TOO_LATE}") and not guarantee().full
    monkeypatch.setattr(reproducible, "branch", lambda: None)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(torch.__config__, "show", lambda: "BLAS_INFO=open, USE_MKL=OFF")
    assert "torch on aarch64 has no MKL that could be asked (its BLAS: open)" in str(guarantee())
    assert "votes and messages of the same weights have the same bits everywhere" in str(guarantee())
    assert "the order of sums on cuda may change" in str(guarantee("cuda"))


def test_the_record_of_a_run_names_the_guarantee():
    assert environment("cpu")["bits"] == str(guarantee())
