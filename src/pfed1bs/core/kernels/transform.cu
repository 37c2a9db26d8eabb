/* The transform on a GPU, in passes over memory; signs, padding, row selection and scale happen on the way in and out.

A block of threads takes a tile of 2^TILE floats, 32 in every thread, through LEVELS levels. In the first pass (COLUMNS
0) a tile is contiguous: a part of a row, or several short rows. In a later one it is 2^LEVELS pieces of 2^COLUMNS
floats, 2^shift floats apart. Levels ascend, each (a + b, a - b): every way to cut them into passes gives the same bits
(docs/wire.md). CUDA's compiler and, for tests, a C compiler with other definitions than cuda.cuh in front read this file.

Given by the caller: LOG2, SHIFT, LEVELS, TILE, COLUMNS, LOAD, STORE, ALIGNED, and ALL: nothing of the source is zero. */

#define PLAIN 0   /* float (rows, 2^log2) */
#define WEIGHTS 1 /* float (rows, n): times D, behind them zeros */
#define ROWS 2    /* float (rows, m): the coordinates that S keeps */
#define MISFIT 3  /* the same after |v| tanh(gamma q) - v */
#define SCRATCH 4 /* as PLAIN, without the scale */

#define EACH 32
#define THREADS (1 << (TILE - 5))
#define CONTIGUOUS (SHIFT == 0)
#define SEVERAL (LOG2 < TILE) /* rows in a tile */

typedef struct {
    const float *source;
    float *target;
    const unsigned *flips; /* D: a bit for each of the 32 floats of a thread, 1 is +; NULL: all + */
    const int *starts;     /* S by tiles: where each tile's part of the two lists begins */
    const int *at;         /* the coordinates that are kept */
    const int *to;         /* and their places among the m */
    const float *v;
    long long count;  /* floats of all rows together, padded */
    long long stride; /* between the rows of v; 0: one for all */
    int n, m;
    int live; /* where the zeros of every row begin that need not be read */
    float scale, gamma;
} Pass;

/* Where float e of a tile lies in shared memory: no two lanes of a warp meet in one bank. BANKED(a | b) is BANKED(a) +
BANKED(b) for numbers without a common bit, so that register numbers become constants in the instructions. */
#define BANKED(e) ((e) + ((e) >> 5))
#define SHARED_FLOATS BANKED(1 << TILE)

/* The float of a tile that a thread holds in register r, when the registers are the bits g .. g + 4 of its number. */
#define HELD(g) ((thread & ((1 << (g)) - 1)) | (thread >> (g)) << ((g) + 5))

/* As it is read by the first pass: four neighbours, so bits 0 and 1, and the three highest bits. */
#define QUAD(r) (((r) & 3) | ((r) >> 2) << (TILE - 3))

#define LOWER(a, b) ((a) < (b) ? (a) : (b))
#define GROUP(a) LOWER(a, TILE - 5) /* the lowest bit in registers for the levels from bit a on */
#define END (COLUMNS + LEVELS)
#if !CONTIGUOUS /* the first bit whose level needs floats of other threads, or floats that are in shared memory */
#define BEGIN (COLUMNS + 5)
#elif LOAD == ROWS
#define BEGIN 0
#else
#define BEGIN 2
#endif

/* The thread's and the register's part of the float that is held at the end. */
#if CONTIGUOUS && END <= BEGIN
#define LAST (thread << 2)
#define LAST_AT(r) QUAD(r)
#else
#define LAST HELD(GROUP(BEGIN + 5 * ((END - BEGIN + 4) / 5 - 1)))
#define LAST_AT(r) ((r) << GROUP(BEGIN + 5 * ((END - BEGIN + 4) / 5 - 1)))
#endif

/* The tile of this block: its number in its row, its first float, and where in a row its float e belongs. */
#define NUMBER (SEVERAL ? 0 : (int)(BLOCK & ((1LL << (LOG2 - LOWER(TILE, LOG2))) - 1)))
#define WIDTH ((1LL << LOG2) - 1)
#if CONTIGUOUS
#define BASE (BLOCK << TILE)
#define INSIDE(e) (e)
#else
#if LEVELS < 5
#error "the registers of a later pass are levels"
#endif
#define ACROSS (SHIFT - COLUMNS) /* log2 of the tiles side by side */
#define BASE (BLOCK >> ACROSS << (SHIFT + LEVELS))
#define INSIDE(e) (((e) >> COLUMNS) << SHIFT)
#define COLUMN ((((int)(BLOCK & ((1 << ACROSS) - 1)) << COLUMNS) + (thread & ((1 << COLUMNS) - 1)) + turn) & ((1 << SHIFT) - 1))
#endif

DEVICE void levels(float *x, int first, int end) {
#pragma unroll
    for (int bit = first; bit < end; bit++)
#pragma unroll
        for (int r = 0; r < EACH; r++)
            if (!(r >> bit & 1)) {
                float a = x[r], b = x[r | 1 << bit];
                x[r] = a + b;
                x[r | 1 << bit] = a - b;
            }
}

DEVICE float flipped(float x, unsigned plus) { return plus & 1 ? x : -x; }

#if LOAD == PLAIN || LOAD == WEIGHTS
/* Four neighbours, as many of them as are left. */
DEVICE void load_four(const float *from, int left, float *x) {
#if ALIGNED
    if (left > 0) {
        float4 all = *(const float4 *)from;
        x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
    }
#else
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < left) x[i] = from[i];
#endif
}
#endif

#if LOAD == ROWS || STORE == ROWS || STORE == MISFIT
/* Number i of the coordinates that S keeps in this tile: its row, its place among the m, its float of the tile. */
DEVICE void kept(const Pass *p, int i, long long *row, int *to, int *e) {
#if SEVERAL
    const int number = i % p->m;
    *row += i / p->m;
    *e = i / p->m << LOG2 | p->at[number];
#elif CONTIGUOUS
    const int number = i + p->starts[NUMBER];
    *e = p->at[number] & ((1 << TILE) - 1);
#else
    const int number = i + p->starts[NUMBER];
    *e = p->at[number] >> SHIFT << COLUMNS | (p->at[number] & ((1 << COLUMNS) - 1));
#endif
    *to = CONTIGUOUS ? number : p->to[number];
}

DEVICE int kept_count(const Pass *p) {
#if SEVERAL
    long long rows = (p->count - BASE) >> LOG2;
    return p->m * (int)LOWER(rows, 1 << (TILE - LOG2));
#else
    return p->starts[NUMBER + 1] - p->starts[NUMBER];
#endif
}
#endif

KERNEL_OF(THREADS) transform_pass(CONSTANT Pass pass) {
    SHARED(float, tile);
    const Pass *p = &pass;
    const int thread = THREAD;
    const long long row = BASE >> LOG2; /* the first one */
#if CONTIGUOUS
    const int place = (int)(BASE & WIDTH);
#else
    /* Columns begin where the target has a sector of 32 bytes; whichever go together, their levels are the same. */
    const int turn = STORE == WEIGHTS ? (int)(-row * p->n & 7) : 0;
    const int place = (int)(BASE & WIDTH) | COLUMN;
#endif
    float x[EACH];

#if LOAD == ROWS
#pragma unroll
    for (int r = 0; r < EACH; r++) tile[BANKED(thread) + BANKED(r * THREADS)] = 0;
    SYNCHRONISE;
    const int entering = kept_count(p);
    for (int i = thread; i < entering; i += THREADS) {
        long long of = row;
        int to, e;
        kept(p, i, &of, &to, &e);
        tile[BANKED(e)] = p->source[of * p->m + to];
    }
#elif CONTIGUOUS
    if (LOAD == WEIGHTS && STORE == SCRATCH && place >= p->n) return; /* zeros, which the next pass need not read */
#pragma unroll
    for (int r = 0; r < EACH; r += 4) {
        const int e = thread << 2 | QUAD(r), at = SEVERAL ? e & (int)WIDTH : place + e;
        const long long of = SEVERAL ? row + (e >> LOG2) : row;
        x[r] = x[r + 1] = x[r + 2] = x[r + 3] = 0;
        if (SEVERAL && BASE + e >= p->count) continue;
        if (LOAD == WEIGHTS) load_four(p->source + of * p->n + at, p->n - at, x + r);
        if (LOAD == PLAIN) load_four(p->source + BASE + e, 4, x + r);
    }
    if (LOAD == WEIGHTS && p->flips) {
        const unsigned plus = p->flips[NUMBER * THREADS + thread];
#pragma unroll
        for (int r = 0; r < EACH; r++) x[r] = flipped(x[r], plus >> r);
    }
    levels(x, 0, LOWER(2, LEVELS));
#else
    const int held = place + INSIDE(HELD(GROUP(COLUMNS)));
    const float *from = p->source + (row << LOG2) + held;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int step = INSIDE(r << GROUP(COLUMNS));
        x[r] = ALL || held + step < p->live ? from[step] : 0;
    }
    levels(x, COLUMNS - GROUP(COLUMNS), LOWER(5, END - GROUP(COLUMNS)));
#endif

#pragma unroll
    for (int stage = 0; stage < 3; stage++) {
        const int a = BEGIN + 5 * stage, g = GROUP(a);
        if (a < END) {
            if (stage || LOAD != ROWS) {
                const int quads = CONTIGUOUS && stage == 0, before = quads ? 0 : GROUP(a - 5);
                float *mine = tile + BANKED(quads ? thread << 2 : HELD(before));
#pragma unroll
                for (int r = 0; r < EACH; r++) mine[BANKED(quads ? QUAD(r) : r << before)] = x[r];
            }
            SYNCHRONISE;
            const float *mine = tile + BANKED(HELD(g));
#pragma unroll
            for (int r = 0; r < EACH; r++) x[r] = mine[BANKED(r << g)];
            levels(x, a - g, LOWER(5, END - g));
        }
    }

#if STORE == ROWS || STORE == MISFIT
#pragma unroll
    for (int r = 0; r < EACH; r++) tile[BANKED(LAST) + BANKED(LAST_AT(r))] = x[r] * p->scale;
    SYNCHRONISE;
    const int leaving = kept_count(p);
    for (int i = thread; i < leaving; i += THREADS) {
        long long of = row;
        int to, e;
        kept(p, i, &of, &to, &e);
        float q = tile[BANKED(e)];
#if STORE == MISFIT
        const float v = p->v[of * p->stride + to];
        q = fabsf(v) * tanhf(p->gamma * q) - v;
#endif
        p->target[of * p->m + to] = q;
    }
#elif STORE == WEIGHTS
    const int first = place + INSIDE(LAST);
    const unsigned plus = p->flips ? p->flips[CONTIGUOUS ? NUMBER * THREADS + thread : first] : ~0u;
    float *to = p->target + row * p->n;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int at = first + INSIDE(LAST_AT(r)), in = SEVERAL ? at & (int)WIDTH : at;
        if (in >= p->n || (SEVERAL && BASE + at >= p->count)) continue;
        to[SEVERAL ? (at >> LOG2) * (long long)p->n + in : at] = flipped(x[r] * p->scale, plus >> r);
    }
#else
    float *to = p->target + (row << LOG2) + place + INSIDE(LAST);
#pragma unroll
    for (int r = 0; r < EACH; r++)
        if (!SEVERAL || BASE + LAST + LAST_AT(r) < p->count)
            to[INSIDE(LAST_AT(r))] = STORE == SCRATCH ? x[r] : x[r] * p->scale;
#endif
}

/* D for a pass with LOAD or STORE of WEIGHTS: from n packed bits at source to words at target. Padding is +. */
KERNEL_OF(THREADS) spread_flips(CONSTANT Pass pass) {
    const Pass *p = &pass;
    const int thread = THREAD;
    unsigned word = 0;
    for (int r = 0; r < EACH; r++) {
        int at;
        if (!CONTIGUOUS)
            at = (int)BLOCK * THREADS + thread + (r << (LOG2 - 5)); /* the registers are the highest bits */
        else
            at = (int)((BASE | (LOAD == WEIGHTS ? thread << 2 | QUAD(r) : LAST | LAST_AT(r))) & WIDTH);
        word |= (at < p->n ? ((const unsigned char *)p->source)[at >> 3] >> (at & 7) & 1u : 1u) << r;
    }
    ((unsigned *)p->target)[(int)BLOCK * THREADS + thread] = word;
}
