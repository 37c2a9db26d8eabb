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

#ifdef PIXELS
#define ACROSS (PIXELS / EACH)             /* threads for the pixels of one output */
#define OUTS (OUT / (THREADS / ACROSS))    /* outputs of a thread */
#define ROWS (DEPTH * TAPS)

DEVICE long long place_of(const Convolution *c, long long pixel, int channels) {
    const int area = c->height * c->width;
    return pixel / area * channels * area + pixel % area;
}

/* Bit r: the neighbour (r / 3 - 1, r % 3 - 1) of a pixel lies in the picture. */
DEVICE int neighbours(int height, int width, int place) {
    const int row = place / width, column = place % width;
    int there = 0;
    for (int r = 0; r < TAPS; r++) {
        const int y = row + r / 3 - 1, x = column + r % 3 - 1;
        there |= (y >= 0 && y < height && x >= 0 && x < width) << r;
    }
    return there;
}

KERNEL_WITH(THREADS, 3) convolve(CONSTANT Convolution c) {
    SHARED(float, store);
    float *xs = store, *ws = store + ROWS * PIXELS;
    const int area = c.height * c.width, first_out = (int)(BLOCK / c.pixel_tiles % c.out_tiles) * OUT;
    const long long client = BLOCK / c.pixel_tiles / c.out_tiles, pixels = (long long)c.pictures * area;
    const long long first = BLOCK % c.pixel_tiles * PIXELS;
    const float *x = c.x + client * c.in_ * pixels, *w = c.w + client * c.w_step;
    const long long mine = first + THREAD % PIXELS; /* whose neighbours this thread fetches */
    const int there = mine < pixels ? neighbours(c.height, c.width, (int)(mine % area)) : 0;
    const float *centre = x + (mine < pixels ? place_of(&c, mine, c.in_) : 0);
    const int across = THREAD % ACROSS, outs = THREAD / ACROSS * OUTS;
    float sums[OUTS][EACH];
    _Pragma("unroll") for (int o = 0; o < OUTS; o++)
        _Pragma("unroll") for (int p = 0; p < EACH; p++) sums[o][p] = 0;
    for (int channel = 0; channel < c.in_; channel += DEPTH) {
        SYNCHRONISE;
        for (int q = THREAD / PIXELS; q < ROWS; q += THREADS / PIXELS) {
            const int from = channel + q / TAPS, r = q % TAPS;
            const int known = from < c.in_ && (there >> r & 1);
            xs[q * PIXELS + THREAD % PIXELS] =
                known ? centre[(long long)from * area + (r / 3 - 1) * c.width + r % 3 - 1] : 0;
        }
        for (int i = THREAD; i < OUT * ROWS; i += THREADS) {
            const int o = first_out + i % OUT, q = i / OUT, from = channel + q / TAPS, r = q % TAPS;
            const int known = o < c.out && from < c.in_;
            ws[i] = !known ? 0 : c.back ? w[(from * c.out + o) * TAPS + TAPS - 1 - r] : w[(o * c.in_ + from) * TAPS + r];
        }
        SYNCHRONISE;
        for (int q = 0; q < ROWS; q++) {
            float values[EACH], weights[OUTS];
            _Pragma("unroll") for (int p = 0; p < EACH; p += 4) {
                const float4 four = *(const float4 *)(xs + q * PIXELS + 4 * across + p * ACROSS);
                values[p] = four.x, values[p + 1] = four.y, values[p + 2] = four.z, values[p + 3] = four.w;
            }
            _Pragma("unroll") for (int o = 0; o < OUTS; o++) weights[o] = ws[q * OUT + outs + o];
            _Pragma("unroll") for (int o = 0; o < OUTS; o++)
                _Pragma("unroll") for (int p = 0; p < EACH; p++) sums[o][p] += weights[o] * values[p];
        }
    }
    float *y = c.y + client * c.out * pixels;
    _Pragma("unroll") for (int p = 0; p < EACH; p++) {
        const long long pixel = first + 4 * across + p / 4 * 4 * ACROSS + p % 4;
        if (pixel >= pixels) continue;
        const long long place = place_of(&c, pixel, c.out);
        _Pragma("unroll") for (int o = 0; o < OUTS; o++) {
            const int out = first_out + outs + o;
            if (out < c.out) y[place + (long long)out * area] = sums[o][p] + (c.bias ? c.bias[client * c.bias_step + out] : 0);
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
    const int area = c.height * c.width, all = c.in_ * TAPS;
    const int first_column = (int)(BLOCK % c.column_tiles) * COLUMNS;
    const int first_out = (int)(BLOCK / c.column_tiles % c.out_tiles) * OUT;
    const long long rest = BLOCK / c.column_tiles / c.out_tiles, client = rest % c.clients, split = rest / c.clients;
    const long long pixels = (long long)c.pictures * area, chunks = (pixels + CHUNK - 1) / CHUNK;
    const float *x = c.x + client * c.in_ * pixels, *g = c.g + client * c.out * pixels;
    const int column = THREAD % 16, out = THREAD / 16, lane = THREAD % CHUNK;
    float sums[OUTS][WIDE];
    _Pragma("unroll") for (int o = 0; o < OUTS; o++)
        _Pragma("unroll") for (int q = 0; q < WIDE; q++) sums[o][q] = 0;
    for (long long chunk = chunks * split / c.splits; chunk < chunks * (split + 1) / c.splits; chunk++) {
        const long long pixel = chunk * CHUNK + lane, picture = pixel / area;
        const int place = (int)(pixel % area), row = place / c.width, beside = place % c.width;
        SYNCHRONISE;
        for (int q = THREAD / CHUNK; q < COLUMNS; q += THREADS / CHUNK) {
            const int at = first_column + q, y = row + at % TAPS / 3 - 1, z = beside + at % 3 - 1;
            const int known = at < all && pixel < pixels && y >= 0 && y < c.height && z >= 0 && z < c.width;
            xs[q * PITCH + lane] = known ? x[(picture * c.in_ + at / TAPS) * area + y * c.width + z] : 0;
        }
        for (int o = THREAD / CHUNK; o < OUT; o += THREADS / CHUNK) {
            const int known = first_out + o < c.out && pixel < pixels;
            gs[o * PITCH + lane] = known ? g[(picture * c.out + first_out + o) * area + place] : 0;
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
