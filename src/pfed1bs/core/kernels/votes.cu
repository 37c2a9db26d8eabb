/* The weighted vote on packed bits: a thread for every coordinate, then one for every byte. WIDE: counters of 64 bits. */

typedef unsigned char Byte;
#if WIDE
typedef long long Counter;
#else
typedef int Counter;
#endif

typedef struct {
    const Byte *messages; /* one after the other; in the end those of the vote before */
    const long long *weights;
    Counter *counters; /* sums of the weights of the + votes */
    Byte *target;
    int *ties;
    long long m, total;
    int count; /* messages */
} Votes;

KERNEL_OF(256) count_votes(CONSTANT Votes votes) {
    const long long i = BLOCK * 256 + THREAD, width = (votes.m + 7) / 8;
    if (i >= votes.m) return;
    Counter sum = votes.counters[i];
    for (int k = 0; k < votes.count; k++)
        if (votes.messages[k * width + i / 8] >> i % 8 & 1) sum += (Counter)votes.weights[k];
    votes.counters[i] = sum;
}

KERNEL_OF(256) decide_votes(CONSTANT Votes votes) {
    const long long i = BLOCK * 256 + THREAD;
    if (i >= (votes.m + 7) / 8) return;
    int byte = 0, ties = 0;
    for (int b = 0; b < 8 && 8 * i + b < votes.m; b++) {
        const long long balance = 2 * (long long)votes.counters[8 * i + b] - votes.total;
        byte |= (balance ? balance > 0 : votes.messages[i] >> b & 1) << b;
        ties += balance == 0;
    }
    votes.target[i] = (Byte)byte;
    if (ties) ATOMIC_ADD(votes.ties, ties);
}
