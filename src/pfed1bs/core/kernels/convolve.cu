/* 3 x 3 convolutions of many clients on a GPU: each one's pictures with weights of its own, zeros around the pictures.

Options: OUT channels and PIXELS pixels of a block, EACH pixels of a thread, DEPTH channels fetched at a time; COLUMNS
weights of an output for gradients. */

#define THREADS 256
#define TAPS 9
#define CHUNK 64
#define PITCH (CHUNK + 4) /* rows of shared memory begin at different banks */

typedef struct {
    const float *x, *w, *bias; /* (clients, pictures, in, height, width); bias may be missing */
    float *y;                  /* (clients, pictures, out, height, width) */
    long long w_step, bias_step; /* numbers between the weights of one client and the next */
    int in_, out, height, width, pictures, out_tiles, pixel_tiles;
    int back; /* w is (in, out, taps from the last to the first): the gradient of the inputs */
} Convolution;

/* Bit r: the neighbour (r / 3 - 1, r % 3 - 1) of a pixel lies in the picture. */
DEVICE int neighbours(int height, int width, int place) {
    const int row = place / width, column = place % width;
    const int rows = (row > 0 ? 7 : 0) | 7 << 3 | (row + 1 < height ? 7 << 6 : 0);
    return rows & ((column > 0 ? 73 : 0) | 73 << 1 | (column + 1 < width ? 73 << 2 : 0));
}

#ifdef PIXELS
#define ACROSS (PIXELS / EACH)             /* threads for the pixels of one output */
#define OUTS (OUT / (THREADS / ACROSS))    /* outputs of a thread */
#define ROWS (DEPTH * TAPS)
#define BESIDE (OUT + 4) /* weights of one row and the next, at different banks */

KERNEL_WITH(THREADS, 3) convolve(CONSTANT Convolution c) {
    SHARED(float, store);
    float *xs = store, *ws = store + ROWS * PIXELS;
    const unsigned block = (unsigned)BLOCK, area = c.height * c.width, pixels = c.pictures * area;
    const int first_out = (int)(block / c.pixel_tiles % c.out_tiles) * OUT;
    const long long client = block / c.pixel_tiles / c.out_tiles;
    const unsigned first = block % c.pixel_tiles * PIXELS;
    const unsigned mine = first + THREAD % PIXELS, picture = mine / area; /* whose neighbours this thread fetches */
    const int there = mine < pixels ? neighbours(c.height, c.width, (int)(mine - picture * area)) : 0;
    const float *x = c.x + client * c.in_ * pixels, *w = c.w + client * c.w_step;
    const float *centre = x + (mine < pixels ? (long long)picture * c.in_ * area + (mine - picture * area) : 0);
    const int across = THREAD % ACROSS, outs = THREAD / ACROSS * OUTS;
    float sums[OUTS][EACH];
    _Pragma("unroll") for (int o = 0; o < OUTS; o++)
        _Pragma("unroll") for (int p = 0; p < EACH; p++) sums[o][p] = 0;
    for (int channel = 0; channel < c.in_; channel += DEPTH) {
        SYNCHRONISE;
        _Pragma("unroll") for (int d = 0; d < DEPTH; d += THREADS / PIXELS) {
            const int deep = d + THREAD / PIXELS, from = channel + deep;
            if (deep >= DEPTH) continue;
            const int known = from < c.in_ ? there : 0;
            const float *at = centre + (known ? from * area : 0);
            float *to = xs + deep * TAPS * PIXELS + THREAD % PIXELS;
            _Pragma("unroll") for (int r = 0; r < TAPS; r++)
                to[r * PIXELS] = known >> r & 1 ? at[(r / 3 - 1) * c.width + r % 3 - 1] : 0;
        }
        if (c.back) /* along the weights of an input */
            for (int i = THREAD; i < OUT * ROWS; i += THREADS) {
                const int d = i / (OUT * TAPS), at = i % (OUT * TAPS);
                const int known = channel + d < c.in_ && at < (c.out - first_out) * TAPS;
                const float value = w[known ? ((channel + d) * c.out + first_out) * TAPS + at : 0];
                ws[(d * TAPS + TAPS - 1 - at % TAPS) * BESIDE + at / TAPS] = known ? value : 0;
            }
        else /* along those of an output */
            for (int i = THREAD; i < OUT * ROWS; i += THREADS) {
                const int o = i / ROWS, at = i % ROWS;
                const int known = first_out + o < c.out && at < (c.in_ - channel) * TAPS;
                const float value = w[known ? ((first_out + o) * c.in_ + channel) * TAPS + at : 0];
                ws[at * BESIDE + o] = known ? value : 0;
            }
        SYNCHRONISE;
        for (int q = 0; q < ROWS; q++) {
            float values[EACH], weights[OUTS];
            _Pragma("unroll") for (int p = 0; p < EACH; p += 4) {
                const float4 four = *(const float4 *)(xs + q * PIXELS + 4 * across + p * ACROSS);
                values[p] = four.x, values[p + 1] = four.y, values[p + 2] = four.z, values[p + 3] = four.w;
            }
            _Pragma("unroll") for (int o = 0; o < OUTS; o++) weights[o] = ws[q * BESIDE + outs + o];
            _Pragma("unroll") for (int o = 0; o < OUTS; o++)
                _Pragma("unroll") for (int p = 0; p < EACH; p++) sums[o][p] += weights[o] * values[p];
        }
    }
    float *y = c.y + client * c.out * pixels;
    _Pragma("unroll") for (int p = 0; p < EACH; p += 4) {
        const unsigned pixel = first + 4 * across + p * ACROSS;
        _Pragma("unroll") for (int o = 0; o < OUTS; o++) {
            const int out = first_out + outs + o;
            if (out >= c.out || pixel >= pixels) continue;
            const float b = c.bias ? c.bias[client * c.bias_step + out] : 0;
            const float4 four = {sums[o][p] + b, sums[o][p + 1] + b, sums[o][p + 2] + b, sums[o][p + 3] + b};
            if (area % 4 == 0) { /* four pixels lie in one picture, at an address for all of them */
                const unsigned of = pixel / area;
                *(float4 *)(y + ((long long)of * c.out + out) * area + (pixel - of * area)) = four;
            } else {
                const float values[4] = {four.x, four.y, four.z, four.w};
                for (int i = 0; i < 4 && pixel + i < pixels; i++)
                    y[((long long)((pixel + i) / area) * c.out + out) * area + (pixel + i) % area] = values[i];
            }
        }
    }
}
#endif

typedef struct {
    const float *x, *g; /* inputs and gradients of the outputs */
    float *parts;       /* (splits, clients, out, in * 9) */
    int clients, in_, out, height, width, pictures, out_tiles, column_tiles, splits;
} Correlation;

#ifdef COLUMNS
#define OUTS (OUT / 16)
#define WIDE (COLUMNS / 16)

KERNEL_WITH(THREADS, 3) correlate(CONSTANT Correlation c) {
    SHARED(float, store);
    float *xs = store, *gs = store + COLUMNS * PITCH;
    int *steps = (int *)(gs + OUT * PITCH), *taps = steps + COLUMNS; /* of the columns; 31: none */
    const unsigned block = (unsigned)BLOCK, area = c.height * c.width, pixels = c.pictures * area;
    const int first_column = (int)(block % c.column_tiles) * COLUMNS, all = c.in_ * TAPS;
    const int first_out = (int)(block / c.column_tiles % c.out_tiles) * OUT;
    const unsigned rest = block / c.column_tiles / c.out_tiles;
    const long long client = rest % c.clients, split = rest / c.clients, chunks = (pixels + CHUNK - 1) / CHUNK;
    const float *x = c.x + client * c.in_ * pixels, *g = c.g + client * c.out * pixels;
    const int column = THREAD % 16, out = THREAD / 16, lane = THREAD % CHUNK;
    float sums[OUTS][WIDE];
    _Pragma("unroll") for (int o = 0; o < OUTS; o++)
        _Pragma("unroll") for (int q = 0; q < WIDE; q++) sums[o][q] = 0;
    for (int q = THREAD; q < COLUMNS; q += THREADS) {
        const int at = first_column + q, r = at % TAPS;
        steps[q] = at < all ? at / TAPS * (int)area + (r / 3 - 1) * c.width + r % 3 - 1 : 0;
        taps[q] = at < all ? r : 31;
    }
    const int last = (int)(chunks * (split + 1) / c.splits);
    for (int chunk = (int)(chunks * split / c.splits); chunk < last; chunk++) {
        const unsigned pixel = (unsigned)chunk * CHUNK + lane, picture = pixel / area;
        const int place = (int)(pixel - picture * area), inside = pixel < pixels;
        const int there = inside ? neighbours(c.height, c.width, place) : 0;
        const float *from = x + (inside ? (long long)picture * c.in_ * area + place : 0);
        const float *errors = g + (inside ? (long long)picture * c.out * area + place : 0);
        SYNCHRONISE;
        float found[COLUMNS * CHUNK / THREADS]; /* all under way before the first is stored */
        _Pragma("unroll") for (int i = 0; i < COLUMNS * CHUNK / THREADS; i++) {
            const int q = i * (THREADS / CHUNK) + THREAD / CHUNK, known = there >> taps[q] & 1;
            const float value = from[known ? steps[q] : 0];
            found[i] = known ? value : 0;
        }
        _Pragma("unroll") for (int i = 0; i < COLUMNS * CHUNK / THREADS; i++)
            xs[(i * (THREADS / CHUNK) + THREAD / CHUNK) * PITCH + lane] = found[i];
        _Pragma("unroll") for (int i = 0; i < OUT; i += THREADS / CHUNK) {
            const int o = i + THREAD / CHUNK;
            const int known = inside && first_out + o < c.out;
            const float value = errors[known ? (first_out + o) * (int)area : 0];
            gs[o * PITCH + lane] = known ? value : 0;
        }
        SYNCHRONISE;
        for (int p = 0; p < CHUNK; p += 4) {
            float4 left[OUTS], right[WIDE];
            _Pragma("unroll") for (int o = 0; o < OUTS; o++) left[o] = *(const float4 *)(gs + (out + 16 * o) * PITCH + p);
            _Pragma("unroll") for (int q = 0; q < WIDE; q++) right[q] = *(const float4 *)(xs + (column + 16 * q) * PITCH + p);
            _Pragma("unroll") for (int o = 0; o < OUTS; o++)
                _Pragma("unroll") for (int q = 0; q < WIDE; q++) {
                    sums[o][q] += left[o].x * right[q].x;
                    sums[o][q] += left[o].y * right[q].y;
                    sums[o][q] += left[o].z * right[q].z;
                    sums[o][q] += left[o].w * right[q].w;
                }
        }
    }
    float *parts = c.parts + (split * c.clients + client) * c.out * all;
    _Pragma("unroll") for (int o = 0; o < OUTS; o++)
        _Pragma("unroll") for (int q = 0; q < WIDE; q++) {
            const int to = first_out + out + 16 * o, at = first_column + column + 16 * q;
            if (to < c.out && at < all) parts[(long long)to * all + at] = sums[o][q];
        }
}
#endif
