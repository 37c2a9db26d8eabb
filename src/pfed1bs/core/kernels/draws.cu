/* The portable generator on a GPU (docs/wire.md): packed signs, and distinct numbers in three steps. */

typedef unsigned long long Word;

typedef struct {
    const int *source;
    int *target;
    long long count; /* signs, candidates or numbers */
    Word key;
    int log2; /* of the numbers to choose from */
} Draw;

DEVICE Word word(Word key, Word index) { /* SplitMix64 with random access */
    Word z = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Candidate number i: the highest bits of the low half of a word, then of its high half. */
DEVICE int candidate(const Draw *draw, long long i) {
    const unsigned half = (unsigned)(word(draw->key, i / 2) >> (i & 1 ? 32 : 0));
    return draw->log2 ? (int)(half >> (32 - draw->log2)) : 0;
}

KERNEL_OF(256) draw_signs(CONSTANT Draw draw) {
    const long long i = BLOCK * 256 + THREAD, left = draw.count - 64 * i;
    if (left > 0) ((Word *)draw.target)[i] = word(draw.key, i) & (left < 64 ? ((Word)1 << left) - 1 : ~(Word)0);
}

/* For every number the first candidate that is it. */
KERNEL_OF(256) first_places(CONSTANT Draw draw) {
    const long long i = BLOCK * 256 + THREAD;
    if (i < draw.count) ATOMIC_MIN(draw.target + candidate(&draw, i), (int)i);
}

/* Which candidates are the first of their number. */
KERNEL_OF(256) mark_firsts(CONSTANT Draw draw) {
    const long long i = BLOCK * 256 + THREAD;
    if (i < draw.count) draw.target[i] = draw.source[candidate(&draw, i)] == (int)i;
}

/* The numbers at which a running count grows. */
KERNEL_OF(256) gather_counted(CONSTANT Draw draw) {
    const long long i = BLOCK * 256 + THREAD;
    if (i < draw.count && draw.source[i] != (i ? draw.source[i - 1] : 0)) draw.target[draw.source[i] - 1] = (int)i;
}
