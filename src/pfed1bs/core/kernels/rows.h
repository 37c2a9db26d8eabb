/* Rows on threads: torch's own pool, memory that is kept, and the passes over one row. */

/* Tasks 0 .. count - 1 on up to `threads` threads. */

typedef void task(void *context, size_t worker, size_t number);
typedef void pool(void (*)(void *), void *, unsigned, unsigned);
typedef struct {
    task *run;
    void *context;
    size_t count;
    atomic_size_t next, workers;
} queue;

static void work(void *data) {
    queue *q = data;
    size_t worker = atomic_fetch_add(&q->workers, 1);
    for (size_t i; (i = atomic_fetch_add(&q->next, 1)) < q->count;) q->run(q->context, worker, i);
}

static void parallel(size_t count, int threads, task *run, void *context) {
    static _Atomic(pool *) known;
    queue q = {.run = run, .context = context, .count = count};
    pool *team = threads > 1 && count > 1 ? atomic_load_explicit(&known, memory_order_relaxed) : NULL;
    if (threads > 1 && count > 1 && !team) {
        *(void **)&team = dlsym(RTLD_DEFAULT, "GOMP_parallel");
        atomic_store_explicit(&known, team, memory_order_relaxed);
    }
    if (team) team(work, &q, (unsigned)threads, 0);
    else work(&q);
}

/* Memory is kept for the next call: fresh pages cost as much as a transform, and up to ten times that
 * where a virtual machine has to ask its host for them. */

static size_t whole_pages(size_t bytes) { return (bytes + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE; }

/* Huge pages for the whole ones of them among some memory; only a wish: small pages do the same more slowly. */
static void wish_huge(void *data, size_t bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t first = ((uintptr_t)data + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE;
    uintptr_t last = ((uintptr_t)data + bytes) / HUGEPAGE * HUGEPAGE;
    if (data && last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

static void *allocate(size_t bytes) {
    void *data = aligned_alloc(HUGEPAGE, whole_pages(bytes));
    wish_huge(data, whole_pages(bytes));
    return data;
}

/* What is kept and large may be taken by the system when it needs memory; until then it stays warm. */
static void spare(void *data, size_t bytes) {
#ifdef MADV_FREE
    if (bytes >= LARGE) madvise(data, bytes, MADV_FREE);
#else
    (void)data, (void)bytes;
#endif
}

/* The padded buffer of forward: the kept one for the first who asks, whoever else comes meanwhile gets his own. */
static struct {
    atomic_flag busy;
    float *data;
    size_t size;
} kept = {ATOMIC_FLAG_INIT, NULL, 0};

static float *borrow(size_t size, bool *own) {
    *own = atomic_flag_test_and_set(&kept.busy);
    if (*own) return allocate(size * sizeof(float));
    if (kept.size < size) {
        free(kept.data);
        kept.data = allocate(size * sizeof(float));
        kept.size = kept.data ? size : 0;
    }
    float *data = kept.data;
    if (!data) atomic_flag_clear(&kept.busy);
    return data;
}

static void give_back(float *data, bool own) {
    if (own) {
        free(data);
        return;
    }
    spare(kept.data, kept.size * sizeof(float));
    atomic_flag_clear(&kept.busy);
}

/* The last long results that were given up, latest first, under the interpreter's lock: as many as threads have between
 * them, of long ones as many as are decoded ahead. A new result takes the memory if it fills at least half of it. */
typedef struct {
    void *data;
    size_t bytes;
} memory;
typedef struct {
    memory *held;
    size_t count;
} shelf;

static shelf shelf_of(size_t bytes) {
    static memory many[8], single[16];
    return bytes > HUGEPAGE ? (shelf){many, sizeof many / sizeof *many} : (shelf){single, sizeof single / sizeof *single};
}

static memory take(size_t bytes) {
    bytes = whole_pages(bytes);
    shelf s = shelf_of(bytes);
    for (size_t i = 0; i < s.count; i++) {
        memory found = s.held[i];
        if (!found.data || found.bytes < bytes || found.bytes / 2 > bytes) continue;
        s.held[i].data = NULL;
        return found;
    }
    return (memory){allocate(bytes), bytes};
}

static void leave(memory given_up) {
    shelf s = shelf_of(given_up.bytes);
    size_t place = 0;
    spare(given_up.data, given_up.bytes);
    while (place < s.count - 1 && s.held[place].data) place++;
    free(s.held[place].data);
    for (; place; place--) s.held[place] = s.held[place - 1];
    s.held[0] = given_up;
}

/* One row in three parts: pieces that stay in the second-level cache, then columns through all of them. */

static int piece_levels = PIECE_LEVELS;

/* A piece takes at most half of a second-level cache of so many bytes. */
static void fit(size_t bytes) {
    piece_levels = PIECE_LEVELS;
    while (piece_levels > 0 && ((size_t)2 * sizeof(float)) << piece_levels > bytes) piece_levels--;
}

/* Bytes of the second-level cache; where the system does not tell, those of a common one. */
static size_t second_level(void) {
    long bytes = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    FILE *file = bytes > 0 ? NULL : fopen("/sys/devices/system/cpu/cpu0/cache/index2/size", "r");
    if (file) {
        bytes = fscanf(file, "%ldK", &bytes) == 1 ? bytes * 1024 : 0;
        fclose(file);
    }
    return bytes > 0 ? (size_t)bytes : (size_t)1 << 20;
}

typedef struct {
    const job *job;
    const float *src;
    float *data, *dst;
    int piece, high; /* levels of a piece, of the last pass */
    size_t strip, stride, gap, place, threads;
    front front;
} row;

/* The lowest `levels` levels from `start`, depth first: eight parts, then the three levels between them. */
static void rise(row *r, size_t start, int levels) {
    int above = levels - isa->block;
    if (above <= 0) {
        isa->low(r->job, r->src, r->data, start, &r->place, &r->front);
        return;
    }
    int now = above < 3 ? above : 3;
    size_t part = (size_t)1 << (levels - now);
    for (size_t i = 0; i < (size_t)1 << now; i++) rise(r, start + i * part, levels - now);
    isa->middle(r->data + start, part, now, &r->front);
}

/* Last piece first: the end of src is what the caller has most likely left in the cache. The worker's next piece is most
 * likely the one that lies as many pieces before as there are threads; its beginning is fetched already. */
static void row_low(void *context, size_t worker, size_t number) {
    row r = *(const row *)context;
    (void)worker;
    size_t count = (size_t)1 << r.high, size = (size_t)1 << r.piece, begun = number < r.threads ? 0 : size / SHARE;
    number = count - 1 - number;
    size_t start = number << r.piece, end = number < r.threads ? size : size + size / SHARE;
    r.data += number * r.gap;
    const float *src = r.job->kind == LIFT ? r.data : r.src;
    r.front = (front){src + start, r.data + start, begun, size, end, (r.threads + 1) * size, r.threads * r.gap};
    if (r.job->kind == LIFT) r.place = lower_bound(r.job->index, r.job->m, start);
    rise(&r, start, r.piece);
}

/* Rows with more than HIGH levels above a piece make one more pass over memory. */
static void row_beyond(void *context, size_t worker, size_t number) {
    const row *r = context;
    (void)worker;
    for (size_t start = 0; start >> r->job->log2 == 0; start += r->stride << HIGH)
        isa->beyond(r->data + start, r->stride, HIGH, number * r->strip, (number + 1) * r->strip);
}

static void row_high(void *context, size_t worker, size_t number) {
    const row *r = context;
    (void)worker;
    isa->high(r->job, r->data, r->gap, r->dst, r->high, number * r->strip, (number + 1) * r->strip);
}

/* How many levels of a row are left to the columns: three or more beyond a block, with one level more in a piece where
 * that saves a pass over memory, and enough pieces for all threads. */
static int high_levels(int log2, int threads) {
    int above = log2 > isa->block ? log2 - isa->block : 0, high = above < 3 ? above : 3, most = piece_levels;
    if (log2 - most == HIGH + 1) most++;
    if (log2 - high > most) high = log2 - most;
    if (high > above) high = above;
    while (high < above && high < HIGH && 1 << high < 2 * threads && threads > 1) high++;
    return high;
}

static void one_row(const job *j, size_t number, float *buffer, int threads) {
    row r = {.job = j, .data = buffer, .high = high_levels(j->log2, threads), .threads = (size_t)threads};
    r.src = j->src + number * (j->kind == LIFT ? j->m : j->n);
    r.dst = j->dst + number * (j->kind == PROJECT ? j->m : j->n);
    if (!buffer) r.data = r.dst;
    else r.gap = r.high <= HIGH ? GAP : 0;
    r.piece = j->log2 - r.high;
    parallel((size_t)1 << r.high, threads, row_low, &r);
    size_t pieces = threads > 1 ? 4 * (size_t)threads : 1;
    while (pieces & (pieces - 1)) pieces += pieces & -pieces;
    r.stride = (size_t)1 << r.piece;
    for (; r.high > HIGH; r.high -= HIGH, r.stride <<= HIGH) {
        r.strip = r.stride / least(pieces, r.stride / tile_width(HIGH, r.stride));
        parallel(r.stride / r.strip, threads, row_beyond, &r);
    }
    r.strip = r.stride / least(pieces, r.stride / tile_width(r.high, r.stride));
    if (j->kind != TRANSFORM || r.high) parallel(r.stride / r.strip, threads, row_high, &r);
}

static size_t buffer_size(const job *j) { return ((size_t)1 << j->log2) + (GAP << HIGH); }

typedef struct {
    const job *job;
    float *buffers;
} batch;

static void whole_row(void *context, size_t worker, size_t number) {
    const batch *b = context;
    one_row(b->job, number, b->buffers ? b->buffers + worker * buffer_size(b->job) : NULL, 1);
}

/* Rows that fit the second-level cache are shared out among the threads, what is left over and longer rows are cut.
 * A lift in ascending order needs no buffer: what a row writes beyond its end is room for the next one, and after the
 * last the caller has left room. */
static bool run(const job *j) {
    size_t size = (size_t)1 << j->log2;
    int threads = j->rows * size < SMALL ? 1 : j->threads;
    bool shared = threads > 1 && size <= 1 << 19;
    size_t whole = shared || threads == 1 ? j->rows - j->rows % (size_t)threads : 0;
    batch b = {j, NULL};
    bool own = false, buffered = j->kind == PROJECT || (j->kind == LIFT && shared && whole);
    if (buffered && !(b.buffers = borrow(buffer_size(j) * (shared ? (size_t)threads : 1), &own))) return false;
    parallel(whole, threads, whole_row, &b);
    for (size_t i = whole; i < j->rows; i++) one_row(j, i, b.buffers, threads);
    if (b.buffers) give_back(b.buffers, own);
    return true;
}
