/* The candidate path: all steps of a request in one task, because each waits for the one before. */

struct walk_job {
    const int64_t *ids;
    const float *unary;
    const void *g, *predecessor, *successor;
    const int64_t *anchors;
    const float *temperatures, *uniforms;
    float *scores;
    int64_t *tokens;
    float *laws;
    int64_t steps, count, rank, before_stride, after_stride;
    int act, compute, last_rank;
};

/* Σ (successor · g) · predecessor over the codebooks' columns. */
static float edge(const struct walk_job *j, const void *after, const void *g, const void *before) {
    vec sums[2] = {{0}};
    for (int64_t i = 0, place = 0; i < j->rank; i += LANES, place++) {
        int64_t some = j->rank - i;
        vec seen = load_some(after, i, j->compute, some) * load_some(g, i, j->act, some);
        sums[place & 1] += seen * load_some(before, i, j->compute, some);
    }
    return lanes_sum(sums[0] + sums[1]);
}

/* The first of the largest, or the first NaN. */
static int64_t first_largest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != x[i]) return i;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

/* q = softmax((score - peak) / temperature): the argument is 0 at the peak, so that no temperature overflows it. */
static void soften(const float *score, float *q, int64_t n, float peak, float temperature) {
    vec sums = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        store_some(q, i, F32, exponential((load_some(score, i, F32, n - i) - peak) / temperature), n - i);
        sums += load_some(q, i, F32, n - i);
    }
    float total = lanes_sum(sums);
    for (int64_t i = 0; i < n; i += LANES) store_some(q, i, F32, load_some(q, i, F32, n - i) / total, n - i);
}

/* The first rank whose inclusive cumulative weight, in float64, is above `goal`; -1 for none. */
static int64_t first_above(const float *weights, int64_t n, double goal) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += weights[i];
        if (sum > goal) return i;
    }
    return -1;
}

/* The rank of a coin past the sum of q: the last, or the last whose q is above 0. */
static int64_t past_the_sum(const float *q, int64_t n, int last_rank) {
    int64_t rank = n - 1;
    while (!last_rank && rank && !(q[rank] > 0)) rank--;
    return rank;
}

static void walk_request(void *held, int64_t request, int64_t thread) {
    const struct walk_job *j = held;
    int64_t token = j->anchors[request], n = j->count;
    float temperature = j->temperatures[request];
    (void)thread;
    for (int64_t step = 0; step < j->steps; step++) {
        int64_t place = request * j->steps + step;
        const int64_t *ids = j->ids + place * n;
        float *score = j->scores + place * n, *q = j->laws + place * n;
        const void *g = at(j->g, place * j->rank, j->act);
        const void *before = at(j->predecessor, token * j->before_stride, j->compute);
        for (int64_t i = 0; i < n; i++) {
            const void *after = at(j->successor, ids[i] * j->after_stride, j->compute);
            score[i] = j->unary[place * n + i] + edge(j, after, g, before);
        }
        int64_t chosen = first_largest(score, n);
        if (temperature > 0) {
            soften(score, q, n, score[chosen], temperature);
            chosen = first_above(q, n, j->uniforms[place]);
            if (chosen < 0) chosen = past_the_sum(q, n, j->last_rank);
        } else {
            for (int64_t i = 0; i < n; i++) q[i] = i == chosen;
        }
        j->tokens[place] = token = ids[chosen];
    }
}

static int all_below(const int64_t *ids, int64_t n, int64_t limit) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= limit) return 0;
    return 1;
}

/* ids, unary, scores and laws [requests, steps, count], g [requests, steps, rank] of `act`, uniforms and tokens
 * [requests, steps], anchors and temperatures [requests]; codebooks [vocabulary, rank] of `compute`, rows
 * `before_stride` and `after_stride` apart. Returns 0, or 1, having done nothing, where an id has no row. */
int walk(const int64_t *ids, const float *unary, const void *g, const void *predecessor, const void *successor,
         const int64_t *anchors, const float *temperatures, const float *uniforms, float *scores, int64_t *tokens,
         float *laws, int64_t requests, int64_t steps, int64_t count, int64_t rank, int64_t vocabulary,
         int64_t before_stride, int64_t after_stride, int act, int compute, int last_rank, int64_t threads) {
    struct walk_job job = {ids, unary, g, predecessor, successor, anchors, temperatures, uniforms, scores, tokens, laws,
                           steps, count, rank, before_stride, after_stride, act, compute, last_rank};
    if (!all_below(ids, requests * steps * count, vocabulary) || !all_below(anchors, requests, vocabulary)) return 1;
    share(walk_request, &job, requests, requests * steps * count * rank < 1 << 17 ? 1 : threads);
    return 0;
}
