/* The transform on a GPU, in passes over memory; signs, padding, row selection and scale happen on the way in and out.

A block of threads takes a tile of 2^TILE floats, 32 in every thread, through LEVELS levels. In the first pass (COLUMNS
0) a tile is contiguous. In a later one it is 2^LEVELS pieces of 2^COLUMNS floats, 2^shift floats apart. Levels ascend,
each (a + b, a - b): every way to cut them into passes gives the same bits (docs/wire.md). The compiler of CUDA and, for
tests on a processor, a C compiler with a few definitions in front read this file.

Given by the caller: TILE, LEVELS, COLUMNS, LOAD, STORE, ALIGNED. */

#define PLAIN 0   /* float (rows, 2^log2) */
#define WEIGHTS 1 /* float (rows, n): times D, behind them zeros */
#define ROWS 2    /* float (rows, m): the coordinates that S keeps */
#define MISFIT 3  /* the same after |v| tanh(gamma q) - v */
#define SCRATCH 4 /* as PLAIN, without the scale */

#define EACH 32
#define THREADS (1 << (TILE - 5))
#define CONTIGUOUS (COLUMNS == 0)

typedef struct {
    unsigned rank, bits; /* of 32 coordinates: how many kept ones lie before, which of them are kept */
} Picks;

typedef struct {
    const float *source;
    float *target;
    const unsigned *flips; /* D: one bit for a weight, 1 is +; NULL: all + */
    const Picks *picks;    /* S */
    const float *v;
    long long count; /* floats of all rows together, padded */
    long long stride; /* between the rows of v; 0: one for all */
    int log2, shift, n, m;
    int live; /* where the zeros of every row begin that need not be read */
    float scale, gamma;
} Pass;

/* Places in shared memory so that no two lanes of a warp meet in one bank; xor of the parts is the place of the sum. */
#define BANKED(e) ((e) ^ (((e) >> 5) & 31))

/* The element of a tile that a thread holds in register r, when the registers are the bits g .. g + 4 of its number. */
#define HELD(g) ((thread & ((1 << (g)) - 1)) | (thread >> (g)) << ((g) + 5))
#define AT(g, r) (HELD(g) | (r) << (g))

/* As it is loaded in the first pass: four neighbours, so bits 0 and 1, and the three highest bits. */
#define QUAD(r) (((r) & 3) | thread << 2 | ((r) >> 2) << (TILE - 3))

#define LOWER(a, b) ((a) < (b) ? (a) : (b))
#define BEGIN (CONTIGUOUS ? 2 : COLUMNS + 5) /* the first bit whose level needs numbers of other threads */
#define END (COLUMNS + LEVELS)
#define GROUP(a) LOWER(a, TILE - 5) /* the lowest bit in registers for the levels from bit a on */

DEVICE float flipped(float x, unsigned plus) { return plus & 1 ? x : -x; }

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

#if CONTIGUOUS
/* Four coordinates of a row, the first of them at `at`. */
DEVICE void load_four(const Pass *p, long long row, int at, float *x) {
#if LOAD == PLAIN
    const float *from = p->source + (row << p->log2) + at;
    int left = 4;
#elif LOAD == WEIGHTS
    const float *from = p->source + row * p->n + at;
    int left = p->n - at;
#endif
#if LOAD != ROWS
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
#if LOAD == WEIGHTS
    if (p->flips && left > 0) {
        unsigned plus = p->flips[at >> 5] >> (at & 31);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < left) x[i] = flipped(x[i], plus >> i);
    }
#endif
#else
    Picks picks = p->picks[at >> 5];
    unsigned kept = picks.bits >> (at & 31) & 15;
    if (kept) {
        const float *from = p->source + row * p->m + picks.rank + POPCOUNT(picks.bits & ((1u << (at & 31)) - 1));
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (kept >> i & 1) x[i] = *from++;
    }
#endif
}
#endif

/* What becomes of one coordinate, number `at` of its row. */
DEVICE void store_one(const Pass *p, long long row, int at, float x) {
#if STORE == SCRATCH
    p->target[(row << p->log2) + at] = x;
#elif STORE == PLAIN
    p->target[(row << p->log2) + at] = x * p->scale;
#else
    /* D and S lie for this pass in the order of its tiles: behind each other what is 2^shift apart. */
    int word = at >> 5;
    if (!CONTIGUOUS) word = (word & ((1 << (p->shift - 5)) - 1)) << LEVELS | at >> p->shift;
#if STORE == WEIGHTS
    if (at < p->n) {
        x *= p->scale;
        p->target[row * p->n + at] = p->flips ? flipped(x, p->flips[word] >> (at & 31)) : x;
    }
#else
    Picks picks = p->picks[word];
    if (picks.bits >> (at & 31) & 1) {
        unsigned to = picks.rank + POPCOUNT(picks.bits & ((1u << (at & 31)) - 1));
        x *= p->scale;
#if STORE == MISFIT
        float v = p->v[row * p->stride + to];
        x = fabsf(v) * tanhf(p->gamma * x) - v;
#endif
        p->target[row * p->m + to] = x;
    }
#endif
#endif
}

KERNEL_OF(THREADS) transform_pass(CONSTANT Pass pass) {
    SHARED(float, tile);
    const Pass *p = &pass;
    const int thread = THREAD;
    float x[EACH];

#if CONTIGUOUS
    const long long base = BLOCK << TILE;
    const int width = (1 << p->log2) - 1;
#if LEVELS == TILE /* all of the tile is in one row */
#define ROW(e) (base >> p->log2)
#define PLACE(e) ((int)(base & width) + (e))
#define EXISTS(e) 1
#else
#define ROW(e) ((base + (e)) >> p->log2)
#define PLACE(e) ((int)((base + (e)) & width))
#define EXISTS(e) (base + (e) < p->count)
#endif
    if (LOAD == WEIGHTS && STORE == SCRATCH && PLACE(0) >= p->n) return; /* zeros, which the next pass need not read */
#pragma unroll
    for (int r = 0; r < EACH; r += 4) {
        int e = QUAD(r);
        x[r] = x[r + 1] = x[r + 2] = x[r + 3] = 0;
        if (EXISTS(e)) load_four(p, ROW(e), PLACE(e), x + r);
    }
    levels(x, 0, LOWER(2, LEVELS));
#else
    const int across = p->shift - COLUMNS; /* log2 of the tiles side by side */
    const long long base = BLOCK >> across << (p->shift + LEVELS) | (BLOCK & ((1 << across) - 1)) << COLUMNS;
    const long long row = base >> p->log2;
    const int place = (int)(base & ((1LL << p->log2) - 1));
#define ROW(e) row
#define PLACE(e) (place + (((e) >> COLUMNS) << p->shift | ((e) & ((1 << COLUMNS) - 1))))
#define EXISTS(e) 1
    const float *from = p->source + (row << p->log2);
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        int at = PLACE(AT(GROUP(COLUMNS), r));
        x[r] = at < p->live ? from[at] : 0;
    }
    levels(x, COLUMNS - GROUP(COLUMNS), LOWER(5, END - GROUP(COLUMNS)));
#endif

#pragma unroll
    for (int stage = 0; stage < 3; stage++) {
        const int a = BEGIN + 5 * stage, before = CONTIGUOUS && stage == 0 ? -1 : GROUP(a - 5), g = GROUP(a);
        if (a < END) {
            const int mine = BANKED(before < 0 ? thread << 2 : HELD(before < 0 ? 0 : before));
#pragma unroll
            for (int r = 0; r < EACH; r++)
                tile[mine ^ (before < 0 ? BANKED((r & 3) | (r >> 2) << (TILE - 3)) : BANKED(r << before))] = x[r];
            SYNCHRONISE;
            const int next = BANKED(HELD(g));
#pragma unroll
            for (int r = 0; r < EACH; r++) x[r] = tile[next ^ BANKED(r << g)];
            levels(x, a - g, LOWER(5, END - g));
        }
    }

#define STAGES ((END - BEGIN + 4) / 5)
#if CONTIGUOUS && LEVELS <= 2
#define LAST(r) QUAD(r)
#else
#define LAST(r) AT(GROUP(BEGIN + 5 * (STAGES - 1)), r)
#endif
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        int e = LAST(r);
        if (EXISTS(e)) store_one(p, ROW(e), PLACE(e), x[r]);
    }
}
