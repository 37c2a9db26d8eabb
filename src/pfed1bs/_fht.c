/* Native CPU kernels: Walsh-Hadamard transform, sketch and its adjoint, packed signs, votes, the portable generator.
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
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define ALIGNED __attribute__((aligned(64)))

enum {
    LINE = 16,        /* floats in a cache line */
    PAGE = 1 << 10,   /* floats in a page, after which addresses fall into the same cache set */
    TILE = 1 << 13,   /* floats in the first-level cache at once */
    GAP = 64,         /* floats */
    AHEAD = 512,      /* floats fetched before they are needed */
    MIDDLE = 6,       /* levels beyond a block that stay in the second-level cache */
    HIGH = 8,         /* most levels in one pass over memory */
    HUGEPAGE = 1 << 21, /* bytes in a huge page */
    SMALL = 1 << 15,  /* work below it stays on one thread */
    PIECE = 1 << 12,  /* coordinates in a task */
    GROUP = 16,       /* messages counted at once */
    DIGIT = 27        /* bits of a weight, so that a group's sums fit in 31 */
};
enum kind { TRANSFORM, PROJECT, LIFT };

typedef struct {
    enum kind kind;
    const float *src;
    float *dst;
    const uint8_t *signs;  /* D: bit 1 is +, NULL without */
    const int32_t *index;  /* S: m ascending row numbers */
    size_t rows, n, m;
    int log2;
    float scale;
    int threads;
} job;

/* The first place in the ascending `index` whose value is at least x. */
static size_t lower_bound(const int32_t *index, size_t count, size_t x) {
    size_t low = 0;
    while (count) {
        size_t half = count / 2;
        bool right = (size_t)index[low + half] < x;
        low = right ? low + half + 1 : low;
        count = right ? count - half - 1 : half;
    }
    return low;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Half the tile, so that what is fetched next has room beside it; but several lines of every row. */
static size_t tile_width(int levels, size_t stride) {
    size_t width = (size_t)TILE >> (levels < HIGH - 1 ? levels + 1 : levels);
    return least(width, stride);
}

/* The transform of fewer floats than a vector has. */
static void plain_block(const float *src, float *dst, int levels, float scale) {
    size_t n = (size_t)1 << levels;
    float x[16];
    memcpy(x, src, n * sizeof(float));
    for (size_t h = 1; h < n; h *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
    for (size_t i = 0; i < n; i++) dst[i] = x[i] * scale;
}

typedef struct {
    const char *name;
    int block;
    void (*low)(const job *, const float *, float *, size_t);
    void (*middle)(float *, size_t, int, size_t, size_t);
    void (*high)(const job *, const float *, size_t, float *, int, size_t, size_t);
    bool (*pack)(const float *, uint8_t *, size_t);
    void (*unpack)(const uint8_t *, float *, size_t);
    void (*sums)(const uint8_t *const *, const int32_t *, size_t, size_t, size_t, int32_t *);
    void (*compare)(const void *, bool, int64_t, uint64_t *, uint64_t *);
} kernels;

/* 64 bytes of 0 and 1 as bits, by multiplications that collect eight of them in the top byte. */
static inline uint64_t gather_bits(const uint8_t *bytes) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t eight = 0;
        for (int j = 0; j < 8; j++) eight |= (uint64_t)bytes[8 * i + j] << 8 * j;
        word |= (eight * 0x0102040810204080u >> 56) << 8 * i;
    }
    return word;
}

static inline void put_bits(uint8_t *dst, uint64_t word) {
    for (int i = 0; i < 8; i++) dst[i] = (uint8_t)(word >> 8 * i);
}

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
#include "_fht.h"

#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define LANES 3
#define RADIX 3
#define BLOCK 12
#include "_fht.h"
#endif

#define ISA portable
#define TARGET
#define WIDTH 4
#define LANES 2
#define RADIX 3
#define BLOCK 11
#include "_fht.h"

static const kernels *isa;

/* Tasks 0 .. count - 1 on up to `threads` threads. */

typedef void task(void *context, size_t worker, size_t number);
typedef struct {
    task *run;
    void *context;
    size_t count;
    atomic_size_t next, workers;
} queue;

static void work(void *data) {
    queue *q = data;
    size_t worker = atomic_fetch_add(&q->workers, 1);
    for (size_t i; (i = atomic_fetch_add(&q->next, 1)) < q->count;) q->run(q->context, worker, i);
}

static void parallel(size_t count, int threads, task *run, void *context) {
    static void (*team)(void (*)(void *), void *, unsigned, unsigned);
    queue q = {.run = run, .context = context, .count = count};
    if (threads > 1 && count > 1 && !team) *(void **)&team = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (threads > 1 && count > 1 && team) team(work, &q, (unsigned)threads, 0);
    else work(&q);
}

/* A padded buffer, kept for the next call: fresh pages cost as much as a transform. */

static struct {
    atomic_flag busy;
    float *data;
    size_t size;
} kept = {ATOMIC_FLAG_INIT, NULL, 0};

/* Only a wish: where it is not granted, small pages do the same more slowly. */
static void advise(uintptr_t address, size_t size) {
#ifdef MADV_HUGEPAGE
    uintptr_t first = (address + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE, last = (address + size) / HUGEPAGE * HUGEPAGE;
    if (first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)address, (void)size;
#endif
}

static float *allocate(size_t size) {
    size_t bytes = (size * sizeof(float) + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE;
    float *data = aligned_alloc(HUGEPAGE, bytes);
    if (data) advise((uintptr_t)data, bytes);
    return data;
}

static float *borrow(size_t size) {
    if (atomic_flag_test_and_set(&kept.busy)) return allocate(size);
    if (kept.size < size) {
        free(kept.data);
        kept.data = allocate(size);
        kept.size = kept.data ? size : 0;
    }
    if (!kept.data) atomic_flag_clear(&kept.busy);
    return kept.data;
}

static void give_back(float *data) {
    if (data == kept.data) atomic_flag_clear(&kept.busy);
    else free(data);
}

/* One row in three parts: pieces that stay in the second-level cache, then columns through all of them. */

typedef struct {
    const job *job;
    const float *src;
    float *data, *dst;
    int piece, high; /* levels of a piece, of the last pass */
    size_t strip, stride, gap; /* gap: floats between the pieces of a buffer, which fall into different cache sets so */
} row;

/* The lowest `levels` levels from `start`, depth first: eight parts, then the three levels between them. */
static void rise(const row *r, size_t start, int levels) {
    int above = levels - isa->block;
    if (above <= 0) {
        isa->low(r->job, r->src, r->data, start);
        return;
    }
    int now = above < 3 ? above : 3;
    size_t part = (size_t)1 << (levels - now);
    for (size_t i = 0; i < (size_t)1 << now; i++) rise(r, start + i * part, levels - now);
    isa->middle(r->data + start, part, now, 0, part);
}

static void row_low(void *context, size_t worker, size_t number) {
    row r = *(const row *)context;
    (void)worker;
    r.data += number * r.gap;
    rise(&r, number << r.piece, r.piece);
}

/* Rows of more than 2^(block + MIDDLE + HIGH) floats make one more pass over memory. */
static void row_beyond(void *context, size_t worker, size_t number) {
    const row *r = context;
    (void)worker;
    for (size_t start = 0; start >> r->job->log2 == 0; start += r->stride << HIGH)
        isa->middle(r->data + start, r->stride, HIGH, number * r->strip, (number + 1) * r->strip);
}

static void row_high(void *context, size_t worker, size_t number) {
    const row *r = context;
    (void)worker;
    isa->high(r->job, r->data, r->gap, r->dst, r->high, number * r->strip, (number + 1) * r->strip);
}

static void one_row(const job *j, size_t number, float *buffer, int threads) {
    row r = {.job = j, .data = buffer};
    bool forth = j->kind != LIFT;
    r.src = j->src + number * (forth ? j->n : j->m);
    r.dst = j->dst + number * (j->kind == PROJECT ? j->m : j->n);
    if (j->kind == TRANSFORM) r.data = r.dst;
    else r.gap = j->log2 <= isa->block + MIDDLE + HIGH ? GAP : 0;
    int above = j->log2 > isa->block ? j->log2 - isa->block : 0, middle = above < MIDDLE + 3 ? above - 3 : MIDDLE;
    while (middle > 0 && above - middle < HIGH && 1 << (above - middle) < 2 * threads && threads > 1) middle--;
    r.high = above - (middle > 0 ? middle : 0);
    r.piece = j->log2 - r.high;
    parallel((size_t)1 << r.high, threads, row_low, &r);
    size_t pieces = threads > 1 ? 4 * (size_t)threads : 1;
    while (pieces & (pieces - 1)) pieces += pieces & -pieces;
    r.stride = (size_t)1 << r.piece;
    for (; r.high > HIGH; r.high -= HIGH, r.stride <<= HIGH) {
        r.strip = r.stride / least(pieces, r.stride / tile_width(HIGH, r.stride));
        parallel(r.stride / r.strip, threads, row_beyond, &r);
    }
    r.strip = r.stride / least(pieces, r.stride / tile_width(r.high, r.stride));
    if (j->kind != TRANSFORM || r.high) parallel(r.stride / r.strip, threads, row_high, &r);
}

static size_t buffer_size(const job *j) { return ((size_t)1 << j->log2) + (GAP << HIGH); }

typedef struct {
    const job *job;
    float *buffers;
} batch;

static void whole_row(void *context, size_t worker, size_t number) {
    const batch *b = context;
    one_row(b->job, number, b->buffers ? b->buffers + worker * buffer_size(b->job) : NULL, 1);
}

/* Rows that fit the second-level cache are shared out among the threads, what is left over and longer rows are cut. */
static bool run(const job *j) {
    size_t size = (size_t)1 << j->log2;
    int threads = j->rows * size < SMALL ? 1 : j->threads;
    bool shared = threads > 1 && size <= 1 << 19;
    size_t whole = shared || threads == 1 ? j->rows - j->rows % (size_t)threads : 0;
    batch b = {j, NULL};
    if (j->kind != TRANSFORM && !(b.buffers = borrow(buffer_size(j) * (shared ? (size_t)threads : 1)))) return false;
    parallel(whole, threads, whole_row, &b);
    for (size_t i = whole; i < j->rows; i++) one_row(j, i, b.buffers, threads);
    if (b.buffers) give_back(b.buffers);
    return true;
}

/* Packed signs: rows cut into pieces of PIECE coordinates, the last one through a padded copy. */

typedef struct {
    const uint8_t *bits;
    uint8_t *packed;
    float *values;
    const uint8_t *const *messages;
    const int64_t *weights;
    int64_t total;
    void *counters;
    bool wide; /* 64-bit counters */
    size_t m, voters, pieces;
    atomic_size_t ties;
    atomic_bool strange;
} signs;

static size_t pieces(size_t m) { return (m + PIECE - 1) / PIECE; }

static void pack_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t row = number / s->pieces, first = number % s->pieces * PIECE, count = least(PIECE, s->m - first);
    const float *src = s->values + row * s->m + first;
    uint8_t *dst = s->packed + row * ((s->m + 7) / 8) + first / 8;
    size_t whole = count & ~(size_t)63;
    if (!isa->pack(src, dst, whole)) atomic_store(&s->strange, true);
    if (count > whole) {
        float rest[64];
        uint8_t bits[8];
        for (size_t i = 0; i < 64; i++) rest[i] = whole + i < count ? src[whole + i] : -1.0f;
        if (!isa->pack(rest, bits, 64)) atomic_store(&s->strange, true);
        memcpy(dst + whole / 8, bits, (count - whole + 7) / 8);
    }
}

static void unpack_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t row = number / s->pieces, first = number % s->pieces * PIECE, count = least(PIECE, s->m - first);
    const uint8_t *src = s->bits + row * ((s->m + 7) / 8) + first / 8;
    float *dst = s->values + row * s->m + first;
    size_t whole = count & ~(size_t)15;
    isa->unpack(src, dst, whole);
    for (size_t i = whole; i < count; i++) dst[i] = src[i / 8] >> i % 8 & 1 ? 1.0f : -1.0f;
}

/* Weights of any size as digits of DIGIT bits, so that the sums of a group fit 32 bits. */
static void count_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t first = number * PIECE, count = least(PIECE, s->m - first), whole = count & ~(size_t)15;
    ALIGNED int32_t sums[PIECE];
    for (int shift = 0; shift < 63; shift += DIGIT) {
        int32_t digits[GROUP], any = 0;
        for (size_t v = 0; v < s->voters; v++) any |= digits[v] = s->weights[v] >> shift & ((1 << DIGIT) - 1);
        if (!any) continue;
        isa->sums(s->messages, digits, s->voters, first, whole, sums);
        for (size_t i = whole; i < count; i++) {
            sums[i] = 0;
            for (size_t v = 0; v < s->voters; v++)
                if (s->messages[v][(first + i) / 8] >> i % 8 & 1) sums[i] += digits[v];
        }
        if (s->wide)
            for (size_t i = 0; i < count; i++) ((int64_t *)s->counters)[first + i] += (int64_t)sums[i] << shift;
        else
            for (size_t i = 0; i < count; i++) ((int32_t *)s->counters)[first + i] += sums[i] << shift;
    }
}

static void decide_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t first = number * PIECE, last = first + least(PIECE, s->m - first), ties = 0;
    size_t each = s->wide ? sizeof(int64_t) : sizeof(int32_t);
    for (size_t i = first; i < last; i += 64) {
        const char *counters = (const char *)s->counters + i * each;
        int64_t rest[64] = {0};
        uint64_t above, equal, kept = 0, used = last - i < 64 ? ((uint64_t)1 << (last - i)) - 1 : ~(uint64_t)0;
        size_t bytes = least(8, (last - i + 7) / 8);
        if (last - i < 64) counters = memcpy(rest, counters, (last - i) * each);
        isa->compare(counters, s->wide, s->total, &above, &equal);
        for (size_t b = 0; b < bytes; b++) kept |= (uint64_t)s->bits[i / 8 + b] << 8 * b;
        ties += (size_t)__builtin_popcountll(equal & used);
        uint64_t word = (above | (equal & kept)) & used;
        for (size_t b = 0; b < bytes; b++) s->packed[i / 8 + b] = (uint8_t)(word >> 8 * b);
    }
    atomic_fetch_add(&s->ties, ties);
}

/* The portable generator of docs/wire.md. */

static uint64_t word(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static bool distinct(uint64_t key, int log2, size_t count, int32_t *dst) {
    size_t size = (size_t)1 << log2, left_out = size - count, drawn = least(count, left_out);
    uint64_t *member = calloc(size / 64 + 1, sizeof(uint64_t)), turn = drawn == count ? 0 : ~(uint64_t)0;
    if (!member) return false;
    for (uint64_t index = 0; drawn; index++) {
        uint64_t both = word(key, index);
        for (int half = 0; half < 2 && drawn; half++, both >>= 32) {
            uint32_t x = (uint32_t)both >> (32 - log2);
            uint64_t bit = (uint64_t)1 << x % 64;
            drawn -= !(member[x / 64] & bit);
            member[x / 64] |= bit;
        }
    }
    for (size_t base = 0; base < size; base += 64) {
        uint64_t rest = member[base / 64] ^ turn;
        if (size < 64) rest &= ((uint64_t)1 << size) - 1;
        for (; rest; rest &= rest - 1) *dst++ = (int32_t)(base + (size_t)__builtin_ctzll(rest));
    }
    free(member);
    return true;
}

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
    found[count] = &kernels_portable;
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

static PyObject *py_advise(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long address, size;
    if (!PyArg_ParseTuple(args, "KK", &address, &size)) return NULL;
    advise((uintptr_t)address, (size_t)size);
    Py_RETURN_NONE;
}

static PyObject *py_transform(PyObject *self, PyObject *args) {
    (void)self;
    job j = {.kind = TRANSFORM};
    double scale;
    unsigned long long src, dst;
    if (!PyArg_ParseTuple(args, "KKnidi", &src, &dst, &j.rows, &j.log2, &scale, &j.threads)) return NULL;
    j.src = (const float *)(uintptr_t)src;
    j.dst = (float *)(uintptr_t)dst;
    j.n = (size_t)1 << j.log2;
    j.scale = (float)scale;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(&j);
    Py_END_ALLOW_THREADS
    return finish(done);
}

static PyObject *sketch(PyObject *args, enum kind kind) {
    job j = {.kind = kind};
    double scale;
    unsigned long long src, dst, signs, index;
    if (!PyArg_ParseTuple(args, "KKKKnnindi", &src, &dst, &signs, &index, &j.rows, &j.n, &j.log2, &j.m, &scale, &j.threads))
        return NULL;
    j.src = (const float *)(uintptr_t)src;
    j.dst = (float *)(uintptr_t)dst;
    j.signs = (const uint8_t *)(uintptr_t)signs;
    j.index = (const int32_t *)(uintptr_t)index;
    j.scale = (float)scale;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(&j);
    Py_END_ALLOW_THREADS
    return finish(done);
}

static PyObject *py_project(PyObject *self, PyObject *args) {
    (void)self;
    return sketch(args, PROJECT);
}

static PyObject *py_lift(PyObject *self, PyObject *args) {
    (void)self;
    return sketch(args, LIFT);
}

#define AT(address) ((void *)(uintptr_t)(address))

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

static PyMethodDef methods[] = {
    {"isa", py_isa, METH_NOARGS, NULL},
    {"use", py_use, METH_VARARGS, NULL},
    {"advise", py_advise, METH_VARARGS, NULL},
    {"transform", py_transform, METH_VARARGS, NULL},
    {"project", py_project, METH_VARARGS, NULL},
    {"lift", py_lift, METH_VARARGS, NULL},
    {"pack", py_pack, METH_VARARGS, NULL},
    {"unpack", py_unpack, METH_VARARGS, NULL},
    {"count", py_count, METH_VARARGS, NULL},
    {"decide", py_decide, METH_VARARGS, NULL},
    {"words", py_words, METH_VARARGS, NULL},
    {"distinct", py_distinct, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fht", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fht(void) {
    isa = supported()[0];
    return PyModule_Create(&module);
}
