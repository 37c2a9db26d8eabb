/* Batch normalisation of many clients on a GPU, with pooling and ReLU in the same pass: a block has one client's channel.

Options: THREADS of a block, a power of two; POOL pixels of a window's side, of which the largest goes on (1: all do);
RELU, whether what is below 0 becomes 0. */

#define WINDOW (POOL * POOL)
#define TURN (POOL == 1 ? 4 : 2) /* windows on their way before the first is used */
#define EACH 8                   /* the same for pixels, where only moments are sought */

typedef struct {
    const float *x, *g; /* (clients, pictures, channels, height, width), gradients of y */
    float *y, *to_x;    /* (clients, pictures, channels, height / POOL, width / POOL), gradients of x */
    const float *weight, *bias;
    float *running_mean, *running_var;
    long long *batches;        /* (clients): counted in training */
    float *mean, *rate;        /* (clients, channels): what was taken away, what was multiplied by */
    float *to_weight, *to_bias; /* (clients, channels) */
    long long weight_step, bias_step, mean_step, var_step, batches_step; /* from one client to the next */
    float eps, momentum;
    int channels, height, width, pictures, training;
} Normalisation;

typedef struct {
    int picture, row, column;
} Place;

DEVICE Place place_of(int i, int rows, int columns) {
    const Place place = {i / columns / rows, i / columns % rows, i % columns};
    return place;
}

/* The place as many further as `step` says, without a division. */
DEVICE Place further(Place at, Place step, int rows, int columns) {
    at.column += step.column;
    at.row += step.row + (at.column >= columns);
    at.column -= at.column >= columns ? columns : 0;
    at.picture += step.picture + (at.row >= rows);
    at.row -= at.row >= rows ? rows : 0;
    return at;
}

/* Numbers from the first of a channel; a client has less than 2^31. */
DEVICE unsigned spot(const Normalisation *c, Place at, int rows, int columns) {
    return (unsigned)at.picture * (c->channels * rows * columns) + at.row * columns + at.column;
}

/* Pixel i of a window, which may lie outside at the last row or column. */
DEVICE Place pixel(Place at, int i) {
    const Place place = {at.picture, at.row * POOL + i / POOL, at.column * POOL + i % POOL};
    return place;
}

DEVICE int inside(const Normalisation *c, Place at) {
    return at.picture < c->pictures && at.row < c->height && at.column < c->width;
}

typedef struct {
    float count, mean, squares; /* of distances from the mean */
} Moments;

DEVICE Moments joined(Moments a, Moments b) {
    const float count = a.count + b.count, apart = b.mean - a.mean, share = count > 0 ? b.count / count : 0;
    const Moments both = {count, a.mean + apart * share, a.squares + b.squares + apart * (a.count * share) * apart};
    return both;
}

DEVICE Moments moments(const Normalisation *c, const float *x, Moments *parts) {
    const int area = c->height * c->width;
    const Place step = place_of(THREADS, 1, area);
    Moments own = {0, 0, 0};
    for (Place at = place_of(THREAD, 1, area); at.picture < c->pictures;) {
        float values[EACH], sum = 0;
        int count = 0;
        _Pragma("unroll") for (int i = 0; i < EACH; i++) {
            values[i] = 0;
            if (at.picture < c->pictures) values[i] = x[spot(c, at, 1, area)], count++;
            at = further(at, step, 1, area);
        }
        _Pragma("unroll") for (int i = 0; i < EACH; i++) sum += values[i];
        Moments few = {(float)count, sum / count, 0};
        _Pragma("unroll") for (int i = 0; i < EACH; i++)
            few.squares += i < count ? (values[i] - few.mean) * (values[i] - few.mean) : 0;
        own = joined(own, few);
    }
    parts[THREAD] = own;
    for (int half = THREADS / 2; half; half /= 2) {
        SYNCHRONISE;
        if (THREAD < half) parts[THREAD] = joined(parts[THREAD], parts[THREAD + half]);
    }
    SYNCHRONISE;
    return parts[0];
}

typedef struct {
    float mean, scale, bias;
} Line;

DEVICE Line line_of(const Normalisation *c, long long client, int channel, float mean, float rate) {
    const Line line = {mean, rate * c->weight[client * c->weight_step + channel],
                       c->bias[client * c->bias_step + channel]};
    return line;
}

/* The largest value of a window on the line and, at `which`, its pixel: the first of them, as torch has it, or NaN. */
DEVICE float largest(Line line, const float *values, int *which) {
    float best = 0;
    _Pragma("unroll") for (int i = 0; i < WINDOW; i++) {
        const float value = (values[i] - line.mean) * line.scale + line.bias;
        if (i == 0 || value > best || value != value) best = value, *which = i;
    }
    return RELU && best <= 0 ? 0 : best;
}

DEVICE void fetch(const Normalisation *c, const float *x, Place at, float *values) {
    _Pragma("unroll") for (int i = 0; i < WINDOW; i++) {
        const Place from = pixel(at, i);
        values[i] = inside(c, from) ? x[spot(c, from, c->height, c->width)] : 0;
    }
}

KERNEL_WITH(THREADS, 1536 / THREADS) normalise(CONSTANT Normalisation c) {
    SHARED(Moments, parts);
    const int channel = (int)(BLOCK % c.channels), rows = c.height / POOL, columns = c.width / POOL;
    const long long client = BLOCK / c.channels, first = client * c.pictures * c.channels + channel;
    const float *x = c.x + first * c.height * c.width;
    float *running_mean = c.running_mean + client * c.mean_step + channel, mean = *running_mean;
    float *running_var = c.running_var + client * c.var_step + channel, variance = *running_var;
    if (c.training) {
        const Moments found = moments(&c, x, parts);
        if (THREAD == 0) {
            *running_mean = (1 - c.momentum) * mean + c.momentum * found.mean;
            *running_var = (1 - c.momentum) * variance + c.momentum * (found.squares / (found.count - 1));
            if (channel == 0) c.batches[client * c.batches_step]++;
        }
        mean = found.mean, variance = found.squares / found.count;
    }
    const float rate = 1 / sqrtf(variance + c.eps);
    if (THREAD == 0) c.mean[BLOCK] = mean, c.rate[BLOCK] = rate;
    const Line line = line_of(&c, client, channel, mean, rate);
    const Place step = place_of(THREADS, rows, columns);
    float *y = c.y + first * rows * columns;
    for (Place at = place_of(THREAD, rows, columns); at.picture < c.pictures;) {
        Place places[TURN];
        float values[TURN][WINDOW];
        _Pragma("unroll") for (int t = 0; t < TURN; t++) {
            fetch(&c, x, at, values[t]);
            places[t] = at, at = further(at, step, rows, columns);
        }
        _Pragma("unroll") for (int t = 0; t < TURN; t++) {
            int which;
            if (places[t].picture < c.pictures) y[spot(&c, places[t], rows, columns)] = largest(line, values[t], &which);
        }
    }
}

/* The gradient of a window's largest value, 0 where ReLU lets nothing through or the window is not whole. */
DEVICE float error_of(const Normalisation *c, const float *g, Place at, Line line, const float *values, int *which) {
    const int rows = c->height / POOL, columns = c->width / POOL;
    if (at.picture >= c->pictures || at.row >= rows || at.column >= columns) return 0;
    const float error = g[spot(c, at, rows, columns)], best = largest(line, values, which);
    return RELU && best <= 0 ? 0 : error;
}

KERNEL_WITH(THREADS, 1536 / THREADS) normalise_back(CONSTANT Normalisation c) {
    SHARED(float, sums);
    float *products = sums + THREADS, sum = 0, product = 0;
    const int channel = (int)(BLOCK % c.channels), last = (c.height + POOL - 1) / POOL, wide = (c.width + POOL - 1) / POOL;
    const long long client = BLOCK / c.channels, first = client * c.pictures * c.channels + channel;
    const float *x = c.x + first * c.height * c.width, *g = c.g + first * (c.height / POOL) * (c.width / POOL);
    const float mean = c.mean[BLOCK], rate = c.rate[BLOCK];
    const Line line = line_of(&c, client, channel, mean, rate);
    const Place step = place_of(THREADS, last, wide);
    for (Place at = place_of(THREAD, last, wide); at.picture < c.pictures; at = further(at, step, last, wide)) {
        float values[WINDOW];
        int which = 0;
        fetch(&c, x, at, values);
        const float error = error_of(&c, g, at, line, values, &which);
        sum += error;
        _Pragma("unroll") for (int i = 0; i < WINDOW; i++) product += i == which ? error * (values[i] - mean) : 0;
    }
    sums[THREAD] = sum, products[THREAD] = product;
    for (int half = THREADS / 2; half; half /= 2) {
        SYNCHRONISE;
        if (THREAD < half) sums[THREAD] += sums[THREAD + half], products[THREAD] += products[THREAD + half];
    }
    SYNCHRONISE;
    const float count = (float)c.pictures * (c.height * c.width);
    const float level = c.training ? sums[0] / count : 0;
    const float slope = c.training ? products[0] * rate * rate / count : 0;
    if (THREAD == 0) c.to_bias[BLOCK] = sums[0], c.to_weight[BLOCK] = products[0] * rate;
    float *to_x = c.to_x + first * c.height * c.width;
    for (Place at = place_of(THREAD, last, wide); at.picture < c.pictures; at = further(at, step, last, wide)) {
        float values[WINDOW];
        int which = 0;
        fetch(&c, x, at, values);
        const float error = error_of(&c, g, at, line, values, &which);
        _Pragma("unroll") for (int i = 0; i < WINDOW; i++) {
            const Place to = pixel(at, i);
            const float own = (i == which ? error : 0) - level - (values[i] - mean) * slope;
            if (inside(&c, to)) to_x[spot(&c, to, c.height, c.width)] = line.scale * own;
        }
    }
}
