/* Norms, RoPE, SwiGLU and the grouped convolution: one row after another, each in FP32 with the roundings of the torch
 * functions of the same names. */

/* 1 / sqrt(mean(x²) + eps) of one row; with `through` its elements are rounded to that type first. */
INLINE float inverse_rms(const void *x, int type, int through, int64_t n, float eps) {
    vec sums[4] = {{0}};
    for (int64_t i = 0, place = 0; i < n; i += LANES, place++) {
        vec wide = rounded(load_some(x, i, type, n - i), through);
        sums[place & 3] += wide * wide;
    }
    float mean = lanes_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

struct norm_job {
    const void *x, *weight;
    void *out;
    int64_t rows, n, weights, each;
    int type, held, act;
    float eps;
};

static void norm_rows(void *held, int64_t index, int64_t thread) {
    struct norm_job *j = held;
    (void)thread;
    for (int64_t row = index * j->each; row < least(j->rows, (index + 1) * j->each); row++) {
        const void *x = at(j->x, row * j->n, j->type), *weight = at(j->weight, row % j->weights * j->n, j->held);
        void *out = (void *)at(j->out, row * j->n, j->act);
        vec scale = every(inverse_rms(x, j->type, F32, j->n, j->eps));
        for (int64_t i = 0; i < j->n; i += LANES) {
            int64_t some = j->n - i;
            vec quotient = rounded(load_some(x, i, j->type, some) * scale, j->held);
            vec product = rounded(quotient * load_some(weight, i, j->held, some), j->held);
            store_some(out, i, j->act, product, some);
        }
    }
}

/* x [rows, n] of `type`, weight [weights, n] of `held` (row r takes r mod weights), out [rows, n] of `act`. */
void rms_norm(const void *x, const void *weight, void *out, int64_t rows, int64_t n, int64_t weights, int type,
              int held, int act, float eps, int64_t threads) {
    struct norm_job job = {x, weight, out, rows, n, weights, rows_each(rows, n, threads), type, held, act, eps};
    share(norm_rows, &job, (rows + job.each - 1) / job.each, threads);
}

/* What one head's norm and turn need beside its channels; `compute` is the type of weights and tables. */
struct turning {
    int64_t dim;
    float eps;
    int type, compute, act, staged, raw_rounded;
};

/* One head: norm, then channel j turned with channel j + dim / 2. The product with the weight and each step of the turn
 * are rounded to `compute`; to `act` the raw value where raw_rounded, the normed one where staged, and the end. */
INLINE void turn_head(const struct turning *t, const void *x, const void *weight, const void *cosine, const void *sine,
                      void *out) {
    int64_t half = t->dim / 2;
    int through = t->raw_rounded ? t->act : F32, stage = t->staged ? t->act : F32, compute = t->compute;
    vec scale = every(inverse_rms(x, t->type, through, t->dim, t->eps));
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t some = half - i;
        vec pair[2];
        for (int side = 0; side < 2; side++) {
            int64_t place = i + side * half;
            vec quotient = rounded(rounded(load_some(x, place, t->type, some), through) * scale, compute);
            vec product = rounded(quotient * load_some(weight, place, compute, some), compute);
            pair[side] = rounded(rounded(product, stage), compute);
        }
        vec c = load_some(cosine, i, compute, some), s = load_some(sine, i, compute, some);
        vec first = rounded(rounded(pair[0] * c, compute) - rounded(pair[1] * s, compute), compute);
        vec second = rounded(rounded(pair[1] * c, compute) + rounded(pair[0] * s, compute), compute);
        store_some(out, i, t->act, first, some);
        store_some(out, i + half, t->act, second, some);
    }
}

struct rope_job {
    struct turning turning;
    const void *raw, *weight, *cosine, *sine;
    void *out;
    int64_t rows, heads, stride, weights, each;
};

static void rope_rows(void *held, int64_t index, int64_t thread) {
    struct rope_job *j = held;
    const struct turning *t = &j->turning;
    (void)thread;
    for (int64_t row = index * j->each; row < least(j->rows, (index + 1) * j->each); row++)
        for (int64_t head = 0; head < j->heads; head++)
            turn_head(t, at(j->raw, row * j->stride + head * t->dim, t->type),
                      at(j->weight, head % j->weights * t->dim, t->compute),
                      at(j->cosine, row * (t->dim / 2), t->compute), at(j->sine, row * (t->dim / 2), t->compute),
                      (void *)at(j->out, (row * j->heads + head) * t->dim, t->act));
}

/* raw [rows, heads, dim] of `type`, its rows `stride` elements apart; weight [1 or heads, dim] and tables
 * [rows, dim / 2] of `compute`; out [rows, heads, dim] of `act`. */
void norm_rope(const void *raw, const void *weight, const void *cosine, const void *sine, void *out, int64_t rows,
               int64_t heads, int64_t dim, int64_t stride, int64_t weights, int type, int compute, int act, int staged,
               float eps, int64_t threads) {
    struct rope_job job = {{dim, eps, type, compute, act, staged, 0},
                           raw, weight, cosine, sine, out, rows, heads, stride, weights,
                           rows_each(rows, heads * dim, threads)};
    share(rope_rows, &job, (rows + job.each - 1) / job.each, threads);
}

struct gate_job {
    const void *gate_up;
    void *out;
    int64_t rows, n, each;
    int compute, act;
};

static void gate_rows(void *held, int64_t index, int64_t thread) {
    struct gate_job *j = held;
    (void)thread;
    for (int64_t row = index * j->each; row < least(j->rows, (index + 1) * j->each); row++)
        for (int64_t i = 0; i < j->n; i += LANES) {
            int64_t some = j->n - i;
            vec gate = load_some(j->gate_up, row * 2 * j->n + i, j->compute, some);
            vec up = load_some(j->gate_up, (row * 2 + 1) * j->n + i, j->compute, some);
            vec silu = rounded(gate / (1.0f + exponential(-gate)), j->compute);
            store_some(j->out, row * j->n + i, j->act, rounded(silu * up, j->compute), some);
        }
}

/* gate_up [rows, 2n] of `compute`: SiLU(first half) · second half, out [rows, n] of `act`. */
void gated(const void *gate_up, void *out, int64_t rows, int64_t n, int compute, int act, int64_t threads) {
    struct gate_job job = {gate_up, out, rows, n, rows_each(rows, 4 * n, threads), compute, act};
    share(gate_rows, &job, (rows + job.each - 1) / job.each, threads);
}

struct conv_job {
    const void *z, *base, *delta, *residual;
    const int64_t *slot;
    void *out;
    int64_t rows, n, taps, groups, delta_stride, each;
    int compute, act;
};

/* The increments of channels i .. i + some - 1: each serves n / groups neighbours. */
INLINE vec increments(const struct conv_job *j, int64_t row, int64_t tap, int64_t i, int64_t some) {
    int64_t size = j->n / j->groups, first = row * j->delta_stride + tap * j->groups;
    if (i / size == (i + least(some, LANES) - 1) / size) return every(load_one(j->delta, first + i / size, j->compute));
    vec made = {0};
    for (int64_t lane = 0; lane < least(some, LANES); lane++)
        made[lane] = load_one(j->delta, first + (i + lane) / size, j->compute);
    return made;
}

static void conv_rows(void *held, int64_t index, int64_t thread) {
    struct conv_job *j = held;
    int type = j->compute;
    (void)thread;
    for (int64_t row = index * j->each; row < least(j->rows, (index + 1) * j->each); row++)
        for (int64_t i = 0; i < j->n; i += LANES) {
            int64_t some = j->n - i;
            vec total = {0};
            for (int64_t tap = 0; tap < j->taps; tap++) {
                vec base = load_some(j->base, tap * j->n + i, type, some);
                vec weight = rounded(base + increments(j, row, tap, i, some), type);
                vec before = j->slot[row] < tap ? (vec){0} : load_some(j->z, (row - tap) * j->n + i, type, some);
                vec term = rounded(weight * before, type);
                total = tap ? rounded(total + term, type) : term;
            }
            if (j->residual) total = rounded(load_some(j->residual, row * j->n + i, j->act, some) + total, type);
            store_some(j->out, row * j->n + i, j->act, total, some);
        }
}

/* z [rows, n] and base [taps, n] of `compute`, delta [rows, taps, groups] with rows `delta_stride` apart, slot [rows];
 * residual [rows, n] of `act`, or null; out [rows, n] of `act`. */
void convolve(const void *z, const void *base, const void *delta, const int64_t *slot, const void *residual, void *out,
              int64_t rows, int64_t n, int64_t taps, int64_t groups, int64_t delta_stride, int compute, int act,
              int64_t threads) {
    struct conv_job job = {z, base, delta, residual, slot, out, rows, n, taps, groups, delta_stride,
                           rows_each(rows, n * taps, threads), compute, act};
    share(conv_rows, &job, (rows + job.each - 1) / job.each, threads);
}
