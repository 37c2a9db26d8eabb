/* Steps of a client's parameters on a GPU: keep * place + scale * gradient, all of them in one launch. */

#define PARTS 64 /* as in cuda_steps.py */
#define EACH 4   /* numbers of a thread */

typedef struct {
    float *places[PARTS];
    const float *gradients[PARTS];
    long long counts[PARTS];
    int firsts[PARTS]; /* the block at which each part begins */
    int parts;
    float keep, scale;
} Steps;

KERNEL_OF(256) take_steps(CONSTANT Steps steps) {
    int part = 0;
    while (part + 1 < steps.parts && steps.firsts[part + 1] <= BLOCK) part++;
    const long long start = (BLOCK - steps.firsts[part]) * 256 * EACH + THREAD;
    float *place = steps.places[part] + start;
    const float *gradient = steps.gradients[part] + start;
    const long long left = steps.counts[part] - start;
    float x[EACH], g[EACH]; /* all are on their way before the first is written */
    for (int i = 0; i < EACH; i++)
        if (256 * i < left) x[i] = place[256 * i], g[i] = gradient[256 * i];
    for (int i = 0; i < EACH; i++)
        if (256 * i < left) place[256 * i] = steps.keep * x[i] + steps.scale * g[i];
}
