/* The kernels for one instruction set; _fht.c includes this file once for each, with
 *   WIDTH    floats in a vector, LANES its binary logarithm,
 *   RADIX    levels done at once on 2^RADIX registers,
 *   BLOCK    levels done in the first-level cache before anything else is read,
 *   TARGET   the function attribute that switches the instructions on,
 *   NAME(f)  the name of f for this instruction set.
 *
 * Order of operations: the level with distance h = 1 first, then 2, 4, ...; each pair becomes (a + b, a - b); one
 * multiplication at the end. A level inside a vector is x * (+-1) + swapped x, which rounds like a + b and a - b with
 * or without fused multiply-add. So every instruction set and every number of threads gives the same bits. */

typedef float NAME(vec) __attribute__((vector_size(4 * WIDTH)));
typedef float NAME(loose) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * WIDTH)));
typedef int32_t NAME(looseints) __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define VEC NAME(vec)
#define INTS NAME(ints)
#define LOAD(p) ((VEC)(*(const NAME(loose) *)(p)))
#define STORE(p, v) (*(NAME(loose) *)(p) = (v))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define SIGN(i, h) ((i) & (h) ? -1.0f : 1.0f)
#define EACH4(f, h, o) f(o, h), f(o + 1, h), f(o + 2, h), f(o + 3, h)
#if WIDTH == 16
#define EACH(f, h) EACH4(f, h, 0), EACH4(f, h, 4), EACH4(f, h, 8), EACH4(f, h, 12)
#elif WIDTH == 8
#define EACH(f, h) EACH4(f, h, 0), EACH4(f, h, 4)
#else
#define EACH(f, h) EACH4(f, h, 0)
#endif
#define XOR(i, h) ((i) ^ (h))
#define BIT(i, h) ((h) << (i))
#ifdef __clang__
#define SWAP(x, h) __builtin_shufflevector(x, x, EACH(XOR, h))
#else
#define SWAP(x, h) __builtin_shuffle(x, (INTS){EACH(XOR, h)})
#endif
#define INSIDE(x, h) ((x) * (VEC){EACH(SIGN, h)} + SWAP(x, h))
/* The same for h = 1 and a vector in memory, from where both parts are loaded already shuffled. */
#if WIDTH == 16
#define FIRST(x) ((VEC)_mm512_movehdup_ps(x) * (VEC){EACH(SIGN, 1)} + (VEC)_mm512_moveldup_ps(x))
#else
#define FIRST(x) INSIDE(x, 1)
#endif

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
        plain_block(src, dst, levels, scale);
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

/* WIDTH bits from bit number i, a multiple of WIDTH. */
INLINE uint16_t NAME(bits)(const uint8_t *bits, size_t i) {
#if WIDTH == 16
    return (uint16_t)(bits[i / 8] | bits[i / 8 + 1] << 8);
#else
    return bits[i / 8] >> (i & 4 & WIDTH);
#endif
}

/* The sign of x changed where the bit is 0, and sum + weight where it is 1. */
#if WIDTH == 16
#define NEGATE(x, word) ((VEC)_mm512_mask_xor_ps(x, (__mmask16)~(word), x, _mm512_set1_ps(-0.0f)))
#define ADD(sum, word, weight) ((INTS)_mm512_mask_add_epi32((__m512i)(sum), word, (__m512i)(sum), _mm512_set1_epi32(weight)))
#else
#define MASK(word) ((((INTS){0} + (word)) & (INTS){EACH(BIT, 1)}) != 0)
#define NEGATE(x, word) ((VEC)((INTS)(x) ^ (~MASK(word) & INT32_MIN)))
#define ADD(sum, word, weight) ((sum) + (MASK(word) & (weight)))
#endif

/* dst = src times scale, with the sign changed where the bit is 0; bit 0 belongs to src[0]. */
static TARGET void NAME(flip)(const float *src, float *dst, const uint8_t *bits, size_t count, float scale) {
    size_t i = 0;
    if (bits && scale == 1.0f)
        for (; i + WIDTH <= count; i += WIDTH) STORE(dst + i, NEGATE(LOAD(src + i), NAME(bits)(bits, i)));
    else if (bits)
        for (; i + WIDTH <= count; i += WIDTH) STORE(dst + i, NEGATE(LOAD(src + i) * scale, NAME(bits)(bits, i)));
    for (; i < count; i++) dst[i] = bits && !(bits[i / 8] >> (i % 8) & 1) ? -src[i] * scale : src[i] * scale;
}

/* The selected ones of the floats start .. start + width - 1, from place i of the selection; the place after them. */
INLINE size_t NAME(select)(const job *j, const float *row, size_t start, size_t width, size_t i, float *dst) {
#if WIDTH == 16
    for (__mmask16 wanted = 0xFFFF; wanted == 0xFFFF && i < j->m; i += (size_t)__builtin_popcount(wanted)) {
        __mmask16 valid = j->m - i < 16 ? (__mmask16)((1u << (j->m - i)) - 1) : 0xFFFF;
        __m512i place = _mm512_sub_epi32(_mm512_maskz_loadu_epi32(valid, j->index + i), _mm512_set1_epi32((int)start));
        wanted = _mm512_mask_cmplt_epu32_mask(valid, place, _mm512_set1_epi32((int)width));
        __m512 found = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), wanted, place, row, sizeof(float));
        _mm512_mask_storeu_ps(dst + i, wanted, _mm512_mul_ps(found, _mm512_set1_ps(j->scale)));
    }
#else
    for (; i < j->m && (size_t)j->index[i] < start + width; i++) dst[i] = row[j->index[i] - start] * j->scale;
#endif
    return i;
}

/* The low levels of one block of a row: after D and padding, or scattering. */
static TARGET void NAME(low)(const job *j, const float *src, float *dst, size_t start) {
    ALIGNED float tile[1 << BLOCK];
    int levels = j->log2 < BLOCK ? j->log2 : BLOCK;
    size_t size = (size_t)1 << levels;
    const float *from = tile;
    if (j->kind == TRANSFORM) {
        from = src + start;
    } else if (j->kind == PROJECT) {
        size_t valid = j->n <= start ? 0 : j->n - start < size ? j->n - start : size;
        NAME(flip)(src + start, tile, j->signs ? j->signs + start / 8 : NULL, valid, 1.0f);
        memset(tile + valid, 0, (size - valid) * sizeof(float));
    } else {
        memset(tile, 0, size * sizeof(float));
        for (size_t i = lower_bound(j->index, j->m, start); i < j->m && (size_t)j->index[i] < start + size; i++)
            tile[j->index[i] - start] = src[i];
    }
    NAME(block)(from, dst + start, tile, levels, j->kind == TRANSFORM && j->log2 == levels ? j->scale : 1.0f);
}

/* Columns first .. last - 1 of the 2^levels rows of `stride` floats, in place. */
static TARGET void NAME(middle)(float *data, size_t stride, int levels, size_t first, size_t last) {
    ALIGNED float tile[TILE];
    size_t width = tile_width(levels, stride);
    for (size_t c = first; c < last; c += width)
        NAME(columns)(data + c, stride, data + c, stride, tile, levels, width, 1.0f, NULL);
}

/* Last pass over columns first .. last - 1: the high levels, and row selection, or D and truncation, and the scale.
 * The rows of src have a gap of `gap` floats between them. */
static TARGET void NAME(high)(const job *j, const float *src, size_t gap, float *dst, int levels, size_t first,
                              size_t last) {
    ALIGNED float tile[TILE];
    size_t stride = (size_t)1 << (j->log2 - levels), width = tile_width(levels, stride), place[1 << HIGH];
    if (j->kind == PROJECT)
        for (size_t r = 0; r < (size_t)1 << levels; r++) place[r] = lower_bound(j->index, j->m, r * stride + first);
    for (size_t c = first; c < last; c += width) {
        const float *next = levels > 3 && c + width < last ? src + c + width : NULL;
        if (j->kind == TRANSFORM) {
            NAME(columns)(src + c, stride, dst + c, stride, tile, levels, width, j->scale, next);
            continue;
        }
        if (levels) NAME(columns)(src + c, stride + gap, tile, width, tile, levels, width, 1.0f, next);
        for (size_t r = 0; r < (size_t)1 << levels; r++) {
            size_t start = r * stride + c;
            const float *row = levels ? tile + r * width : src + c;
            if (j->kind == PROJECT) {
                place[r] = NAME(select)(j, row, start, width, place[r], dst);
                __builtin_prefetch(j->index + place[r] + LINE, 0);
                __builtin_prefetch(dst + place[r] + LINE, 1);
            } else if (start < j->n) {
                size_t valid = j->n - start < width ? j->n - start : width;
                for (size_t l = 0; l < width && levels > 3; l += LINE) __builtin_prefetch(dst + start + 8 * stride + l, 1);
                NAME(flip)(row, dst + start, j->signs ? j->signs + start / 8 : NULL, valid, j->scale);
            }
        }
    }
}

/* Bits of x >= 0, count a multiple of 64; false if a number is not finite. */
static TARGET bool NAME(pack)(const float *src, uint8_t *dst, size_t count) {
    INTS strange = {0};
    for (size_t i = 0; i < count; i += 64, dst += 8) {
        uint64_t word = 0;
#if WIDTH == 16
        UNROLL for (int j = 0; j < 4; j++) {
            VEC x = LOAD(src + i + 16 * j);
            strange |= x - x != 0;
            word |= (uint64_t)_mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GE_OQ) << 16 * j;
        }
#else
        uint8_t positive[64];
        for (int j = 0; j < 64; j++) positive[j] = src[i + j] >= 0;
        for (int j = 0; j < 64; j += WIDTH) {
            VEC x = LOAD(src + i + j);
            strange |= x - x != 0;
        }
        word = gather_bits(positive);
#endif
        put_bits(dst, word);
    }
    int32_t any = 0;
    for (int i = 0; i < WIDTH; i++) any |= strange[i];
    return !any;
}

/* +-1 for count bits, a multiple of WIDTH. */
static TARGET void NAME(unpack)(const uint8_t *src, float *dst, size_t count) {
    const VEC one = (VEC){0} + 1;
    for (size_t i = 0; i < count; i += WIDTH) STORE(dst + i, NEGATE(one, NAME(bits)(src, i)));
}

/* Sums of the weights of the 1 bits of coordinates first .. first + count - 1, count a multiple of WIDTH. */
static TARGET void NAME(sums)(const uint8_t *const *messages, const int32_t *weights, size_t voters, size_t first,
                              size_t count, int32_t *dst) {
    for (size_t i = 0; i < count; i += WIDTH) {
        INTS sum = {0};
        for (size_t v = 0; v < voters; v++) sum = ADD(sum, NAME(bits)(messages[v], first + i), weights[v]);
        *(NAME(looseints) *)(dst + i) = sum;
    }
}

/* Bits of 64 counters: where 2 * counter > total, and where equal. */
static TARGET void NAME(compare)(const void *counters, bool wide, int64_t total, uint64_t *above, uint64_t *equal) {
    uint8_t more[64], same[64];
    if (wide) {
        const int64_t *c = counters;
        for (int i = 0; i < 64; i++) more[i] = 2 * c[i] > total;
        for (int i = 0; i < 64; i++) same[i] = 2 * c[i] == total;
    } else {
        const int32_t *c = counters, half = (int32_t)total;
        for (int i = 0; i < 64; i++) more[i] = 2 * c[i] > half;
        for (int i = 0; i < 64; i++) same[i] = 2 * c[i] == half;
    }
    *above = gather_bits(more);
    *equal = gather_bits(same);
}

static const kernels NAME(kernels) = {QUOTE(ISA),   BLOCK,      NAME(low),    NAME(middle),
                                      NAME(high), NAME(pack), NAME(unpack), NAME(sums), NAME(compare)};

#undef VEC
#undef INTS
#undef LOAD
#undef STORE
#undef INLINE
#undef SIGN
#undef EACH4
#undef EACH
#undef XOR
#undef BIT
#undef SWAP
#undef FIRST
#undef MASK
#undef NEGATE
#undef ADD
#undef INSIDE
#undef ISA
#undef TARGET
#undef WIDTH
#undef LANES
#undef RADIX
#undef BLOCK
