/* The transform of blocks and columns, for the instruction set of isa.h. */

/* The transform of fewer floats than a vector has. */
static TARGET void NAME(plain)(const float *src, float *dst, int levels, float scale) {
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

/* `levels` levels on 2^levels registers. */
INLINE void NAME(butterflies)(VEC *r, const int levels) {
    UNROLL for (int level = 0; level < levels; level++)
        UNROLL for (int j = 0; j < 1 << levels; j++)
            if (!(j >> level & 1)) {
                VEC a = r[j], b = r[j + (1 << level)];
                r[j] = a + b;
                r[j + (1 << level)] = a - b;
            }
}

/* The first LANES + levels levels of `size` floats, after the signs of `bits`. */
INLINE void NAME(chunks)(const float *src, float *dst, const uint8_t *bits, const int levels, size_t size, front *f) {
    const size_t width = (size_t)WIDTH << levels;
    for (size_t i = 0; i < size; i += width) {
        VEC r[1 << RADIX];
        size_t soonest = (size_t)(dst + i - f->data) + AHEAD;
        bool late = f->at < soonest;
        if (late) f->at = soonest;
        fetch(f, late ? width : width / SHARE);
        UNROLL for (int j = 0; j < 1 << levels; j++) {
            VEC x = LOAD(src + i + j * WIDTH);
            x = bits ? INSIDE(NEGATE(x, NAME(bits)(bits, i + j * WIDTH)), 1) : FIRST(x);
            x = INSIDE(x, 2);
#if WIDTH > 4
            x = INSIDE(x, 4);
#endif
#if WIDTH > 8
            x = INSIDE(x, 8);
#endif
            r[j] = x;
        }
        NAME(butterflies)(r, levels);
        UNROLL for (int j = 0; j < 1 << levels; j++) STORE(dst + i + j * WIDTH, r[j]);
    }
}

/* `levels` levels over rows of `width` floats that lie `from` (`to`) floats apart; `lines` lines of what comes next are
 * fetched with every vector. */
INLINE void NAME(radix)(const float *src, size_t from, float *dst, size_t to, const int levels, size_t width, ending e,
                        soon next, const int lines) {
    const float *s[4] = {src, src + 4 * from, src + 8 * from, src + 12 * from}; /* so few addresses stay in registers */
    float *d[4] = {dst, dst + 4 * to, dst + 8 * to, dst + 12 * to};
    for (size_t c = 0; c < width; c += WIDTH) {
        VEC r[1 << RADIX];
        UNROLL for (int j = 0; j < 1 << levels; j++) r[j] = LOAD(s[j / 4] + j % 4 * from);
        if (next.data)
            UNROLL for (int j = 0; j < lines; j++)
                __builtin_prefetch(next.data + c + j * next.apart, 1);
        NAME(butterflies)(r, levels);
        UNROLL for (int j = 0; j < 1 << levels; j++) {
            VEC x = r[j] * e.scale;
            if (e.bits && (size_t)j >= e.kept) break;
            if (e.bits) x = NEGATE(x, NAME(bits)(e.bits + j * to / 8, c));
            STORE(d[j / 4] + j % 4 * to, x);
        }
        UNROLL for (int i = 0; i < 4; i++) {
            s[i] += WIDTH;
            d[i] += WIDTH;
        }
    }
}

/* `levels` levels over 2^levels adjacent rows of `width` floats in place, with fetches in between. */
INLINE void NAME(strips)(float *data, size_t width, const int levels, front *f) {
    const size_t strip = least(STRIP >> levels, width);
    for (size_t c = 0; c < width; c += strip) {
        fetch(f, STRIP / SHARE);
        NAME(radix)(data + c, width, data + c, width, levels, strip, PLAIN, (soon){0}, 0);
    }
}

/* Levels first .. first + levels - 1 of the 2^total rows; `next` is fetched meanwhile, rows `apart` floats apart. */
static TARGET void NAME(rows)(const float *src, size_t from, float *dst, size_t to, int first, int levels, int total,
                              size_t width, ending e, const float *next, size_t apart) {
    for (size_t high = 0; high < (size_t)1 << (total - first - levels); high++)
        for (size_t low = 0; low < (size_t)1 << first; low++) {
            size_t row = (high << (first + levels)) + low, f = from << first, t = to << first;
            const float *s = src + row * from;
            float *d = dst + row * to;
            soon ahead = {next ? next + row * apart : NULL, apart << first};
            ending here = {e.scale, e.bits ? e.bits + row * to / 8 : NULL, 0};
            if (row < e.kept) here.kept = ((e.kept - row - 1) >> first) + 1;
#define CASE(n)                                                                            \
    case n:                                                                                \
        if (e.bits) NAME(radix)(s, f, d, t, n, width, here, ahead, 1 << n);                \
        else if (e.scale == 1.0f) NAME(radix)(s, f, d, t, n, width, PLAIN, ahead, 1 << n); \
        else NAME(radix)(s, f, d, t, n, width, (ending){e.scale, NULL, 0}, ahead, 1 << n); \
        break;
            switch (levels) {
                CASE(0) CASE(1) CASE(2) CASE(3)
#if RADIX > 3
                CASE(4)
#endif
            }
#undef CASE
        }
}

/* All levels of the 2^levels rows of a tile that is `width` floats wide, through `tile`, which may also be dst.
 * More than eight rows a multiple of a page apart would push each other out of the first-level cache between load and
 * store, so that they go through the tile even if the registers were enough. */
static TARGET void NAME(columns)(const float *src, size_t from, float *dst, size_t to, float *tile, int levels,
                                 size_t width, ending e, const float *next) {
    int pieces = levels > RADIX ? (levels + RADIX - 1) / RADIX : levels > 3 && from >= PAGE ? 2 : 1;
    size_t apart = from;
    for (int done = 0; pieces; pieces--) {
        int now = (levels - done + pieces - 1) / pieces;
        if (pieces == 1) NAME(rows)(src, from, dst, to, done, now, levels, width, e, next, apart);
        else NAME(rows)(src, from, tile, width, done, now, levels, width, PLAIN, NULL, 0);
        src = tile;
        from = width;
        done += now;
    }
}

/* All levels of 2^levels adjacent floats, levels <= BLOCK, after the signs of `bits`. */
static TARGET void NAME(block)(const float *src, float *dst, float *tile, const uint8_t *bits, int levels, float scale,
                               front *f) {
    if (levels < LANES) {
        NAME(plain)(src, dst, levels, scale);
        return;
    }
    int low = levels < LANES + RADIX ? levels : LANES + RADIX;
    size_t size = (size_t)1 << levels, width = (size_t)1 << low;
#define CASE(n)                                             \
    case n:                                                 \
        if (bits) NAME(chunks)(src, dst, bits, n, size, f); \
        else NAME(chunks)(src, dst, NULL, n, size, f);      \
        break;
    switch (low - LANES) {
        CASE(0) CASE(1) CASE(2) CASE(3)
#if RADIX > 3
        CASE(4)
#endif
    }
#undef CASE
    if (levels == low + RADIX && scale == 1.0f) {
        NAME(strips)(dst, width, RADIX, f);
    } else if (levels > low || scale != 1.0f) {
        NAME(columns)(dst, width, dst, width, tile, levels - low, width, (ending){scale, NULL, 0}, NULL);
    }
}
