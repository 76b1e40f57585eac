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

/* Σ (successor · g) · predecessor over the codebooks' columns: of each 2 · SUMS columns every one has a sum of its
 * own. */
INLINE float edge(const void *after, const void *g, const void *before, int64_t rank, int compute, int act) {
    vec sums[2 * PARTS] = {{0}};
    int64_t i = 0;
    for (; i + 2 * SUMS <= rank; i += 2 * SUMS)
        for (int part = 0; part < 2 * PARTS; part++) {
            int64_t place = i + part * LANES;
            vec seen = load(after, place, compute) * load(g, place, act);
            sums[part] += seen * load(before, place, compute);
        }
    for (int part = 0; i < rank; part++, i += LANES) {
        vec seen = load_some(after, i, compute, rank - i) * load_some(g, i, act, rank - i);
        sums[part] += seen * load_some(before, i, compute, rank - i);
    }
    for (int part = 0; part < PARTS; part++) sums[part] += sums[part + PARTS];
    return lanes_sum(sums);
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
    vec sums[PARTS] = {{0}};
    for (int64_t i = 0; i < n; i += LANES) {
        store_some(q, i, F32, exponential((load_some(score, i, F32, n - i) - peak) / temperature), n - i);
        sums[i / LANES % PARTS] += load_some(q, i, F32, n - i);
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

/* A codebook's rows to come: they lie anywhere in memory. */
INLINE void fetch_rows(const void *book, int64_t stride, const int64_t *ids, const struct walk_job *j) {
    for (int64_t i = 0; i < j->count; i++)
        for (int64_t byte = 0; byte < j->rank * width(j->compute); byte += 64)
            __builtin_prefetch((const char *)at(book, ids[i] * stride, j->compute) + byte);
}

INLINE void score_step(const struct walk_job *j, int64_t place, int64_t token, int compute, int act) {
    const int64_t n = j->count, *ids = j->ids + place * n;
    const void *g = at(j->g, place * j->rank, act), *before = at(j->predecessor, token * j->before_stride, compute);
    for (int64_t i = 0; i < n; i++) {
        const void *after = at(j->successor, ids[i] * j->after_stride, compute);
        j->scores[place * n + i] = j->unary[place * n + i] + edge(after, g, before, j->rank, compute, act);
    }
}

static void walk_request(void *held, int64_t request, int64_t thread) {
    const struct walk_job *j = held;
    int64_t token = j->anchors[request], n = j->count;
    float temperature = j->temperatures[request];
    (void)thread;
    if (j->steps) fetch_rows(j->successor, j->after_stride, j->ids + request * j->steps * n, j);
    for (int64_t step = 0; step < j->steps; step++) {
        int64_t place = request * j->steps + step;
        const int64_t *ids = j->ids + place * n;
        float *score = j->scores + place * n, *q = j->laws + place * n;
        if (step + 1 < j->steps) {
            fetch_rows(j->predecessor, j->before_stride, ids, j);
            fetch_rows(j->successor, j->after_stride, ids + n, j);
        }
        BY_TYPES(score_step, j->compute, j->act, j, place, token);
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
