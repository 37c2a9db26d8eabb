/* Native CPU kernels: transform, sketch and its adjoint, packed signs, votes, checksums, the portable generator.
 *
 * Plain C on compiler vectors, compiled for several instruction sets and chosen at run time; arrays come in as
 * addresses, so that nothing but Python is needed to build. Threads are those of the OpenMP pool that torch has
 * already started: a second pool beside it would fight for the cores while the first one spins. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALIGNED __attribute__((aligned(64)))

#include "kernels/types.h"

#define PASTE(a, b) a##_##b
#define JOIN(a, b) PASTE(a, b)
#define NAME(f) JOIN(f, ISA)
#define TEXT(a) #a
#define QUOTE(a) TEXT(a)

#if defined(__x86_64__)
#define ISA avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define WIDTH 16
#define LANES 4
#define RADIX 4
#define BLOCK 12
#include "kernels/isa.h"

#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define LANES 3
#define RADIX 3
#define BLOCK 12
#include "kernels/isa.h"
#endif

#define ISA generic
#define TARGET
#define WIDTH 4
#define LANES 2
#define RADIX 3
#define BLOCK 11
#include "kernels/isa.h"

static const kernels *isa;

#include "kernels/rows.h"
#include "kernels/signs.h"
#include "kernels/checks.h"
#include "kernels/largest.h"

#define AT(address) ((void *)(uintptr_t)(address))

static PyObject *finish(bool done) {
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* What this processor can run, best first. */
static const kernels *const *supported(void) {
    static const kernels *found[4];
    size_t count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512) found[count++] = &kernels_avx512;
    if (avx2) found[count++] = &kernels_avx2;
#endif
    found[count] = &kernels_generic;
    return found;
}

static PyObject *py_isa(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    return PyUnicode_FromString(isa->name);
}

static PyObject *py_use(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (const kernels *const *k = supported(); *k; k++)
        if (!strcmp((*k)->name, name)) {
            isa = *k;
            Py_RETURN_TRUE;
        }
    Py_RETURN_FALSE;
}

static PyObject *py_fit(PyObject *self, PyObject *args) {
    (void)self;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "n", &bytes)) return NULL;
    fit(bytes > 0 ? (size_t)bytes : second_level());
    Py_RETURN_NONE;
}

/* The memory of a long result, which goes to the next one. */
typedef struct {
    PyObject_HEAD
    memory held;
} holder;

static void holder_dealloc(PyObject *self) {
    leave(((holder *)self)->held);
    PyObject_Free(self);
}

static int holder_buffer(PyObject *self, Py_buffer *view, int flags) {
    memory held = ((holder *)self)->held;
    return PyBuffer_FillInfo(view, self, held.data, (Py_ssize_t)held.bytes, 0, flags);
}

static PyBufferProcs holder_procs = {holder_buffer, NULL};
static PyTypeObject holder_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "pfed1bs.core._fht.Memory",
    .tp_basicsize = sizeof(holder),
    .tp_dealloc = holder_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_as_buffer = &holder_procs,
};

static PyObject *py_memory(PyObject *self, PyObject *args) {
    (void)self;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(args, "n", &bytes)) return NULL;
    memory found = take((size_t)bytes);
    if (!found.data) return PyErr_NoMemory();
    holder *h = PyObject_New(holder, &holder_type);
    if (h) h->held = found;
    else leave(found);
    return (PyObject *)h;
}

static PyObject *start(const job *j) {
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(j);
    Py_END_ALLOW_THREADS
    return finish(done);
}

static PyObject *py_transform(PyObject *self, PyObject *args) {
    (void)self;
    job j = {.kind = TRANSFORM};
    double scale;
    unsigned long long src, dst;
    if (!PyArg_ParseTuple(args, "KKnidi", &src, &dst, &j.rows, &j.log2, &scale, &j.threads)) return NULL;
    j.src = AT(src);
    j.dst = AT(dst);
    j.n = (size_t)1 << j.log2;
    j.scale = (float)scale;
    return start(&j);
}

static PyObject *py_blocks(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long src, dst;
    PyObject *sizes, *scales;
    job j = {.kind = TRANSFORM, .rows = 1};
    if (!PyArg_ParseTuple(args, "KKO!O!i", &src, &dst, &PyTuple_Type, &sizes, &PyTuple_Type, &scales, &j.threads))
        return NULL;
    if (PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(scales))
        return PyErr_Format(PyExc_ValueError, "every block needs a scale");
    j.src = AT(src), j.dst = AT(dst);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++, j.src += j.n, j.dst += j.n) {
        long log2 = PyLong_AsLong(PyTuple_GET_ITEM(sizes, i));
        j.scale = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(scales, i));
        if (PyErr_Occurred()) return NULL;
        j.log2 = (int)log2, j.n = (size_t)1 << log2;
        PyObject *done = start(&j);
        if (!done) return NULL;
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

static PyObject *sketch(PyObject *args, enum kind kind) {
    job j = {.kind = kind};
    double scale;
    unsigned long long src, dst, signs, index;
    if (!PyArg_ParseTuple(args, "KKKKnnindi", &src, &dst, &signs, &index, &j.rows, &j.n, &j.log2, &j.m, &scale,
                          &j.threads))
        return NULL;
    j.src = AT(src);
    j.dst = AT(dst);
    j.signs = AT(signs);
    j.index = AT(index);
    j.scale = (float)scale;
    return start(&j);
}

static PyObject *py_project(PyObject *self, PyObject *args) {
    (void)self;
    return sketch(args, PROJECT);
}

static PyObject *py_lift(PyObject *self, PyObject *args) {
    (void)self;
    return sketch(args, LIFT);
}

static PyObject *py_pack(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long src, dst;
    size_t rows;
    int threads;
    signs s = {.strange = false};
    if (!PyArg_ParseTuple(args, "KKnni", &src, &dst, &rows, &s.m, &threads)) return NULL;
    s.values = AT(src);
    s.packed = AT(dst);
    s.pieces = pieces(s.m);
    Py_BEGIN_ALLOW_THREADS
    parallel(rows * s.pieces, rows * s.m < SMALL ? 1 : threads, pack_piece, &s);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(!s.strange);
}

static PyObject *py_unpack(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long src, dst;
    size_t rows;
    int threads;
    signs s = {.strange = false};
    if (!PyArg_ParseTuple(args, "KKnni", &src, &dst, &rows, &s.m, &threads)) return NULL;
    s.bits = AT(src);
    s.values = AT(dst);
    s.pieces = pieces(s.m);
    Py_BEGIN_ALLOW_THREADS
    parallel(rows * s.pieces, rows * s.m < SMALL ? 1 : threads, unpack_piece, &s);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_count(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *messages, *numbers;
    unsigned long long counters;
    int wide, threads;
    const uint8_t *addresses[GROUP];
    int64_t weights[GROUP];
    signs s = {.messages = addresses, .weights = weights};
    if (!PyArg_ParseTuple(args, "O!O!Kpni", &PyTuple_Type, &messages, &PyTuple_Type, &numbers, &counters, &wide, &s.m,
                          &threads))
        return NULL;
    s.voters = (size_t)PyTuple_GET_SIZE(messages);
    if (s.voters > GROUP || (size_t)PyTuple_GET_SIZE(numbers) != s.voters)
        return PyErr_Format(PyExc_ValueError, "at most %d messages at once, each with its weight", GROUP);
    for (size_t v = 0; v < s.voters; v++) {
        addresses[v] = AT(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(messages, v)));
        weights[v] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, v));
    }
    if (PyErr_Occurred()) return NULL;
    s.counters = AT(counters);
    s.wide = wide;
    Py_BEGIN_ALLOW_THREADS
    parallel(pieces(s.m), s.m * s.voters < SMALL ? 1 : threads, count_piece, &s);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_weigh(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *messages, *numbers;
    unsigned long long sums;
    int threads;
    signs s = {0};
    if (!PyArg_ParseTuple(args, "O!O!Kni", &PyTuple_Type, &messages, &PyTuple_Type, &numbers, &sums, &s.m, &threads))
        return NULL;
    s.voters = (size_t)PyTuple_GET_SIZE(messages);
    if ((size_t)PyTuple_GET_SIZE(numbers) != s.voters)
        return PyErr_Format(PyExc_ValueError, "every message needs a share");
    const uint8_t **addresses = malloc((s.voters + 1) * sizeof *addresses);
    double *shares = malloc((s.voters + 1) * sizeof *shares);
    if (addresses && shares) {
        for (size_t v = 0; v < s.voters; v++) {
            addresses[v] = AT(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(messages, v)));
            shares[v] = PyFloat_AsDouble(PyTuple_GET_ITEM(numbers, v));
        }
        s.messages = addresses, s.shares = shares, s.sums = AT(sums);
        if (!PyErr_Occurred()) {
            Py_BEGIN_ALLOW_THREADS
            parallel(pieces(s.m), s.m * s.voters < FEW ? 1 : threads, weigh_piece, &s);
            Py_END_ALLOW_THREADS
        }
    } else {
        PyErr_NoMemory();
    }
    free(addresses), free(shares);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_decide(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long counters, previous, dst;
    long long total;
    int wide, threads;
    signs s = {.ties = 0};
    if (!PyArg_ParseTuple(args, "KKKpLni", &counters, &previous, &dst, &wide, &total, &s.m, &threads)) return NULL;
    s.counters = AT(counters);
    s.bits = AT(previous);
    s.packed = AT(dst);
    s.wide = wide;
    s.total = total;
    Py_BEGIN_ALLOW_THREADS
    parallel(pieces(s.m), s.m < SMALL ? 1 : threads, decide_piece, &s);
    Py_END_ALLOW_THREADS
    return PyLong_FromSize_t(s.ties);
}

static PyObject *py_words(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long key, start, dst;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "KKnK", &key, &start, &count, &dst)) return NULL;
    uint64_t *words = AT(dst);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) words[i] = word(key, start + (uint64_t)i);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_distinct(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long key, dst;
    int log2;
    Py_ssize_t count;
    bool done;
    if (!PyArg_ParseTuple(args, "KinK", &key, &log2, &count, &dst)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    done = distinct(key, log2, (size_t)count, AT(dst));
    Py_END_ALLOW_THREADS
    return finish(done);
}

static PyObject *py_largest(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long src, dst;
    Py_ssize_t rows, n, count;
    if (!PyArg_ParseTuple(args, "KKnnn", &src, &dst, &rows, &n, &count)) return NULL;
    candidate *heap = malloc((size_t)count * sizeof *heap);
    if (!heap) return PyErr_NoMemory();
    const float *from = AT(src);
    float *to = AT(dst);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < rows; i++) largest(from + i * n, to + i * n, (size_t)n, (size_t)count, heap);
    Py_END_ALLOW_THREADS
    free(heap);
    Py_RETURN_NONE;
}

static PyObject *py_crc32(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer data;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I", &data, &crc)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    crc = crc32(crc, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_finite(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long src;
    Py_ssize_t count;
    bool good;
    if (!PyArg_ParseTuple(args, "Kn", &src, &count)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    good = pass_over(AT(src), 4 * (size_t)count, NULL, NULL, true);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(good);
}

static PyObject *py_opened(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer data;
    unsigned int crc;
    unsigned long long dst;
    bool good;
    if (!PyArg_ParseTuple(args, "y*IK", &data, &crc, &dst)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    good = pass_over(data.buf, (size_t)data.len, &crc, AT(dst), true);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return Py_BuildValue("(IO)", crc, good ? Py_True : Py_False);
}

static PyObject *py_accumulate(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long total, x;
    Py_ssize_t count;
    int threads;
    double share;
    if (!PyArg_ParseTuple(args, "KKdni", &total, &x, &share, &count, &threads)) return NULL;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        weighed s = {AT(total), share, AT(x), (size_t)count};
        Py_BEGIN_ALLOW_THREADS
        parallel(pieces(s.count), s.count < FEW ? 1 : threads, add_piece, &s);
        Py_END_ALLOW_THREADS
        Py_RETURN_TRUE;
    }
#endif
    (void)threads;
    Py_RETURN_FALSE;
}

/* A head, the CRC-32 of all the rest in four bytes, the pieces; None if one that should be of finite floats is not. */
static PyObject *py_sealed(PyObject *self, PyObject *args) {
    (void)self;
    enum { MOST = 64 };
    Py_buffer head, pieces[MOST];
    PyObject *items, *out = NULL;
    unsigned long long floats;
    if (!PyArg_ParseTuple(args, "y*O!K", &head, &PyTuple_Type, &items, &floats)) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(items), held = 0, total = head.len + 4;
    if (count > MOST) PyErr_Format(PyExc_ValueError, "at most %d pieces, got %zd", MOST, count);
    while (!PyErr_Occurred() && held < count)
        if (!PyObject_GetBuffer(PyTuple_GET_ITEM(items, held), pieces + held, PyBUF_SIMPLE)) total += pieces[held++].len;
    if (!PyErr_Occurred()) out = PyBytes_FromStringAndSize(NULL, total);
    if (out) {
        uint8_t *start = (uint8_t *)PyBytes_AS_STRING(out), *to = start + head.len + 4;
        uint32_t crc = 0;
        bool good = true;
        Py_BEGIN_ALLOW_THREADS
        wish_huge(start, (size_t)total);
        pass_over(head.buf, (size_t)head.len, &crc, start, false);
        for (Py_ssize_t i = 0; i < count; to += pieces[i++].len)
            good &= pass_over(pieces[i].buf, (size_t)pieces[i].len, &crc, to, floats >> i & 1);
        for (int i = 0; i < 4; i++) start[head.len + i] = (uint8_t)(crc >> 8 * i);
        Py_END_ALLOW_THREADS
        if (!good) Py_SETREF(out, Py_NewRef(Py_None));
    }
    while (held) PyBuffer_Release(pieces + --held);
    PyBuffer_Release(&head);
    return out;
}

static PyMethodDef methods[] = {
    {"isa", py_isa, METH_NOARGS, NULL},
    {"use", py_use, METH_VARARGS, NULL},
    {"fit", py_fit, METH_VARARGS, NULL},
    {"memory", py_memory, METH_VARARGS, NULL},
    {"transform", py_transform, METH_VARARGS, NULL},
    {"blocks", py_blocks, METH_VARARGS, NULL},
    {"project", py_project, METH_VARARGS, NULL},
    {"lift", py_lift, METH_VARARGS, NULL},
    {"pack", py_pack, METH_VARARGS, NULL},
    {"unpack", py_unpack, METH_VARARGS, NULL},
    {"count", py_count, METH_VARARGS, NULL},
    {"weigh", py_weigh, METH_VARARGS, NULL},
    {"decide", py_decide, METH_VARARGS, NULL},
    {"words", py_words, METH_VARARGS, NULL},
    {"distinct", py_distinct, METH_VARARGS, NULL},
    {"largest", py_largest, METH_VARARGS, NULL},
    {"crc32", py_crc32, METH_VARARGS, NULL},
    {"finite", py_finite, METH_VARARGS, NULL},
    {"opened", py_opened, METH_VARARGS, NULL},
    {"accumulate", py_accumulate, METH_VARARGS, NULL},
    {"sealed", py_sealed, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fht", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fht(void) {
    isa = supported()[0];
    crc_prepare();
    fit(second_level());
    if (PyType_Ready(&holder_type) < 0) return NULL;
    return PyModule_Create(&module);
}
