/* 3 x 3 convolutions of many clients on a GPU: each one's pictures with weights of its own, zeros around the pictures.

Threads work on patches of TALL x 4 pixels; a block fetches bands of ACROSS x DOWN patches. The rows of all pictures lie
below each other, with one of zeros between two pictures. The next band comes while threads work on this one. Pictures
that fit into a patch are taken whole: what lies around them is neither fetched nor multiplied.

Options: HEIGHT and WIDTH of pictures, TALL, ACROSS, DOWN. For `convolve` GROUPS of threads with OUTS outputs each, and
DEPTH channels fetched at a time; for `correlate` OUT_LANES x IN_LANES threads with 4 outputs and 2 inputs each. */

#define THREADS 128
#define WARP 32
#define WARPS (THREADS / WARP)
#define TAPS 9
#define AREA (HEIGHT * WIDTH)
#define WHOLE (HEIGHT <= TALL && WIDTH <= 4)
#define HALO (!WHOLE)                     /* whether a band has a pixel more on each side */
#define STEPS ((HEIGHT + TALL - 1) / TALL) /* patches below each other in a picture */
#define SPAN (STEPS * TALL + 1)           /* rows of a picture, with that of zeros */
#define PATCHES (DOWN * ACROSS)
#define ALIGNED (DOWN % STEPS == 0 || STEPS % DOWN == 0) /* bands begin where pictures do, or have one alone */
#define BAND (DOWN * TALL + (ALIGNED ? (DOWN - 1) / STEPS : (DOWN + STEPS - 2) / STEPS))
#define PITCH(halo) (4 * ACROSS + ((halo) ? ACROSS == 4 ? 8 : 4 : 0)) /* rows begin at different banks */
#define PLANE(halo) (((BAND + 2 * (halo)) * PITCH(halo) / 4 + (halo) | 1) * 4) /* and planes do */
#define VECTOR (WIDTH % 4 == 0 ? 4 : WIDTH % 2 == 0 ? 2 : 1) /* pixels side by side that addresses are aligned to */
#define COLUMN(tile) (WIDTH > 4 * ACROSS ? (int)(tile) * ACROSS * 4 : 0)
#define UNROLL _Pragma("unroll")

/* Whether the neighbour `tap` of a pixel of a patch may lie in the picture. */
#define TAKEN(y, x, tap) (HALO || ((x) < WIDTH && WITHIN((y) + (tap) / 3, HEIGHT) && WITHIN((x) + (tap) % 3, WIDTH)))
#define WITHIN(place, size) ((place) > 0 && (place) <= (size))

typedef struct { float v[4]; } __attribute__((aligned(16))) Four;
typedef struct { float v[VECTOR]; } __attribute__((aligned(4 * VECTOR))) Aligned;

/* How many rows lie above a step, of all those of the pictures. */
DEVICE unsigned above(unsigned step) { return step * TALL + step / STEPS; }

/* How many rows of a band lie above one of its steps. */
DEVICE int rows_above(unsigned first, int step) {
    return ALIGNED ? step * TALL + step / STEPS : (int)(above(first + step) - above(first));
}

/* Zeros beside the pictures, where no band has other pixels there. */
DEVICE void clear(float *store, int count) {
    if (WHOLE || WIDTH > 4 * ACROSS) return;
    for (int i = THREAD; i < count; i += THREADS) store[i] = 0;
    SYNCHRONISE;
}

/* Begin to copy a band, from step `first` and pixel `column` on, of `planes` channels of `all`, a warp for each.
Beyond the pictures and from channel `known` on there are zeros. */
DEVICE void fetch(float *to, const float *from, unsigned first, int column, int pictures, int planes, int known,
                  int all, int halo) {
    const int warp = THREAD / WARP;
    for (int i = THREAD % WARP; i < (BAND + 2 * halo) * ACROSS; i += WARP) {
        const unsigned row = above(first) + i / ACROSS + halo * (SPAN - 1); /* that above the first is one of zeros */
        const unsigned picture = row / SPAN - halo, y = row % SPAN;
        const int x = column + i % ACROSS * 4, inside = y < HEIGHT && picture < (unsigned)pictures;
        const float *at = from + (inside ? picture * all * AREA + y * WIDTH + x : 0) + warp * AREA;
        float *into = to + i / ACROSS * PITCH(halo) + i % ACROSS * 4 + 4 * halo + warp * PLANE(halo);
        UNROLL for (int plane = 0; plane < planes; plane += WARPS, at += WARPS * AREA, into += WARPS * PLANE(halo)) {
            if (planes % WARPS && plane + warp >= planes) continue;
            const int there = inside && plane + warp < known;
            UNROLL for (int e = 0; e < (HALO ? 4 : WIDTH); e += VECTOR)
                COPY(VECTOR, into + e, at + e, there && x + e < WIDTH);
            if (!halo || WIDTH <= 4 * ACROSS) continue;
            if (i % ACROSS == 0) COPY(1, into - 1, at - 1, there && x > 0);
            if (i % ACROSS == ACROSS - 1) COPY(1, into + 4, at + 4, there && x + 4 < WIDTH);
        }
    }
}

/* A patch and the pixels around it; those that are never taken stay unset. */
DEVICE void look(float near[TALL + 2][6], const float *at) {
    UNROLL for (int r = 0; r < TALL + 2 * HALO; r++) {
        const Four four = *(const Four *)(at + r * PITCH(HALO) + 4 * HALO);
        UNROLL for (int x = 0; x < 4; x++) near[r + WHOLE][x + 1] = four.v[x];
        if (HALO) near[r][0] = at[r * PITCH(HALO) + 3], near[r][5] = at[r * PITCH(HALO) + 8];
    }
}

typedef struct {
    const float *x, *w, *bias; /* (clients, pictures, in, height, width); bias may be missing */
    float *y;                  /* (clients, pictures, out, height, width) */
    long long w_step, bias_step; /* numbers between the weights of one client and the next */
    int in_, out, pictures, out_tiles, column_tiles, bands;
    int back; /* w is (in, out, taps from the last to the first): the gradient of the inputs */
} Convolution;

#ifdef OUTS
#define OUT (GROUPS * OUTS)
#define BESIDE (OUT + 4) /* weights of one row and the next, at different banks */
#define SLOTS (THREADS / GROUPS)
#define STAGE (DEPTH * (PLANE(HALO) + TAPS * BESIDE))

typedef struct { float v[OUTS]; } __attribute__((aligned(OUTS < 4 ? 4 * OUTS : 16))) Weights;

/* Begin to copy the weights of some channels: (channels, taps, outputs). */
DEVICE void fetch_weights(float *to, const Convolution *c, const float *w, int channel, int channels, int first_out) {
    const int warp = THREAD / WARP, outs = c->out - first_out;
    if (c->back) /* along the weights of an input */
        for (int i = THREAD % WARP; i < OUT * TAPS; i += WARP) {
            const float *from = w + ((channel + warp) * c->out + first_out) * TAPS + i;
            float *into = to + (warp * TAPS + TAPS - 1 - i % TAPS) * BESIDE + i / TAPS;
            UNROLL for (int d = 0; d < DEPTH; d += WARPS, from += WARPS * TAPS * c->out)
                if (d + warp < channels) COPY(1, into + d * TAPS * BESIDE, from, i < outs * TAPS);
        }
    else /* along those of an output */
        for (int i = THREAD % WARP; i < channels * TAPS; i += WARP) {
            const float *from = w + ((first_out + warp) * c->in_ + channel) * TAPS + i;
            UNROLL for (int o = 0; o < OUT; o += WARPS, from += WARPS * TAPS * c->in_)
                if (OUT % WARPS == 0 || o + warp < OUT) COPY(1, to + i * BESIDE + o + warp, from, o + warp < outs);
        }
}

KERNEL_WITH(THREADS, OUTS * TALL > 8 ? 4 : 5) convolve(CONSTANT Convolution c) {
    SHARED(float, store);
    const unsigned block = (unsigned)BLOCK, tile = block / c.out_tiles;
    const int first_out = (int)(block % c.out_tiles) * OUT, first_column = COLUMN(tile % c.column_tiles);
    const unsigned first = tile / c.column_tiles % c.bands * DOWN;
    const long long client = tile / c.column_tiles / c.bands;
    const float *x = c.x + client * c.in_ * c.pictures * AREA, *w = c.w + client * c.w_step;
    const int slot = THREAD % SLOTS < PATCHES ? THREAD % SLOTS : 0, group = THREAD / SLOTS * OUTS;
    const int place = rows_above(first, slot / ACROSS) * PITCH(HALO) + slot % ACROSS * 4;
    float sums[OUTS][TALL][4];
    UNROLL for (int o = 0; o < OUTS; o++)
        UNROLL for (int y = 0; y < TALL; y++)
            UNROLL for (int p = 0; p < 4; p++) sums[o][y][p] = 0;
    int next = c.in_ < DEPTH ? c.in_ : DEPTH, turn = 0;
    clear(store, 2 * STAGE);
    fetch(store, x, first, first_column, c.pictures, DEPTH, next, c.in_, HALO);
    fetch_weights(store + DEPTH * PLANE(HALO), &c, w, 0, next, first_out);
    for (int channel = 0; channel < c.in_; channel += DEPTH, turn ^= 1) {
        const float *xs = store + turn * STAGE + place, *ws = store + turn * STAGE + DEPTH * PLANE(HALO) + group;
        const int depth = next, after = channel + DEPTH;
        COPIED;
        SYNCHRONISE;
        if (after < c.in_) {
            float *to = store + (turn ^ 1) * STAGE;
            next = c.in_ - after < DEPTH ? c.in_ - after : DEPTH;
            fetch(to, x + after * AREA, first, first_column, c.pictures, DEPTH, next, c.in_, HALO);
            fetch_weights(to + DEPTH * PLANE(HALO), &c, w, after, next, first_out);
        }
        _Pragma("unroll 1") for (int d = 0; d < depth; d++) {
            float near[TALL + 2][6];
            look(near, xs + d * PLANE(HALO));
            UNROLL for (int r = 0; r < TAPS; r++) {
                const Weights weights = *(const Weights *)(ws + (d * TAPS + r) * BESIDE);
                UNROLL for (int o = 0; o < OUTS; o++)
                    UNROLL for (int y = 0; y < TALL; y++)
                        UNROLL for (int p = 0; p < 4; p++)
                            if (TAKEN(y, p, r)) sums[o][y][p] += weights.v[o] * near[y + r / 3][p + r % 3];
            }
        }
    }
    const unsigned step = first + slot / ACROSS, picture = step / STEPS;
    if (THREAD % SLOTS >= PATCHES || picture >= (unsigned)c.pictures) return;
    float *to = c.y + (client * c.pictures + picture) * c.out * AREA;
    UNROLL for (int o = 0; o < OUTS; o++) {
        const int out = first_out + group + o;
        if (out >= c.out) continue;
        const float b = c.bias ? c.bias[client * c.bias_step + out] : 0;
        UNROLL for (int y = 0; y < TALL; y++)
            UNROLL for (int p = 0; p < 4; p += VECTOR) {
                const int row = (int)(step % STEPS) * TALL + y, column = first_column + slot % ACROSS * 4 + p;
                if (row >= HEIGHT || column >= WIDTH) continue;
                Aligned some;
                UNROLL for (int i = 0; i < VECTOR; i++) some.v[i] = sums[o][y][p + i] + b;
                *(Aligned *)(to + (out * HEIGHT + row) * WIDTH + column) = some;
            }
    }
}
#endif

typedef struct {
    const float *x, *g; /* inputs and gradients of the outputs */
    float *parts;       /* (splits, clients, out, in * 9) */
    int clients, in_, out, pictures, out_tiles, in_tiles, column_tiles, bands, splits;
} Correlation;

#ifdef OUT_LANES
#define OUT (4 * OUT_LANES)
#define IN (2 * IN_LANES)
#define SIDES (THREADS / (OUT_LANES * IN_LANES)) /* threads that share the patches of a band */
#define STAGE (IN * PLANE(HALO) + OUT * PLANE(0))
#define ROW (IN * TAPS + 1)

KERNEL_WITH(THREADS, 4) correlate(CONSTANT Correlation c) {
    SHARED(float, store);
    const unsigned block = (unsigned)BLOCK, tile = block / c.in_tiles;
    const int first_in = (int)(block % c.in_tiles) * IN, first_out = (int)(tile % c.out_tiles) * OUT;
    const long long client = tile / c.out_tiles % c.clients, split = tile / c.out_tiles / c.clients;
    const float *x = c.x + client * c.in_ * c.pictures * AREA + first_in * AREA;
    const float *g = c.g + client * c.out * c.pictures * AREA + first_out * AREA;
    const int out = THREAD % OUT_LANES, in = THREAD / OUT_LANES % IN_LANES, side = THREAD / (OUT_LANES * IN_LANES);
    float sums[4][2][TAPS];
    UNROLL for (int o = 0; o < 4; o++)
        UNROLL for (int i = 0; i < 2; i++)
            UNROLL for (int r = 0; r < TAPS; r++) sums[o][i][r] = 0;
    clear(store, 2 * STAGE);
    const long long chunks = (long long)c.bands * c.column_tiles;
    const int begin = (int)(chunks * split / c.splits), end = (int)(chunks * (split + 1) / c.splits);
    for (int chunk = begin - 1; chunk < end; chunk++) { /* one behind what is fetched */
        COPIED;
        SYNCHRONISE;
        if (chunk + 1 < end) {
            const unsigned first = (unsigned)(chunk + 1) / c.column_tiles * DOWN;
            const int column = COLUMN((chunk + 1) % c.column_tiles);
            float *to = store + (chunk + 1 - begin) % 2 * STAGE;
            fetch(to, x, first, column, c.pictures, IN, c.in_ - first_in, c.in_, HALO);
            fetch(to + IN * PLANE(HALO), g, first, column, c.pictures, OUT, c.out - first_out, c.out, 0);
        }
        if (chunk < begin) continue;
        const unsigned first = (unsigned)chunk / c.column_tiles * DOWN;
        const float *xs = store + (chunk - begin) % 2 * STAGE + in * PLANE(HALO);
        const float *gs = store + (chunk - begin) % 2 * STAGE + IN * PLANE(HALO) + out * PLANE(0);
        _Pragma("unroll 1") for (int patch = side; patch < PATCHES; patch += SIDES) {
            const int rows = rows_above(first, patch / ACROSS), across = patch % ACROSS * 4;
            float near[2][TALL + 2][6];
            UNROLL for (int i = 0; i < 2; i++)
                look(near[i], xs + i * IN_LANES * PLANE(HALO) + rows * PITCH(HALO) + across);
            UNROLL for (int o = 0; o < 4; o++)
                UNROLL for (int y = 0; y < TALL; y++) {
                    const Four errors = *(const Four *)(gs + o * OUT_LANES * PLANE(0) + (rows + y) * PITCH(0) + across);
                    UNROLL for (int p = 0; p < 4; p++)
                        UNROLL for (int i = 0; i < 2; i++)
                            UNROLL for (int r = 0; r < TAPS; r++)
                                if (TAKEN(y, p, r)) sums[o][i][r] += errors.v[p] * near[i][y + r / 3][p + r % 3];
                }
        }
    }
    for (int turn = 0; turn < SIDES; turn++) { /* rows in shared memory, so that neighbours are written together */
        SYNCHRONISE;
        if (side == turn)
            UNROLL for (int o = 0; o < 4; o++)
                UNROLL for (int i = 0; i < 2; i++)
                    UNROLL for (int r = 0; r < TAPS; r++) {
                        float *to = store + (out + o * OUT_LANES) * ROW + (in + i * IN_LANES) * TAPS + r;
                        *to = turn ? *to + sums[o][i][r] : sums[o][i][r];
                    }
    }
    SYNCHRONISE;
    float *parts = c.parts + (split * c.clients + client) * c.out * c.in_ * TAPS;
    const int outs = c.out - first_out < OUT ? c.out - first_out : OUT;
    const int row = (c.in_ - first_in < IN ? c.in_ - first_in : IN) * TAPS;
    for (int o = THREAD / WARP; o < outs; o += WARPS)
        for (int i = THREAD % WARP; i < row; i += WARP)
            parts[((first_out + o) * c.in_ + first_in) * TAPS + i] = store[o * ROW + i];
}
#endif
