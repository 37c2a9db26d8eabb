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

/* The first LANES + levels levels of 2^levels adjacent vectors. */
INLINE void NAME(chunk)(const float *src, float *dst, const int levels) {
    VEC r[1 << RADIX];
    UNROLL for (int j = 0; j < 1 << levels; j++) {
        VEC x = LOAD(src + j * WIDTH);
        x = FIRST(x);
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
    UNROLL for (int j = 0; j < 1 << levels; j++) STORE(dst + j * WIDTH, r[j]);
}

/* `levels` levels over rows of `width` floats that lie `from` (`to`) floats apart. */
INLINE void NAME(radix)(const float *src, size_t from, float *dst, size_t to, const int levels, size_t width,
                        const bool scaled, float scale) {
    const float *s[4] = {src, src + 4 * from, src + 8 * from, src + 12 * from}; /* so few addresses stay in registers */
    float *d[4] = {dst, dst + 4 * to, dst + 8 * to, dst + 12 * to};
    for (size_t c = 0; c < width; c += WIDTH) {
        VEC r[1 << RADIX];
        UNROLL for (int j = 0; j < 1 << levels; j++) r[j] = LOAD(s[j / 4] + j % 4 * from);
        NAME(butterflies)(r, levels);
        UNROLL for (int j = 0; j < 1 << levels; j++) STORE(d[j / 4] + j % 4 * to, scaled ? r[j] * scale : r[j]);
        UNROLL for (int i = 0; i < 4; i++) {
            s[i] += WIDTH;
            d[i] += WIDTH;
        }
    }
}

/* Levels first .. first + levels - 1 of the 2^total rows; `next` is fetched meanwhile, rows `apart` floats apart. */
static TARGET void NAME(rows)(const float *src, size_t from, float *dst, size_t to, int first, int levels, int total,
                              size_t width, float scale, const float *next, size_t apart) {
    for (size_t high = 0; high < (size_t)1 << (total - first - levels); high++)
        for (size_t low = 0; low < (size_t)1 << first; low++) {
            size_t row = (high << (first + levels)) + low;
            const float *s = src + row * from;
            float *d = dst + row * to;
            size_t f = from << first, t = to << first;
            for (size_t j = 0; next && j < (size_t)1 << levels; j++)
                for (size_t c = 0; c < width; c += LINE) __builtin_prefetch(next + (row + (j << first)) * apart + c, 1);
#define CASE(n)                                                                                                       \
    case n:                                                                                                           \
        if (scale == 1.0f) NAME(radix)(s, f, d, t, n, width, false, scale);                                            \
        else NAME(radix)(s, f, d, t, n, width, true, scale);                                                           \
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
                                 size_t width, float scale, const float *next) {
    int pieces = levels > RADIX ? (levels + RADIX - 1) / RADIX : levels > 3 && from >= PAGE ? 2 : 1;
    size_t apart = from;
    for (int done = 0; pieces; pieces--) {
        int now = (levels - done + pieces - 1) / pieces;
        if (pieces == 1) NAME(rows)(src, from, dst, to, done, now, levels, width, scale, next, apart);
        else NAME(rows)(src, from, tile, width, done, now, levels, width, 1.0f, NULL, 0);
        src = tile;
        from = width;
        done += now;
    }
}

/* All levels of 2^levels adjacent floats, levels <= BLOCK, through `tile`. */
static TARGET void NAME(block)(const float *src, float *dst, float *tile, int levels, float scale) {
    if (levels < LANES) {
        NAME(plain)(src, dst, levels, scale);
        return;
    }
    int low = levels < LANES + RADIX ? levels : LANES + RADIX;
    float *half = levels > low ? tile : dst;
    for (size_t i = 0; i < (size_t)1 << levels; i += (size_t)1 << low) {
        for (size_t ahead = 0; ahead < (size_t)1 << low; ahead += LINE) {
            __builtin_prefetch(dst + i + ahead, 1);
            __builtin_prefetch(src + i + AHEAD + ahead, 0);
        }
        switch (low - LANES) {
            case 0: NAME(chunk)(src + i, half + i, 0); break;
            case 1: NAME(chunk)(src + i, half + i, 1); break;
            case 2: NAME(chunk)(src + i, half + i, 2); break;
            case 3: NAME(chunk)(src + i, half + i, 3); break;
#if RADIX > 3
            case 4: NAME(chunk)(src + i, half + i, 4); break;
#endif
        }
    }
    size_t width = (size_t)1 << low;
    if (levels > low || scale != 1.0f) 
        NAME(columns)(half, width, dst, width, tile, levels - low, width, scale, NULL);
}
