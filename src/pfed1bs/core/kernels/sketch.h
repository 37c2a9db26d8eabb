/* The passes over a row, with what the sketch adds to the first and the last, for the instruction set of isa.h. */

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

/* The measurements from `place` on that belong to the floats start .. start + size - 1, zeros between them; the place
 * after them. */
INLINE size_t NAME(spread)(const job *j, const float *src, float *dst, size_t start, size_t size, size_t i) {
    memset(dst, 0, size * sizeof(float));
#if WIDTH == 16
    for (; i + 16 <= j->m && (size_t)j->index[i + 15] < start + size; i += 16) {
        __m512i place = _mm512_sub_epi32(_mm512_loadu_si512(j->index + i), _mm512_set1_epi32((int)start));
        _mm512_i32scatter_ps(dst, place, _mm512_loadu_ps(src + i), sizeof(float));
    }
#endif
    for (; i < j->m && (size_t)j->index[i] < start + size; i++) dst[j->index[i] - start] = src[i];
    return i;
}

/* The low levels of one block of a row: after D and padding, or spreading from `place` on. */
static TARGET void NAME(low)(const job *j, const float *src, float *dst, size_t start, size_t *place, front *f) {
    ALIGNED float tile[1 << BLOCK];
    int levels = j->log2 < BLOCK ? j->log2 : BLOCK;
    size_t size = (size_t)1 << levels, valid = j->n <= start ? 0 : least(j->n - start, size);
    const float *from = src + start;
    const uint8_t *bits = NULL;
    dst += start;
    if (j->kind == LIFT) {
        *place = NAME(spread)(j, src, dst, start, size, *place);
        from = dst;
    } else if (!valid) {
        memset(dst, 0, size * sizeof(float));
        return;
    } else if (j->kind == PROJECT) {
        bits = j->signs ? j->signs + start / 8 : NULL;
        if (valid < size || levels < LANES) {
            NAME(flip)(from, tile, bits, valid, 1.0f);
            memset(tile + valid, 0, (size - valid) * sizeof(float));
            from = tile;
            bits = NULL;
        }
    }
    NAME(block)(from, dst, tile, bits, levels, j->kind == TRANSFORM && j->log2 == levels ? j->scale : 1.0f, f);
}

/* The levels of 2^levels adjacent rows of `stride` floats in the second-level cache, levels <= 3, in place. */
static TARGET void NAME(middle)(float *data, size_t stride, int levels, front *f) {
    if (levels == 1) NAME(strips)(data, stride, 1, f);
    if (levels == 2) NAME(strips)(data, stride, 2, f);
    if (levels == 3) NAME(strips)(data, stride, 3, f);
}

/* Columns first .. last - 1 of the 2^levels rows of `stride` floats, in place. */
static TARGET void NAME(beyond)(float *data, size_t stride, int levels, size_t first, size_t last) {
    ALIGNED float tile[TILE];
    size_t width = tile_width(levels, stride);
    for (size_t c = first; c < last; c += width)
        NAME(columns)(data + c, stride, data + c, stride, tile, levels, width, PLAIN, NULL);
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
        size_t kept = c < j->n ? (j->n - c - 1) / stride + 1 : 0;
        bool whole = kept && width >= WIDTH && (kept - 1) * stride + c + width <= j->n;
        if (j->kind == TRANSFORM || (j->kind == LIFT && j->signs && whole)) {
            ending e = {j->scale, j->kind == LIFT ? j->signs + c / 8 : NULL, kept};
            NAME(columns)(src + c, stride + gap, dst + c, stride, tile, levels, width, e, next);
            continue;
        }
        if (levels) NAME(columns)(src + c, stride + gap, tile, width, tile, levels, width, PLAIN, next);
        for (size_t r = 0; r < (size_t)1 << levels; r++) {
            size_t start = r * stride + c;
            const float *row = levels ? tile + r * width : src + c;
            if (j->kind == PROJECT) {
                place[r] = NAME(select)(j, row, start, width, place[r], dst);
                __builtin_prefetch(j->index + place[r] + LINE, 0);
                __builtin_prefetch(dst + place[r] + LINE, 1);
            } else if (r < kept) {
                const uint8_t *bits = j->signs ? j->signs + start / 8 : NULL;
                NAME(flip)(row, dst + start, bits, least(j->n - start, width), j->scale);
            }
        }
    }
}
