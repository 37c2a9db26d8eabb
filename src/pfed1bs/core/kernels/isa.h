/* The kernels for one instruction set: _fht.c includes this file once for each, with
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

/* WIDTH bits from bit number i, a multiple of WIDTH. */
INLINE uint16_t NAME(bits)(const uint8_t *bits, size_t i) {
#if WIDTH == 16
    uint16_t word; /* little-endian, as the instruction set */
    memcpy(&word, bits + i / 8, sizeof word);
    return word;
#else
    return bits[i / 8] >> (i & 4 & WIDTH);
#endif
}

/* The sign of x changed where the bit is 0, and sum + weight where it is 1. */
#if WIDTH == 16
#define NEGATE(x, word) ((VEC)_mm512_mask_xor_ps(x, (__mmask16)~(word), x, _mm512_set1_ps(-0.0f)))
#define ADD(sum, word, weight) \
    ((INTS)_mm512_mask_add_epi32((__m512i)(sum), word, (__m512i)(sum), _mm512_set1_epi32(weight)))
#else
#define MASK(word) ((((INTS){0} + (word)) & (INTS){EACH(BIT, 1)}) != 0)
#define NEGATE(x, word) ((VEC)((INTS)(x) ^ (~MASK(word) & INT32_MIN)))
#define ADD(sum, word, weight) ((sum) + (MASK(word) & (weight)))
#endif

#include "transform.h"
#include "sketch.h"
#include "bits.h"

static const kernels NAME(kernels) = {
    QUOTE(ISA), BLOCK,      NAME(low),    NAME(middle), NAME(beyond),
    NAME(high), NAME(pack), NAME(unpack), NAME(sums),   NAME(compare), NAME(weigh),
};

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
