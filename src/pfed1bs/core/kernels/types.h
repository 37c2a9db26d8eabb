/* What the kernels share: sizes, the work to be done, and one table of functions for every instruction set. */

enum {
    LINE = 16,        /* floats in a cache line */
    PAGE = 1 << 10,   /* floats in a page, after which addresses fall into the same cache set */
    TILE = 1 << 13,   /* floats in the first-level cache at once */
    GAP = 64,         /* floats between the pieces of a buffer, so that they fall into different cache sets */
    AHEAD = 512,      /* floats fetched before they are needed */
    STRIP = 512,      /* floats worked on between two fetches */
    SHARE = 4,        /* a piece is worked on about so often before it leaves the cache */
    PIECE_LEVELS = 17, /* most levels of a piece in the second-level cache; with more, less is fetched in time */
    HIGH = 8,         /* most levels in one pass over memory */
    HUGEPAGE = 1 << 21, /* bytes */
    LARGE = 1 << 27,  /* bytes of memory that is not kept against the system's will */
    SMALL = 1 << 15,  /* work below it stays on one thread */
    FEW = 1 << 20,    /* numbers that one thread adds up sooner than others are awake */
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

/* How far a worker has fetched what it will work on: `at` floats of a piece of `size` floats and of its next piece,
 * `end` floats at most. The next piece lies before this one: `back` floats before its end in src, and `gap` more in data.
 * Every pass over the piece fetches one part in SHARE of as much as it works on: so memory is busy all the time. */
typedef struct {
    const float *src;
    float *data;
    size_t at, size, end, back, gap;
} front;

static inline void fetch(front *f, size_t count) {
    if (f->at >= f->end) return;
    bool here = f->at < f->size;
    const float *src = f->src + f->at - (here ? 0 : f->back);
    float *data = f->data + f->at - (here ? 0 : f->back + f->gap);
    f->at += count;
    if (f->src != f->data)
        for (size_t i = 0; i < count; i += LINE) __builtin_prefetch(src + i, 0);
    for (size_t i = 0; i < count; i += LINE) __builtin_prefetch(data + i, 1);
}

/* What is fetched for later: with column c, lines from data + c on, `apart` floats apart. */
typedef struct {
    const float *data;
    size_t apart;
} soon;

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
    void (*low)(const job *, const float *, float *, size_t, size_t *, front *);
    void (*middle)(float *, size_t, int, front *);
    void (*beyond)(float *, size_t, int, size_t, size_t);
    void (*high)(const job *, const float *, size_t, float *, int, size_t, size_t);
    bool (*pack)(const float *, uint8_t *, size_t);
    void (*unpack)(const uint8_t *, float *, size_t);
    void (*sums)(const uint8_t *const *, const int32_t *, size_t, size_t, size_t, int32_t *);
    void (*compare)(const void *, bool, int64_t, uint64_t *, uint64_t *);
    void (*weigh)(const uint8_t *const *, const double *, size_t, size_t, size_t, double *);
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
