/* Packed signs, votes and the portable generator, cut into tasks. */

/* Packed signs: rows cut into pieces of PIECE coordinates, the last one through a padded copy. */

typedef struct {
    const uint8_t *bits;
    uint8_t *packed;
    float *values;
    const uint8_t *const *messages;
    const int64_t *weights;
    const double *shares;
    double *sums;
    int64_t total;
    void *counters;
    bool wide; /* 64-bit counters */
    size_t m, voters, pieces;
    atomic_size_t ties;
    atomic_bool strange;
} signs;

static size_t pieces(size_t m) { return (m + PIECE - 1) / PIECE; }

static void pack_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t row = number / s->pieces, first = number % s->pieces * PIECE, count = least(PIECE, s->m - first);
    const float *src = s->values + row * s->m + first;
    uint8_t *dst = s->packed + row * ((s->m + 7) / 8) + first / 8;
    size_t whole = count & ~(size_t)63;
    if (!isa->pack(src, dst, whole)) atomic_store(&s->strange, true);
    if (count > whole) {
        float rest[64];
        uint8_t bits[8];
        for (size_t i = 0; i < 64; i++) rest[i] = whole + i < count ? src[whole + i] : -1.0f;
        if (!isa->pack(rest, bits, 64)) atomic_store(&s->strange, true);
        memcpy(dst + whole / 8, bits, (count - whole + 7) / 8);
    }
}

static void unpack_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t row = number / s->pieces, first = number % s->pieces * PIECE, count = least(PIECE, s->m - first);
    const uint8_t *src = s->bits + row * ((s->m + 7) / 8) + first / 8;
    float *dst = s->values + row * s->m + first;
    size_t whole = count & ~(size_t)15;
    isa->unpack(src, dst, whole);
    for (size_t i = whole; i < count; i++) dst[i] = src[i / 8] >> i % 8 & 1 ? 1.0f : -1.0f;
}

/* Weights of any size as digits of DIGIT bits, so that the sums of a group fit 32 bits. */
static void count_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t first = number * PIECE, count = least(PIECE, s->m - first), whole = count & ~(size_t)15;
    ALIGNED int32_t sums[PIECE];
    for (int shift = 0; shift < 63; shift += DIGIT) {
        int32_t digits[GROUP], any = 0;
        for (size_t v = 0; v < s->voters; v++) any |= digits[v] = s->weights[v] >> shift & ((1 << DIGIT) - 1);
        if (!any) continue;
        isa->sums(s->messages, digits, s->voters, first, whole, sums);
        for (size_t i = whole; i < count; i++) {
            sums[i] = 0;
            for (size_t v = 0; v < s->voters; v++)
                if (s->messages[v][(first + i) / 8] >> i % 8 & 1) sums[i] += digits[v];
        }
        if (s->wide)
            for (size_t i = 0; i < count; i++) ((int64_t *)s->counters)[first + i] += (int64_t)sums[i] << shift;
        else
            for (size_t i = 0; i < count; i++) ((int32_t *)s->counters)[first + i] += sums[i] << shift;
    }
}

/* Sums of real shares; the coordinates of a last byte that is not full go one by one. */
static void weigh_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t first = number * PIECE, last = first + least(PIECE, s->m - first);
    isa->weigh(s->messages, s->shares, s->voters, first / 8, last / 8, s->sums);
    for (size_t v = 0; v < s->voters; v++)
        for (size_t i = last & ~(size_t)7; i < last; i++)
            s->sums[i] += s->messages[v][i / 8] >> i % 8 & 1 ? s->shares[v] : -s->shares[v];
}

static void decide_piece(void *context, size_t worker, size_t number) {
    signs *s = context;
    (void)worker;
    size_t first = number * PIECE, last = first + least(PIECE, s->m - first), ties = 0;
    size_t each = s->wide ? sizeof(int64_t) : sizeof(int32_t);
    for (size_t i = first; i < last; i += 64) {
        const char *counters = (const char *)s->counters + i * each;
        int64_t rest[64] = {0};
        uint64_t above, equal, kept = 0, used = last - i < 64 ? ((uint64_t)1 << (last - i)) - 1 : ~(uint64_t)0;
        size_t bytes = least(8, (last - i + 7) / 8);
        if (last - i < 64) counters = memcpy(rest, counters, (last - i) * each);
        isa->compare(counters, s->wide, s->total, &above, &equal);
        for (size_t b = 0; b < bytes; b++) kept |= (uint64_t)s->bits[i / 8 + b] << 8 * b;
        ties += (size_t)__builtin_popcountll(equal & used);
        uint64_t word = (above | (equal & kept)) & used;
        for (size_t b = 0; b < bytes; b++) s->packed[i / 8 + b] = (uint8_t)(word >> 8 * b);
    }
    atomic_fetch_add(&s->ties, ties);
}

/* The portable generator of docs/wire.md. */

static uint64_t word(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static bool distinct(uint64_t key, int log2, size_t count, int32_t *dst) {
    size_t size = (size_t)1 << log2, left_out = size - count, drawn = least(count, left_out);
    uint64_t *member = calloc(size / 64 + 1, sizeof(uint64_t)), turn = drawn == count ? 0 : ~(uint64_t)0;
    if (!member) return false;
    for (uint64_t index = 0; drawn; index++) {
        uint64_t both = word(key, index);
        for (int half = 0; half < 2 && drawn; half++, both >>= 32) {
            uint32_t x = (uint32_t)both >> (32 - log2);
            uint64_t bit = (uint64_t)1 << x % 64;
            drawn -= !(member[x / 64] & bit);
            member[x / 64] |= bit;
        }
    }
    for (size_t base = 0; base < size; base += 64) {
        uint64_t rest = member[base / 64] ^ turn;
        if (size < 64) rest &= ((uint64_t)1 << size) - 1;
        for (; rest; rest &= rest - 1) *dst++ = (int32_t)(base + (size_t)__builtin_ctzll(rest));
    }
    free(member);
    return true;
}
