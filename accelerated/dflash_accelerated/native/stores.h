/* Context keys and values into their slots, and the greatest score of each row. */

struct store_job {
    struct turning turning;
    const void *raw_k, *raw_v, *norms, *cosine, *sine;
    void *keys, *values;
    const int32_t *spans;
    int64_t requests, layers, heads, slots, lane_stride, layer_stride, head_stride, k_stride, v_stride;
    int64_t parts; /* into which each request's rows are dealt out */
    int held;
};

/* `n` values, rounded to `act`, then as stored. */
INLINE void store_values(const void *from, void *to, int64_t n, int type, int act, int held) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_through(to, i, act, held, load(from, i, type), LANES);
    if (i < n) store_through(to, i, act, held, load_some(from, i, type, n - i), n - i);
}

/* Heads first .. first + heads - 1 of all layers, of row `row` of one request: keys normed and turned, and values. */
static void store_heads(const struct store_job *j, const int32_t *span, int64_t row, int64_t first, int64_t heads) {
    const struct turning *t = &j->turning;
    int64_t slot = (span[1] + row) % j->slots, given = span[3] + row, half = t->dim / 2;
    struct head_row h[HEADS];
    for (int64_t i = 0; i < heads; i++) {
        int64_t layer = (first + i) / j->heads, head = (first + i) % j->heads, from = (first + i) * t->dim;
        int64_t to = span[0] * j->lane_stride + layer * j->layer_stride + head * j->head_stride + slot * t->dim;
        h[i] = (struct head_row){at(j->raw_k, given * j->k_stride + from, t->type),
                                 at(j->norms, layer * t->dim, t->compute), at(j->cosine, given * half, t->compute),
                                 at(j->sine, given * half, t->compute), (void *)at(j->keys, to, t->act)};
        const void *v = at(j->raw_v, given * j->v_stride + from, t->type);
        void *values = (void *)at(j->values, to, j->held);
        if (t->type == BF16 && t->act == BF16 && j->held == BF16) store_values(v, values, t->dim, BF16, BF16, BF16);
        else if (t->type == F32 && t->act == BF16 && j->held == F16) store_values(v, values, t->dim, F32, BF16, F16);
        else store_values(v, values, t->dim, t->type, t->act, j->held);
    }
    turner_of(t)(t, h, heads);
}

static void store_request(void *held, int64_t index, int64_t thread) {
    const struct store_job *j = held;
    const int32_t *span = j->spans + 4 * (index / j->parts);
    (void)thread;
    for (int64_t row = most(0, span[2] - j->slots) + index % j->parts; row < span[2]; row += j->parts)
        for (int64_t first = 0; first < j->layers * j->heads; first += HEADS)
            store_heads(j, span, row, first, least(HEADS, j->layers * j->heads - first));
}

/* raw_k and raw_v [T, layers, heads, dim] of `compute`, rows `k_stride` and `v_stride` apart; norms [layers, dim]. */
void store_context(const void *raw_k, const void *raw_v, const void *norms, const void *cosine, const void *sine,
                   void *keys, void *values, const int32_t *spans, int64_t requests, int64_t layers, int64_t heads,
                   int64_t dim, int64_t slots, int64_t lane_stride, int64_t layer_stride, int64_t head_stride,
                   int64_t k_stride, int64_t v_stride, int type, int compute, int act, int held, int staged, float eps,
                   int64_t threads) {
    struct store_job job = {{dim, eps, type, compute, act, staged, staged}, raw_k, raw_v, norms, cosine, sine, keys,
                            values, spans, requests, layers, heads, slots, lane_stride, layer_stride, head_stride,
                            k_stride, v_stride, 1, held};
    int64_t rows = 0;
    for (int64_t request = 0; request < requests; request++) rows += spans[4 * request + 2];
    if (rows * layers * heads * dim >= 1 << 14) job.parts = threads;
    share(store_request, &job, requests * job.parts, job.parts);
}

#define STRIP 512

struct greatest_job {
    const void *scores;
    void *tops;
    int64_t *ids;
    int64_t n, stride;
    int type;
};

/* The lowest place of the greatest score: the first strip that holds a greater one than all before it, then its first
 * place. As in PyTorch, a NaN is greater than anything. */
INLINE int64_t greatest_in(const void *x, int64_t n, int type) {
    float best = -INFINITY;
    int64_t place = 0;
    for (int64_t first = 0; first < n; first += STRIP) {
        int64_t end = least(n, first + STRIP), i = first;
        vec tops[2] = {every(-INFINITY), every(-INFINITY)}, now[2];
        flags missing = {0};
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            load_two(x, i, type, now);
            tops[0] = larger(now[0], tops[0]), tops[1] = larger(now[1], tops[1]);
            missing |= no_number(now[0], now[1]);
        }
        for (; i < end; i++) {
            vec one = every(load_one(x, i, type));
            tops[0] = larger(one, tops[0]), missing |= no_number(one, one);
        }
        if (any(missing)) {
            while (load_one(x, first, type) == load_one(x, first, type)) first++;
            return first;
        }
        if (bits_of((tops[0] > best) | (tops[1] > best))) best = lanes_most(larger(tops[0], tops[1])), place = first;
    }
    while (place + LANES <= n && !bits_of(load(x, place, type) == best)) place += LANES;
    while (load_one(x, place, type) != best) place++;
    return place;
}

static int64_t greatest_of(const void *x, int64_t n, int type) {
    if (type == BF16) return greatest_in(x, n, BF16);
    return type == F32 ? greatest_in(x, n, F32) : greatest_in(x, n, type);
}

static void greatest_of_row(void *held, int64_t row, int64_t thread) {
    const struct greatest_job *j = held;
    const void *x = at(j->scores, row * j->stride, j->type);
    (void)thread;
    j->ids[row] = greatest_of(x, j->n, j->type);
    memcpy((void *)at(j->tops, row, j->type), at(x, j->ids[row], j->type), width(j->type));
}

/* scores [rows, n] of `type`, rows `stride` apart, n at least 1: ids and the scores there, tops [rows]. */
void greatest(const void *scores, void *tops, int64_t *ids, int64_t rows, int64_t n, int64_t stride, int type,
              int64_t threads) {
    struct greatest_job job = {scores, tops, ids, n, stride, type};
    share(greatest_of_row, &job, rows, rows * n < 1 << 15 ? 1 : threads);
}

/* For tests: e to each x. */
void exponentials(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        store_some(out, i, F32, exponential(load_some(x, i, F32, n - i)), n - i);
}
