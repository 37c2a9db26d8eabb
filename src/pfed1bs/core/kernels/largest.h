/* The largest magnitudes of a row, by a heap with the smallest of them on top.
 *
 * Among equal ones the heap decides, so its moves are part of the result: they are those of libstdc++'s partial_sort,
 * which torch.topk calls where few are wanted. */

typedef struct {
    int32_t size; /* bits of the magnitude: as integers in the order of the numbers, NaN above all */
    int32_t at;
} candidate;

static inline int32_t magnitude(const float *x) {
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits & INT32_MAX;
}

/* Fill the hole with the larger-sized end of its way down, then let `one` rise from there. */
static void sift(candidate *heap, size_t hole, size_t count, candidate one) {
    size_t top = hole, child = hole;
    while (2 * child + 2 < count) {
        child = 2 * child + 2;
        child -= heap[child].size > heap[child - 1].size;
        heap[hole] = heap[child];
        hole = child;
    }
    if (2 * child + 2 == count) {
        heap[hole] = heap[count - 1];
        hole = count - 1;
    }
    for (size_t parent; hole > top && heap[parent = (hole - 1) / 2].size > one.size; hole = parent)
        heap[hole] = heap[parent];
    heap[hole] = one;
}

/* dst: the `count` largest of n numbers, at least one, where they are, and 0 elsewhere; heap: room for count. */
static void largest(const float *src, float *dst, size_t n, size_t count, candidate *heap) {
    enum { STEP = 64 };
    for (size_t i = 0; i < count; i++) heap[i] = (candidate){magnitude(src + i), (int32_t)i};
    for (size_t i = count / 2; i--;) sift(heap, i, count, heap[i]);
    for (size_t i = count; i < n; i += STEP) {
        size_t end = least(n, i + STEP);
        int32_t most = 0;
        for (size_t j = i; j < end; j++) {
            int32_t size = magnitude(src + j);
            most = size > most ? size : most;
        }
        if (most <= heap[0].size) continue;
        for (size_t j = i; j < end; j++) {
            int32_t size = magnitude(src + j);
            if (size > heap[0].size) sift(heap, 0, count, (candidate){size, (int32_t)j});
        }
    }
    memset(dst, 0, n * sizeof *dst);
    for (size_t i = 0; i < count; i++) dst[heap[i].at] = src[heap[i].at];
}
