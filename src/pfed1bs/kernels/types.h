/* What the kernels share: sizes, the work to be done, and one table of functions for every instruction set. */

enum {
    LINE = 16,        /* floats in a cache line */
    PAGE = 1 << 10,   /* floats in a page, after which addresses fall into the same cache set */
    TILE = 1 << 13,   /* floats in the first-level cache at once */
    GAP = 64,         /* floats between the pieces of a buffer, so that they fall into different cache sets */
    AHEAD = 512,      /* floats fetched before they are needed */
    SHARE = 4,        /* parts of a chunk, of which one is fetched in the pass before */
    MIDDLE = 6,       /* levels beyond a block that stay in the second-level cache */
    HIGH = 8,         /* most levels in one pass over memory */
    HUGEPAGE = 1 << 21, /* bytes */
    SMALL = 1 << 15,  /* work below it stays on one thread */
    PIECE = 1 << 12,  /* coordinates in a task */
    GROUP = 16,       /* messages counted at once */
    DIGIT = 27        /* bits of a weight, so that a group's sums fit in 31 */
};
enum kind { TRANSFORM, PROJECT, LIFT };

typedef struct {
    enum kind kind;
    const float *src;
    float *dst;
    const uint8_t *signs;  /* D: bit 1 is +, NULL without */
    const int32_t *index;  /* S: m ascending row numbers */
    size_t rows, n, m;
    int log2;
    float scale;
    int threads;
} job;

/* What happens to a result on its way to memory: a factor, and with `bits`, one for every float from the first row and
 * column on, a change of sign where the bit is 0, in the first `kept` rows; the others are left out. */
typedef struct {
    float scale;
    const uint8_t *bits;
    size_t kept;
} ending;
#define PLAIN ((ending){1.0f, NULL, 0})

/* What is fetched for later: with column c, lines from data + c * step on, `apart` floats apart. */
typedef struct {
    const float *data;
    size_t step, apart;
} soon;

#define FETCH(data, count, written) \
    for (size_t ahead = 0; ahead < (count); ahead += LINE) __builtin_prefetch((data) + ahead, written)

/* The first place in the ascending `index` whose value is at least x. */
static size_t lower_bound(const int32_t *index, size_t count, size_t x) {
    size_t low = 0;
    while (count) {
        size_t half = count / 2;
        bool right = (size_t)index[low + half] < x;
        low = right ? low + half + 1 : low;
        count = right ? count - half - 1 : half;
    }
    return low;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Half the tile, so that what is fetched next has room beside it; but several lines of every row. */
static size_t tile_width(int levels, size_t stride) {
    size_t width = (size_t)TILE >> (levels < HIGH - 1 ? levels + 1 : levels);
    return least(width, stride);
}

typedef struct {
    const char *name;
    int block;
    void (*low)(const job *, const float *, float *, size_t, size_t *);
    void (*middle)(float *, size_t, int, size_t, size_t);
    void (*high)(const job *, const float *, size_t, float *, int, size_t, size_t);
    bool (*pack)(const float *, uint8_t *, size_t);
    void (*unpack)(const uint8_t *, float *, size_t);
    void (*sums)(const uint8_t *const *, const int32_t *, size_t, size_t, size_t, int32_t *);
    void (*compare)(const void *, bool, int64_t, uint64_t *, uint64_t *);
} kernels;

/* 64 bytes of 0 and 1 as bits, by multiplications that collect eight of them in the top byte. */
static inline uint64_t gather_bits(const uint8_t *bytes) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t eight = 0;
        for (int j = 0; j < 8; j++) eight |= (uint64_t)bytes[8 * i + j] << 8 * j;
        word |= (eight * 0x0102040810204080u >> 56) << 8 * i;
    }
    return word;
}

static inline void put_bits(uint8_t *dst, uint64_t word) {
    for (int i = 0; i < 8; i++) dst[i] = (uint8_t)(word >> 8 * i);
}
