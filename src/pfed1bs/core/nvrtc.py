"""CUDA kernels compiled when they are first needed, by the compiler that comes with torch, and put on its streams."""

import ctypes
import sys
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SOURCES = Path(__file__).parent / "kernels"
SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_ROOM = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
Options = tuple[tuple[str, int], ...]  # definitions in front of a source

enabled = True  # benchmarks switch it off to compare


@cache
def available() -> bool:
    """Whether kernels can be compiled and loaded for the current CUDA device; if not, says once why."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return False
    if reason := trouble():
        warnings.warn(f"the GPU kernels cannot be used, slower torch operations are ({reason})", stacklevel=2)
    return reason is None


@cache
def trouble(source: str = "bits.cu", kernel: str = "pack_signs", options: Options = ()) -> str | None:
    """Why a kernel, by default one of the simplest, cannot be compiled and loaded for the current CUDA device."""
    try:
        _function(source, kernel, options, torch.cuda.current_device(), 0)
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


def launch(
    source: str,
    kernel: str,
    options: Options,
    arguments: ctypes.Structure,
    device: torch.device,
    blocks: int,
    threads: int = 256,
    shared: int = 0,
) -> None:
    """Put a kernel with `shared` bytes of memory per block on the current stream of the device."""
    function = _function(source, kernel, options, device.index, shared)
    pointers = ctypes.byref(ctypes.c_void_p(ctypes.addressof(arguments)))
    stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(device.index))
    shape = (blocks, 1, 1, threads, 1, 1, shared)
    if device.index == torch.cuda.current_device():
        return _check(_driver().cuLaunchKernel(function, *shape, stream, pointers, None))
    with torch.cuda.device(device):
        _check(_driver().cuLaunchKernel(function, *shape, stream, pointers, None))


def address(x: Tensor | None) -> int | None:
    """Where a tensor lies."""
    return None if x is None else x.data_ptr()


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block of threads may ask a device for."""
    handle, room = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(handle), device.index))
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(room), SHARED_ROOM, handle))
    return room.value


@cache
def _function(source: str, kernel: str, options: Options, device: int, shared: int) -> ctypes.c_void_p:
    """A compiled kernel on a device, with leave to use its shared memory."""
    torch.cuda.synchronize(device)  # makes sure that torch has set up the device
    with torch.cuda.device(device):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(module), _compiled(source, options, device)))
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
        _check(_driver().cuFuncSetAttribute(function, SHARED_LIMIT, shared))
    return function


def _compiled(source: str, options: Options, device: int) -> bytes:
    """The machine code of a source file for a device."""
    nvrtc, program, size = _compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    text = "\n".join((SOURCES / name).read_text() for name in ("cuda.cuh", source))
    major, minor = torch.cuda.get_device_capability(device)
    flags = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{name}={value}" for name, value in options)]
    _told(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), source.encode(), 0, None, None), source)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags))):
            _told(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), source)
            log = ctypes.create_string_buffer(size.value)
            _told(nvrtc.nvrtcGetProgramLog(program, log), source)
            raise RuntimeError(f"{source} with {flags} does not compile: {log.value.decode()}")
        _told(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), source)
        code = ctypes.create_string_buffer(size.value)
        _told(nvrtc.nvrtcGetCUBIN(program, code), source)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def _told(status: int, source: str) -> None:
    """Stop where the compiler says that it could not do something."""
    if status:
        name = _compiler().nvrtcGetErrorString
        name.restype = ctypes.c_char_p
        raise RuntimeError(f"{source}: the compiler of GPU kernels says {name(status).decode()}")


@cache
def _compiler() -> ctypes.CDLL:
    major = str(torch.version.cuda).split(".")[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    beside = sorted(Path(torch.__file__).parent.parent.glob(f"nvidia/*/lib/{name}"))  # where pip puts it
    for place in (name, *map(str, beside)):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise OSError(f"{name} was not found; it comes with torch's CUDA builds from pip")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA driver error {status}: {(text.value or b'unknown').decode()}")
