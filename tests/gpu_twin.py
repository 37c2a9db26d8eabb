"""The GPU kernels on the processor: the same sources through a C compiler, a thread of the system for one of the GPU.

What is tested is the arithmetic and every index of the kernels and of the code that launches them. What is not: speed,
and memory that a GPU would not let us read.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from pfed1bs.core.nvrtc import SOURCES

COMPILER = shutil.which("cc") or shutil.which("gcc")

BEFORE = r"""
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
typedef struct { float x, y, z, w; } float4;
static _Thread_local int twin_thread;
static _Thread_local long long twin_block;
static void *twin_shared;
static pthread_barrier_t twin_barrier;
#define DEVICE static inline
#define KERNEL_OF(threads) static void
#define KERNEL_WITH(threads, blocks) static void
#define CONSTANT const
#define SHARED(type, name) type *name = twin_shared
#define THREAD twin_thread
#define BLOCK twin_block
#define SYNCHRONISE pthread_barrier_wait(&twin_barrier)
#define POPCOUNT(x) __builtin_popcount(x)
#define COPY(count, to, from, known) \
    for (int copied = 0; copied < (count); copied++) (to)[copied] = (known) ? (from)[copied] : 0
#define COPIED
#define ATOMIC_ADD(place, value) __atomic_fetch_add(place, value, __ATOMIC_RELAXED)
#define ATOMIC_MIN(place, value) twin_min(place, value)
static inline void twin_min(int *place, int value) {
    int old = __atomic_load_n(place, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(place, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
"""

AFTER = """
static const void *twin_arguments;
static long long twin_blocks;
static void *twin_work(void *thread) {
    twin_thread = (int)(size_t)thread;
    for (twin_block = 0; twin_block < twin_blocks; twin_block++) {
        KERNEL(*(const ARGUMENTS *)twin_arguments);
        pthread_barrier_wait(&twin_barrier);
    }
    return NULL;
}
void twin(const void *arguments, long long blocks, int threads, int shared) {
    pthread_t *all = malloc(threads * sizeof *all);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    twin_arguments = arguments, twin_blocks = blocks, twin_shared = malloc(shared + 1);
    memset(twin_shared, 0xff, shared); /* no numbers, so that what was not set is seen */
    pthread_barrier_init(&twin_barrier, NULL, threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(all + i, &small, twin_work, (void *)(size_t)i)) abort();
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    pthread_barrier_destroy(&twin_barrier);
    free(twin_shared), free(all);
}
"""


def launch(source, kernel, options, arguments, device, blocks, threads=256, shared=0):
    """In place of nvrtc.launch, for tensors on the CPU."""
    assert device.type == "cpu"
    twin = _library(source, kernel, options, type(arguments).__name__).twin
    twin(ctypes.byref(arguments), ctypes.c_longlong(blocks), threads, shared)


@cache
def _library(source, kernel, options, arguments):
    folder = Path(tempfile.mkdtemp(prefix="pfed1bs-twin"))
    (folder / "twin.c").write_text(f"{BEFORE}\n{(SOURCES / source).read_text()}\n{AFTER}")
    names = [*options, ("KERNEL", kernel), ("ARGUMENTS", arguments)]
    flags = [
        "-O0",  # compiled often and run shortly
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        "-pthread",
        *(f"-D{name}={value}" for name, value in names),
    ]
    subprocess.run([COMPILER, *flags, "-o", "twin.so", "twin.c", "-lm"], cwd=folder, check=True)
    library = ctypes.CDLL(folder / "twin.so")
    shutil.rmtree(folder)
    return library
