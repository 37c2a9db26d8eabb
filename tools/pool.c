/* GOMP_parallel on plain threads, for the thread sanitizer, which does not see what libgomp's own threads agree on. */

#include <pthread.h>

enum { MOST = 16 };

typedef struct {
    void (*run)(void *);
    void *data;
} call;

static void *one(void *data) {
    call *c = data;
    c->run(c->data);
    return NULL;
}

void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags) {
    pthread_t others[MOST];
    call c = {run, data};
    unsigned count = threads > MOST ? MOST : threads;
    (void)flags;
    for (unsigned i = 1; i < count; i++) pthread_create(&others[i], NULL, one, &c);
    run(data);
    for (unsigned i = 1; i < count; i++) pthread_join(others[i], NULL);
}
