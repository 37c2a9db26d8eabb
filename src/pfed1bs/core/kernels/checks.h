/* CRC-32 (the reflected polynomial of zlib), and whether numbers are finite. */

static uint32_t crc_table[8][256];

static void crc_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
        crc_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

/* Eight bytes at a time. */
static uint32_t crc_bytes(uint32_t c, const uint8_t *data, size_t count) {
    for (; count >= 8; data += 8, count -= 8) {
        uint32_t lookups = 0;
        for (int i = 0; i < 4; i++) lookups ^= crc_table[7 - i][(c >> 8 * i & 255) ^ data[i]];
        for (int i = 4; i < 8; i++) lookups ^= crc_table[7 - i][data[i]];
        c = lookups;
    }
    for (; count; count--) c = c >> 8 ^ crc_table[0][(c ^ *data++) & 255];
    return c;
}

#ifdef __x86_64__
#define CLMUL __attribute__((target("pclmul,sse4.1")))

static CLMUL __m128i crc_fold(__m128i x, __m128i by, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* 64 bytes at a time, count a multiple of 64: products without carry move a remainder over the bytes that follow. The
 * factors are x^(d + 32) and x^(d - 32) modulo the polynomial, reflected, for d = 512 and d = 128 bits. */
static CLMUL uint32_t crc_blocks(uint32_t c, const uint8_t *data, size_t count) {
    const __m128i far = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), near = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i x[4];
    uint8_t left[16];
    for (int i = 0; i < 4; i++) x[i] = _mm_loadu_si128((const __m128i *)data + i);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)c));
    for (size_t at = 64; at < count; at += 64)
        for (int i = 0; i < 4; i++) x[i] = crc_fold(x[i], far, _mm_loadu_si128((const __m128i *)(data + at) + i));
    for (int i = 1; i < 4; i++) x[i] = crc_fold(x[i - 1], near, x[i]);
    _mm_storeu_si128((__m128i *)left, x[3]);
    return crc_bytes(0, left, 16);
}
#endif

static uint32_t crc32(uint32_t crc, const uint8_t *data, size_t count) {
    uint32_t c = ~crc;
#ifdef __x86_64__
    if (count >= 64 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        size_t whole = count & ~(size_t)63;
        c = crc_blocks(c, data, whole);
        data += whole, count -= whole;
    }
#endif
    return ~crc_bytes(c, data, count);
}

/* NaN and infinity have an exponent of ones. */
static bool all_finite(const uint8_t *data, size_t count) {
    uint32_t strange = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, data + 4 * i, 4);
        strange |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !strange;
}

/* What is asked for of some bytes, a lot at a time, so that they are read from memory once: the checksum after another,
 * a copy, whether they are finite floats. */
static bool pass_over(const uint8_t *src, size_t bytes, uint32_t *crc, uint8_t *dst, bool floats) {
    enum { LOT = 1 << 14 };
    bool good = true;
    for (size_t at = 0; at < bytes; at += LOT) {
        size_t lot = least(LOT, bytes - at);
        if (crc) *crc = crc32(*crc, src + at, lot);
        if (floats) good &= all_finite(src + at, lot / 4);
        if (dst) memcpy(dst + at, src + at, lot);
    }
    return good;
}

/* Sums in float64, total + share * x with one rounding, as torch has them on processors with such an instruction. */
typedef struct {
    double *total, share;
    const float *x;
    size_t count;
} weighed;

#ifdef __x86_64__
static __attribute__((target("avx2,fma"))) void add_piece(void *context, size_t worker, size_t number) {
    weighed *s = context;
    (void)worker;
    double *restrict total = s->total + number * PIECE, share = s->share;
    const float *restrict x = s->x + number * PIECE;
    size_t count = least(PIECE, s->count - number * PIECE);
    for (size_t i = 0; i < count; i++) total[i] = __builtin_fma(share, (double)x[i], total[i]);
}
#endif
