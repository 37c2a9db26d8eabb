/* The transform on a GPU, in passes over memory; signs, padding, row selection and scale happen on the way in and out.

A block of threads takes a tile of 2^TILE floats, 32 in every thread, through LEVELS levels. In the first pass (COLUMNS
0) a tile is contiguous: a part of a row, or several short rows. In a later one it is 2^LEVELS pieces of 2^COLUMNS
floats, 2^shift floats apart. Levels ascend, each (a + b, a - b): every way to cut them into passes gives the same bits
(docs/wire.md). CUDA's compiler and, for tests, a C compiler with other definitions than cuda.h in front read this file.

Given by the caller: TILE, LEVELS, COLUMNS, LOAD, STORE, ALIGNED. */

#define PLAIN 0   /* float (rows, 2^log2) */
#define WEIGHTS 1 /* float (rows, n): times D, behind them zeros */
#define ROWS 2    /* float (rows, m): the coordinates that S keeps */
#define MISFIT 3  /* the same after |v| tanh(gamma q) - v */
#define SCRATCH 4 /* as PLAIN, without the scale */

#define EACH 32
#define THREADS (1 << (TILE - 5))
#define CONTIGUOUS (COLUMNS == 0)
#define SEVERAL (CONTIGUOUS && LEVELS < TILE) /* rows in a tile */

typedef struct {
    const float *source;
    float *target;
    const unsigned *flips; /* D: one word for the 32 floats of a thread, one bit each, 1 is +; NULL: all + */
    const int *starts;     /* S by tiles: where each tile's part of the two lists begins */
    const int *at;         /* the coordinates that are kept */
    const int *to;         /* and their places among the m */
    const float *v;
    long long count;  /* floats of all rows together, padded */
    long long stride; /* between the rows of v; 0: one for all */
    int log2, shift, n, m;
    int live; /* where the zeros of every row begin that need not be read */
    float scale, gamma;
} Pass;

/* Where float e of a tile lies in shared memory: no two lanes of a warp meet in one bank. BANKED(a | b) is BANKED(a) ^
BANKED(b) for numbers without a common bit. */
#define BANKED(e) ((e) ^ (((e) >> 5) & 31))

/* The float of a tile that a thread holds in register r, when the registers are the bits g .. g + 4 of its number. */
#define HELD(g) ((thread & ((1 << (g)) - 1)) | (thread >> (g)) << ((g) + 5))
#define AT(g, r) (HELD(g) | (r) << (g))

/* As it is read by the first pass: four neighbours, so bits 0 and 1, and the three highest bits. */
#define QUAD(r) (((r) & 3) | thread << 2 | ((r) >> 2) << (TILE - 3))

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
#if CONTIGUOUS && END <= BEGIN
#define LAST(r) QUAD(r)
#else
#define LAST(r) AT(GROUP(BEGIN + 5 * ((END - BEGIN + 4) / 5 - 1)), r)
#endif

/* The tile of this block: its number in its row, the row and coordinate of its float e, and whether there is one. */
#define TILES ((1LL << LOWER(62, p->log2 > TILE ? p->log2 - TILE : 0)) - 1)
#define NUMBER ((int)(BLOCK & TILES))
#if CONTIGUOUS
#define BASE (BLOCK << TILE)
#define INSIDE(e) (e)
#else
#define ACROSS (p->shift - COLUMNS) /* log2 of the tiles side by side */
#define BASE (BLOCK >> ACROSS << (p->shift + LEVELS) | (BLOCK & ((1 << ACROSS) - 1)) << COLUMNS)
#define INSIDE(e) (((e) >> COLUMNS) << p->shift | ((e) & ((1 << COLUMNS) - 1)))
#endif
#define WIDTH ((1LL << p->log2) - 1)
#if SEVERAL
#define ROW(e) ((BASE + (e)) >> p->log2)
#define PLACE(e) ((int)((BASE + (e)) & WIDTH))
#define EXISTS(e) (BASE + (e) < p->count)
#else
#define ROW(e) row
#define PLACE(e) (place + INSIDE(e))
#define EXISTS(e) 1
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
    int number = i + p->starts[NUMBER];
#if SEVERAL
    number = i % p->m;
    *row = (BASE >> p->log2) + i / p->m;
    *e = i / p->m << p->log2 | p->at[number];
#elif CONTIGUOUS
    *e = p->at[number] & ((1 << TILE) - 1);
#else
    *e = p->at[number] >> p->shift << COLUMNS | (p->at[number] & ((1 << COLUMNS) - 1));
#endif
    *to = CONTIGUOUS ? number : p->to[number];
}

DEVICE int kept_count(const Pass *p) {
#if SEVERAL
    long long rows = (p->count - BASE) >> p->log2;
    return p->m * (int)LOWER(rows, 1 << (TILE - p->log2));
#else
    return p->starts[NUMBER + 1] - p->starts[NUMBER];
#endif
}
#endif

KERNEL_OF(THREADS) transform_pass(CONSTANT Pass pass) {
    SHARED(float, tile);
    const Pass *p = &pass;
    const int thread = THREAD;
    const long long row = BASE >> p->log2;
    const int place = (int)(BASE & WIDTH);
    float x[EACH];

#if LOAD == ROWS
#pragma unroll
    for (int r = 0; r < EACH; r++) tile[thread + r * THREADS] = 0;
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
        const int e = QUAD(r), at = PLACE(e);
        x[r] = x[r + 1] = x[r + 2] = x[r + 3] = 0;
        if (EXISTS(e) && LOAD == WEIGHTS) load_four(p->source + ROW(e) * p->n + at, p->n - at, x + r);
        if (EXISTS(e) && LOAD == PLAIN) load_four(p->source + BASE + e, 4, x + r);
    }
    if (LOAD == WEIGHTS && p->flips) {
        const unsigned plus = p->flips[NUMBER * THREADS + thread];
#pragma unroll
        for (int r = 0; r < EACH; r++) x[r] = flipped(x[r], plus >> r);
    }
    levels(x, 0, LOWER(2, LEVELS));
#else
    const float *from = p->source + (row << p->log2);
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int at = PLACE(AT(GROUP(COLUMNS), r));
        x[r] = at < p->live ? from[at] : 0;
    }
    levels(x, COLUMNS - GROUP(COLUMNS), LOWER(5, END - GROUP(COLUMNS)));
#endif

#pragma unroll
    for (int stage = 0; stage < 3; stage++) {
        const int a = BEGIN + 5 * stage, g = GROUP(a);
        if (a < END) {
            if (stage || LOAD != ROWS) {
                const int before = CONTIGUOUS && stage == 0 ? 0 : GROUP(a - 5);
                const int mine = BANKED(CONTIGUOUS && stage == 0 ? thread << 2 : HELD(before));
#pragma unroll
                for (int r = 0; r < EACH; r++)
                    tile[mine ^ BANKED(CONTIGUOUS && stage == 0 ? (r & 3) | (r >> 2) << (TILE - 3) : r << before)] = x[r];
            }
            SYNCHRONISE;
            const int mine = BANKED(HELD(g));
#pragma unroll
            for (int r = 0; r < EACH; r++) x[r] = tile[mine ^ BANKED(r << g)];
            levels(x, a - g, LOWER(5, END - g));
        }
    }

#if STORE == ROWS || STORE == MISFIT
#pragma unroll
    for (int r = 0; r < EACH; r++) tile[BANKED(LAST(r))] = x[r] * p->scale;
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
#else
    const unsigned plus = STORE == WEIGHTS && p->flips ? p->flips[NUMBER * THREADS + thread] : ~0u;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int e = LAST(r), at = PLACE(e);
        if (!EXISTS(e)) continue;
        if (STORE == SCRATCH) p->target[(ROW(e) << p->log2) + at] = x[r];
        if (STORE == PLAIN) p->target[(ROW(e) << p->log2) + at] = x[r] * p->scale;
        if (STORE == WEIGHTS && at < p->n) p->target[ROW(e) * p->n + at] = flipped(x[r] * p->scale, plus >> r);
    }
#endif
}

/* D for the threads of a pass with LOAD or STORE of WEIGHTS: from n packed bits at source to words at target. Padding is +. */
KERNEL_OF(THREADS) spread_flips(CONSTANT Pass pass) {
    const Pass *p = &pass;
    const int thread = THREAD;
    const int place = (int)(BASE & WIDTH);
    unsigned word = 0;
    for (int r = 0; r < EACH; r++) {
        const int at = PLACE(LOAD == WEIGHTS ? QUAD(r) : LAST(r));
        word |= (at < p->n ? ((const unsigned char *)p->source)[at >> 3] >> (at & 7) & 1u : 1u) << r;
    }
    ((unsigned *)p->target)[NUMBER * THREADS + thread] = word;
}
