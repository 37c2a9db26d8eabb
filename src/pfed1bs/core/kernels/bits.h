/* Packed signs and the sums of votes, for the instruction set of isa.h. */

/* Bits of x >= 0, count a multiple of 64; false if a number is not finite. */
static TARGET bool NAME(pack)(const float *src, uint8_t *dst, size_t count) {
    INTS strange = {0};
    for (size_t i = 0; i < count; i += 64, dst += 8) {
        uint64_t word = 0;
#if WIDTH == 16
        UNROLL for (int j = 0; j < 4; j++) {
            VEC x = LOAD(src + i + 16 * j);
            strange |= x - x != 0.0f;
            word |= (uint64_t)_mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GE_OQ) << 16 * j;
        }
#else
        uint8_t positive[64];
        for (int j = 0; j < 64; j++) positive[j] = src[i + j] >= 0;
        for (int j = 0; j < 64; j += WIDTH) {
            VEC x = LOAD(src + i + j);
            strange |= x - x != 0.0f;
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
    const VEC one = (VEC){0} + 1.0f;
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

/* Add the share of every message, with the sign of its bit, to bytes first .. last - 1 of eight sums each, one message
 * after the other. */
static TARGET void NAME(weigh)(const uint8_t *const *messages, const double *shares, size_t voters, size_t first,
                               size_t last, double *sums) {
    enum { SOME = WIDTH / 2 }; /* sums in a vector */
    typedef int64_t longs __attribute__((vector_size(8 * SOME)));
    typedef double loose __attribute__((vector_size(8 * SOME), aligned(8), may_alias));
    longs bit, minus = (longs){0} + INT64_MIN;
    for (int j = 0; j < SOME; j++) bit[j] = 1 << j;
    for (size_t v = 0; v < voters; v++) {
        int64_t share;
        memcpy(&share, shares + v, sizeof share);
        for (size_t i = first; i < last; i++)
            UNROLL for (int part = 0; part < 8; part += SOME) {
                longs zero = (((longs){0} + (messages[v][i] >> part)) & bit) == 0;
                *(loose *)(sums + 8 * i + part) += (loose)((zero & minus) ^ share);
            }
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
