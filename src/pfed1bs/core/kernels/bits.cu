/* Signs and bits on a GPU: a thread for every byte, or for every sign. */

typedef unsigned char Byte;

typedef struct {
    const void *source;
    void *target;
    int *bad; /* set where a number has no sign, or is none */
    long long rows;
    long long m; /* signs of a row */
    int exact; /* whether all have to be +1 or -1 */
} Bits;

KERNEL_OF(256) pack_signs(CONSTANT Bits bits) {
    const long long width = (bits.m + 7) / 8, i = BLOCK * 256 + THREAD;
    if (i >= bits.rows * width) return;
    const long long first = i % width * 8;
    const float *x = (const float *)bits.source + i / width * bits.m + first;
    Byte byte = 0;
    int bad = 0;
    for (int b = 0; b < 8 && first + b < bits.m; b++) {
        byte |= (x[b] >= 0) << b;
        bad |= bits.exact ? fabsf(x[b]) != 1 : !(fabsf(x[b]) <= 3.402823466e+38f);
    }
    ((Byte *)bits.target)[i] = byte;
    if (bad) *bits.bad = 1;
}

KERNEL_OF(256) unpack_signs(CONSTANT Bits bits) {
    const long long width = (bits.m + 7) / 8, i = BLOCK * 256 + THREAD, at = i % bits.m;
    if (i >= bits.rows * bits.m) return;
    const Byte byte = ((const Byte *)bits.source)[i / bits.m * width + at / 8];
    ((float *)bits.target)[i] = byte >> at % 8 & 1 ? 1.0f : -1.0f;
}
