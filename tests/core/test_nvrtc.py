"""The compiler of GPU kernels where it fails, played by one that is told what to answer."""

import ctypes

import pytest
import torch

from pfed1bs.core import nvrtc


class Compiler:
    """Does nothing and says that all went well, but for one call."""

    def __init__(self, failing):
        self.failing, self.calls = failing, []

    def __getattr__(self, name):
        def call(*given):
            self.calls.append(name)
            if name == "nvrtcGetErrorString":
                return b"NVRTC_ERROR_OUT_OF_MEMORY"
            if name == "nvrtcGetProgramLogSize":
                given[1]._obj.value = 9
            if name == "nvrtcGetProgramLog":
                given[1].value = b"line 3"
            if name == "nvrtcGetCUBINSize":
                given[1]._obj.value = 4
            if name == "nvrtcGetCUBIN":
                ctypes.memmove(given[1], b"code", 4)
            return int(name == self.failing)

        return call


@pytest.fixture
def compiler(monkeypatch):
    def played(failing=None):
        found = Compiler(failing)
        monkeypatch.setattr(nvrtc, "_compiler", lambda: found)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        return found

    return played


def test_the_code_of_a_kernel_is_that_which_the_compiler_wrote(compiler):
    found = compiler()
    assert nvrtc._compiled("bits.cu", (), 0) == b"code" and found.calls[-1] == "nvrtcDestroyProgram"


@pytest.mark.parametrize("call", ["nvrtcCreateProgram", "nvrtcGetCUBINSize", "nvrtcGetCUBIN"])
def test_a_compiler_that_cannot_go_on_is_believed(compiler, call):
    found = compiler(call)
    with pytest.raises(RuntimeError, match="bits.cu: the compiler of GPU kernels says NVRTC_ERROR_OUT_OF_MEMORY"):
        nvrtc._compiled("bits.cu", (), 0)
    assert ("nvrtcDestroyProgram" in found.calls) == (call != "nvrtcCreateProgram")


def test_what_does_not_compile_is_told_with_the_compilers_words(compiler):
    found = compiler("nvrtcCompileProgram")
    with pytest.raises(RuntimeError, match="bits.cu with .*sm_90.* does not compile: line 3"):
        nvrtc._compiled("bits.cu", (), 0)
    assert found.calls[-1] == "nvrtcDestroyProgram"
